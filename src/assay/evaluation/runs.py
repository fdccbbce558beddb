"""Run directories as data: configuration, metrics and verdicts of each, and which of them are one setting."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from assay.errors import InputError
from assay.evaluation.verdicts import Verdicts, read_verdicts
from assay.monitoring.history import History, read_metrics

# Keys that name a run or say what to write, rather than what is trained.
NOT_A_SETTING = ("name", "output_dir", "seed", "measured", "provenance", "monitoring", "sft")


@dataclass(frozen=True)
class Run:
    """One run directory, dead or alive. `config` is flat: dotted key -> value."""

    name: str
    path: Path
    config: Mapping[str, Any]
    history: History
    verdicts: Verdicts = field(default_factory=dict)

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def setting(self) -> dict[str, Any]:
        """The keys that make two runs the same experiment."""
        return {key: value for key, value in self.config.items() if key.split(".")[0] not in NOT_A_SETTING}


@dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: Sequence[Run]

    @property
    def seeds(self) -> list[Any]:
        return [run.seed for run in self.runs]


def read_run(path: str | Path) -> Run:
    """Read a run directory; without config.yaml it is a setting of its own. Raises InputError if it has no metrics."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(
            f"{path} is not a run directory; give a folder that `assay train` wrote, such as runs/quickstart"
        )
    history = read_metrics(path)
    if not len(history):
        raise InputError(f"{path / 'metrics.jsonl'} has no finished step yet")
    return Run(path.resolve().name, path, flat_config(path / "config.yaml"), history, read_verdicts(path))


def flat_config(path: Path) -> dict[str, Any]:
    """config.yaml as dotted keys; lists stay values. Empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        tree = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return dict(_leaves(tree if isinstance(tree, dict) else {}))


def group_settings(runs: Sequence[Run]) -> list[Setting]:
    """Runs by setting, in the order given; a label holds only the keys that differ between settings.

    Two runs of a directory name get their parent's name in front, so that every label is distinct.
    """
    by_setting: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps(run.setting, sort_keys=True, default=str) if run.config else str(run.path)
        by_setting.setdefault(key, []).append(run)
    groups = list(by_setting.values())
    varying = _varying([group[0].setting for group in groups])
    labels = [_label(group, varying) for group in groups]
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({group[0].path})" for label, group in zip(labels, groups, strict=True)]
    return [Setting(label, group) for label, group in zip(labels, groups, strict=True)]


def _varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for setting in settings for key in setting)
    return [key for key in keys if len({json.dumps(setting.get(key), default=str) for setting in settings}) > 1]


def _label(runs: Sequence[Run], varying: Sequence[str]) -> str:
    """`loss_type=grpo, scale_rewards=none`; the run's name where nothing, or too much, differs."""
    run = runs[0]
    if not varying or not run.config or len(varying) > 2:
        return _stem([run.name for run in runs])
    last = [key.rpartition(".")[2] for key in varying]
    shown = [short if last.count(short) == 1 else key for key, short in zip(varying, last, strict=True)]
    words = {key: _word(run.config.get(key)) for key in varying}
    return ", ".join(
        words[key] if key == "rewards.functions" else f"{name}={words[key]}"
        for name, key in zip(shown, varying, strict=True)
    )


def _stem(names: Sequence[str]) -> str:
    """What the names of a setting's runs share, without a dangling seed.

    >>> _stem(["dapo-seed0", "dapo-seed1"]), _stem(["a", "b"]), _stem(["dapo"])
    ('dapo', 'a', 'dapo')
    """
    if len(names) == 1:
        return names[0]
    shared = os.path.commonprefix(names)  # noqa: RUF071 - character by character is what is meant
    return re.sub(r"(?:[-_.](?:seed|s)?|seed)[-_.]?$", "", shared) or names[0]


def _word(value: Any) -> str:
    """As YAML would say it; reward functions by their names alone.

    >>> _word(0.5), _word([{"fn": "pack.rewards:exact", "name": "", "weight": 1.0}, {"fn": "math", "name": "m"}])
    ('0.5', 'exact+m')
    """
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "fn" in item for item in value):
        return "+".join(str(item.get("name") or str(item["fn"]).rpartition(":")[2]) for item in value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Any:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
