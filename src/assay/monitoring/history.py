"""A run's metrics as columns, from metrics.jsonl or from the logs of other trainers.

Readers never open a file for writing, skip what a writer has not finished, and say what they skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import InputError

# Beyond this size a file is read at both ends only: the beginning is the baseline, the end is the present.
MAX_BYTES = 64 * 2**20
HEAD_BYTES = 16 * 2**20


@dataclass
class History:
    """`columns[name][i]` is the metric at `steps[i]`, NaN where that step has no such metric.

    `nonfinite` lists (step, name, value) of metrics that were measured and were not finite. `source` is the format
    that was read; `warnings` says what could not be read.
    """

    steps: np.ndarray
    columns: dict[str, np.ndarray]
    nonfinite: list[tuple[int, str, str]] = field(default_factory=list)
    source: str = "assay"
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)

    def __contains__(self, name: str) -> bool:
        return name in self.columns and bool(np.isfinite(self.columns[name]).any())

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) where the metric was measured and finite; two empty arrays where it never was."""
        values = self.columns.get(name)
        if values is None:
            return self.steps[:0], np.zeros(0)
        known = np.isfinite(values)
        return self.steps[known], values[known]

    def last(self, name: str) -> float | None:
        _, values = self.series(name)
        return float(values[-1]) if len(values) else None

    def matching(self, prefix: str, suffix: str = "") -> list[str]:
        """Names that were measured, with this beginning and end, in order of appearance."""
        return [name for name in self.columns if name.startswith(prefix) and name.endswith(suffix) and name in self]


def from_lines(lines: Iterable[Mapping[str, Any]], source: str = "assay") -> History:
    """Merge lines by their `step` (a later line wins) into columns; values that are not numbers are left out."""
    merged: dict[int, dict[str, float]] = {}
    nonfinite: list[tuple[int, str, str]] = []
    for line in lines:
        step = int(line["step"])
        row = merged.setdefault(step, {})
        named = line.get("nonfinite")
        if isinstance(named, Mapping):
            nonfinite += [(step, str(name), str(value)) for name, value in named.items()]
        for name, value in line.items():
            if name == "step" or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if math.isfinite(value):
                row[name] = float(value)
            else:
                nonfinite.append((step, name, str(value)))
    steps = sorted(merged)
    names = dict.fromkeys(name for step in steps for name in merged[step])
    columns = {name: np.full(len(steps), np.nan) for name in names}
    for index, step in enumerate(steps):
        for name, value in merged[step].items():
            columns[name][index] = value
    return History(np.array(steps, dtype=np.int64), columns, nonfinite, source)


def read_json_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Objects of a JSONL file and warnings about what was skipped: torn or foreign lines, the middle of a huge file."""
    warnings: list[str] = []
    try:
        chunks = _ends_of(path, warnings)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    objects: list[dict[str, Any]] = []
    bad: list[int] = []
    for number, line in enumerate(raw for chunk in chunks for raw in chunk.split(b"\n")):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            bad.append(number + 1)
            continue
        if isinstance(value, dict):
            objects.append(value)
        else:
            bad.append(number + 1)
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        warnings.append(f"{path.name}: {len(bad)} line(s) are not JSON objects and were skipped (line {shown})")
    return objects, warnings


def read_metrics(path: str | Path) -> History:
    """metrics.jsonl of a run directory (or the file itself), as it is at this moment."""
    path = Path(path)
    if path.is_dir():
        path = path / "metrics.jsonl"
    if not path.exists():
        raise InputError(f"{path} does not exist; a run directory has metrics.jsonl from its first step")
    objects, warnings = read_json_lines(path)
    lines = [item for item in objects if isinstance(item.get("step"), int)]
    if len(lines) < len(objects):
        warnings.append(f"{path.name}: {len(objects) - len(lines)} line(s) without a whole-number `step` were skipped")
    history = from_lines(lines)
    history.warnings = warnings
    return history


def _ends_of(path: Path, warnings: list[str]) -> list[bytes]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= MAX_BYTES:
            return [file.read()]
        head = file.read(HEAD_BYTES)
        file.seek(size - (MAX_BYTES - HEAD_BYTES))
        tail = file.read()
    warnings.append(
        f"{path.name} has {size / 2**20:.0f} MiB: only its first {HEAD_BYTES // 2**20} and last "
        f"{(MAX_BYTES - HEAD_BYTES) // 2**20} MiB were read"
    )
    return [head[: head.rfind(b"\n") + 1], tail[tail.find(b"\n") + 1 :]]
