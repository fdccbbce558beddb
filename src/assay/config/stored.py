"""config.yaml of a run directory: what ran, with every default, what was measured at start, and where it came from."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from assay.config.load import plain
from assay.config.schema import RunConfig
from assay.config.tree import Tree, merge, read_yaml
from assay.errors import InputError

EXTRA_SECTIONS = ("measured", "provenance")
# What may change between the two halves of a run without making it another experiment.
MAY_CHANGE = (
    "output_dir",
    "train.steps",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "eval.",
    "monitoring.",
    "rewards.workers",
    "rollout.vllm.",
    "sft.",
)
PACKAGES = ("assay", "torch", "transformers", "peft", "accelerate", "datasets", "numpy", "vllm")


def dump_config(config: RunConfig, measured: Mapping[str, Any]) -> str:
    """The text of config.yaml."""
    header = "# Written by assay: the resolved configuration of this run. `assay train` on this file repeats it.\n"
    tree = {**plain(config), "measured": dict(measured), "provenance": provenance()}
    return header + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=110)


def read_stored(path: Path) -> tuple[Tree, dict[str, Any]]:
    """The stored configuration tree and what was measured when the run began."""
    tree = read_yaml(str(path))
    measured = tree.get("measured") or {}
    return {key: value for key, value in tree.items() if key not in EXTRA_SECTIONS}, measured


def check_resume(stored: Tree, config: RunConfig, where: Path, may_change: Sequence[str] = MAY_CHANGE) -> None:
    """Raise InputError if a key that the run depends on differs from what it began with.

    A key that the version which began the run did not have counts as left at its default.
    """
    stored = merge(plain(RunConfig()), stored)
    changed = [
        (key, old, new)
        for key, old, new in differences(stored, plain(config))
        if not any(key == allowed or (allowed.endswith(".") and key.startswith(allowed)) for allowed in may_change)
    ]
    if changed:
        key, old, new = changed[0]
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise InputError(
            f"{where} exists and began with {key}={old!r}, now {new!r}{more}; give the run another name, delete it, "
            f"or keep the value. Only {', '.join(may_change)} may change on resume"
        )


def differences(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both values; a key that only one side has counts as None."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), f"{prefix}{key}.")
    elif old != new:
        yield prefix.rstrip("."), old, new


def provenance() -> dict[str, Any]:
    """When, with which versions and from which commit."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "versions": {package: package_version(package) for package in PACKAGES},
        "git_commit": git_commit(),
    }


def package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """The commit of the working directory, where it is a git checkout."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
