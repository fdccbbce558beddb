"""The two files a run always has: metrics.jsonl (a line a step) and rollouts/step-NNNNNN.parquet (a file a step).

Writers only append whole lines or rename whole files, so a reader may look at any moment: it sees a prefix of the
run. `truncate` cuts off what came after the checkpoint that a run resumes from.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import InputError
from assay.monitoring.schema import SCHEMA, VERSION_KEY, rows_of_groups
from assay.records import Group

STEP_FILE = "step-{:06d}.parquet"


class MetricsLog:
    """metrics.jsonl: one JSON object a line with `step`, `time/unix` and metrics.

    Lines are strict JSON: a value that is not finite is written as null and its name kept under `nonfinite`
    ({"loss": "nan"}), so that any parser reads the file and nobody mistakes a NaN for a metric that was not measured.
    Held-out scores are lines of their own with the same `step`; readers merge lines by step.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: IO[bytes] | None = None

    def append(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write one line and hand it to the operating system; a SIGKILL afterwards loses nothing."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - stays open for the run
        self._file.write(encode_line(step, metrics))

    def truncate(self, after_step: int) -> None:
        """Drop every line of a step later than `after_step`, and a last line that a kill cut in half."""
        self.close()
        if not self.path.exists():
            return
        kept = self.path.with_name(self.path.name + ".tmp")
        changed = False
        with open(self.path, "rb") as source, open(kept, "wb") as target:
            for line in source:
                if line.endswith(b"\n") and _step_of(line) is not None and _step_of(line) <= after_step:  # type: ignore[operator]
                    target.write(line)
                else:
                    changed = True
            target.flush()
            os.fsync(target.fileno())
        if changed:
            os.replace(kept, self.path)
        else:
            kept.unlink()

    def sync(self) -> None:
        """Force the lines to the disk; called when a checkpoint is made, which must not outlive its metrics."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def encode_line(step: int, metrics: Mapping[str, float | None]) -> bytes:
    """One strict-JSON line.

    >>> encode_line(3, {"reward": 0.5, "loss": float("nan"), "time/unix": 1.0})
    b'{"step": 3, "reward": 0.5, "loss": null, "time/unix": 1.0, "nonfinite": {"loss": "nan"}}\\n'
    """
    line: dict[str, Any] = {"step": step}
    nonfinite: dict[str, str] = {}
    for name, value in metrics.items():
        if value is None:
            continue
        number = float(value)
        line[name] = number if math.isfinite(number) else None
        if not math.isfinite(number):
            nonfinite[name] = str(number)
    line.setdefault("time/unix", round(time.time(), 3))
    if nonfinite:
        line["nonfinite"] = nonfinite
    return json.dumps(line, allow_nan=False).encode() + b"\n"


class RolloutStore:
    """rollouts/step-000123.parquet: every completion of step 123, a row each (`schema.SCHEMA`), written atomically."""

    def __init__(self, directory: str | Path, gold_field: str = "") -> None:
        self.directory = Path(directory)
        self.gold_field = gold_field

    def write(self, step: int, groups: Sequence[Group]) -> Path:
        """Store the step's groups; a file is either whole or absent."""
        self.directory.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(rows_of_groups(step, groups, self.gold_field), schema=SCHEMA)
        path = self.directory / STEP_FILE.format(step)
        partial = path.with_suffix(f".tmp{os.getpid()}")
        # A run is read by people, once or twice: small files matter more than the last bit of write speed.
        pq.write_table(table, partial, compression="zstd", row_group_size=1024)
        os.replace(partial, path)
        return path

    def steps(self) -> list[int]:
        """Steps that have a file, ascending."""
        if not self.directory.is_dir():
            return []
        names = (entry.name for entry in os.scandir(self.directory))
        return sorted(int(name[5:-8]) for name in names if name.startswith("step-") and name.endswith(".parquet"))

    def read(self, step: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The step's rows in the order they were written, as dictionaries by the schema's names."""
        path = self.directory / STEP_FILE.format(step)
        try:
            table = pq.read_table(path, columns=list(columns) if columns is not None else None)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path} cannot be read as parquet: {error}") from None
        if VERSION_KEY not in (table.schema.metadata or {}):
            raise InputError(f"{path} is parquet, but not a rollout file of assay (no {VERSION_KEY.decode()} in it)")
        return table.to_pylist()

    def iterate(self, columns: Sequence[str] | None = None) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """(step, rows) in order, one file in memory at a time."""
        for step in self.steps():
            yield step, self.read(step, columns)

    def truncate(self, after_step: int) -> None:
        """Remove the files of steps later than `after_step`, and what a killed writer left half-written."""
        for step in self.steps():
            if step > after_step:
                (self.directory / STEP_FILE.format(step)).unlink()
        for partial in self.directory.glob("step-*.tmp*"):
            partial.unlink()


def _step_of(line: bytes) -> int | None:
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return int(step)
