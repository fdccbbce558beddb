"""Every key of a run with its default and the reason to change it, as a page: `python -m assay.config.reference`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from assay.config.load import plain, preset_names
from assay.config.schema import RunConfig
from assay.config.tree import leaves
from assay.rewards.options import RewardSpec

HEADER = """\
# Configuration

Written by `python -m assay.config.reference`; a test keeps it current. A recipe is YAML with these sections. On the
command line a key is `section.key=value`; in Python it is any of `num_generations=8`, `train={"steps": 50}` or
`**{"train.steps": 50}`. Unknown keys are refused with the nearest name. Values come from the rooms' defaults, then the
preset, then the recipe, then the command line; `config.yaml` in the run directory has them all.

Most recipes set `model.path`, `data`, `rewards`, `rollout.max_completion_length`, `train.steps` and
`train.prompts_per_step`.
"""


def reference() -> str:
    """The page as Markdown."""
    parts = [HEADER, f"Presets: {', '.join(f'`{name}`' for name in preset_names())}.\n"]
    for section, keys in groupby(
        leaves(RunConfig), key=lambda item: item[0].partition(".")[0] if "." in item[0] else ""
    ):
        parts.append(f"## {section or 'The run'}\n\n{table(keys)}")
        if section == "rewards":
            parts.append(
                f"Each entry of `rewards.functions` (or of `rewards` as a plain list):\n\n{table(leaves(RewardSpec))}"
            )
    return "\n".join(parts)


def table(keys: Iterator[tuple[str, Any, str]]) -> str:
    rows = [
        f"| `{key}` | {shown(default)} | {sentence.replace('|', chr(92) + '|')} |" for key, default, sentence in keys
    ]
    return "\n".join(["| key | default | why one would change it |", "|---|---|---|", *rows, ""])


def shown(default: Any) -> str:
    """A default as YAML would have it; a required value is empty."""
    try:
        text = json.dumps(plain(default), ensure_ascii=False)
    except TypeError:
        return ""
    return "" if "MISSING" in text else f"`{text}`"


if __name__ == "__main__":
    print(reference(), end="")
