"""Every key of a run with its default and the reason to change it, as a page: `python -m assay.config.reference`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from assay.config.load import build_config, plain, preset_names
from assay.config.schema import RunConfig
from assay.config.tree import Leaf, leaves
from assay.rewards.options import RewardSpec

HEADER = """\
# Configuration

Written by `python -m assay.config.reference`; a test keeps it current. A recipe is YAML with these sections. On the
command line a key is `section.key=value`; in Python it is any of `num_generations=8`, `train={"steps": 50}` or
`**{"train.steps": 50}`. Unknown keys are refused with the nearest name. Values come from the rooms' defaults, then the
preset, then the recipe, then the command line; `config.yaml` in the run directory has them all. A recipe that names no
preset gets `dapo`: where that has a value of its own it stands behind the default.

Most recipes set `model.path`, `data`, `rewards`, `rollout.max_completion_length`, `train.steps` and
`train.prompts_per_step`.
"""


def reference() -> str:
    """The page as Markdown."""
    parts = [HEADER, f"Presets: {', '.join(f'`{name}`' for name in preset_names())}.\n"]
    for section, keys in groupby(leaves(RunConfig), key=lambda leaf: leaf.key.partition(".")[0] * ("." in leaf.key)):
        parts.append(f"## {section or 'The run'}\n\n{table(keys)}")
        if section == "rewards":
            parts.append(
                f"Each entry of `rewards.functions` (or of `rewards` as a plain list):\n\n{table(leaves(RewardSpec))}"
            )
    return "\n".join(parts)


def table(keys: Iterable[Leaf]) -> str:
    rows = [f"| `{leaf.key}` | {defaults(leaf)} | {why(leaf)} |" for leaf in keys]
    return "\n".join(["| key | default | why one would change it |", "|---|---|---|", *rows, ""])


def defaults(leaf: Leaf) -> str:
    """The default, and that of a recipe without preset where it is another."""
    section, _, name = leaf.key.rpartition(".")
    usual = functools.reduce(lambda owner, part: getattr(owner, part, owner), section.split("."), usual_config())
    value = getattr(usual, name, leaf.default) if section else leaf.default
    own, of_preset = shown(leaf.default), shown(value)
    return own if of_preset == own else f"{own} (dapo: {of_preset})"


@functools.cache
def usual_config() -> RunConfig:
    """What an empty recipe comes to."""
    return build_config({})


def why(leaf: Leaf) -> str:
    """The sentence, and the values to choose from."""
    words = leaf.sentence.replace("|", chr(92) + "|")
    return f"{words} One of {', '.join(f'`{choice}`' for choice in leaf.choices)}." if leaf.choices else words


def shown(default: Any) -> str:
    """A default as YAML would have it; a required value is empty."""
    try:
        text = json.dumps(plain(default), ensure_ascii=False)
    except TypeError:
        return ""
    return "" if "MISSING" in text else f"`{text}`"


if __name__ == "__main__":
    print(reference(), end="")
