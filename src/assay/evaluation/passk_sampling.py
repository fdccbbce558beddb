"""Many samples a problem, kept in small files: a killed job goes on where it was, and several machines share one.

A unit of work is 16 samples of 8 problems. Which random numbers a unit uses depends on the unit alone, so the result
does not depend on shards, interruptions or order, and asking for more samples later keeps those that exist.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import InputError
from assay.evaluation.heldout import Scores, unique_keys
from assay.records import Group, Prompt
from assay.training.rundir import write_whole

PROBLEMS, SAMPLES = 8, 16
# (prompts, n, seed) -> one group of n completions a prompt, in order, with text.
Draw = Callable[[Sequence[Prompt], int, int], list[Group]]
SCHEMA = pa.schema(
    [
        ("problem", pa.string()),
        ("sample", pa.int32()),
        ("correct", pa.bool_()),
        ("reward", pa.float64()),
        ("num_tokens", pa.int32()),
        ("finish", pa.string()),
        ("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class Unit:
    """Samples [first_sample, first_sample + samples) of problems [first, first + problems)."""

    first: int
    problems: int
    first_sample: int
    samples: int

    @property
    def file(self) -> str:
        return f"samples-p{self.first:05d}-s{self.first_sample:05d}-n{self.samples:02d}.parquet"

    def seed(self, run_seed: int) -> int:
        """A seed of its own for every block of samples of every block of problems, whatever n is; below 2^40."""
        return int.from_bytes(
            hashlib.sha256(f"{run_seed}/{self.first}/{self.first_sample}".encode()).digest()[:5], "big"
        )


@dataclass(frozen=True)
class Tally:
    """Judged samples n [P] and right ones c [P] of problems `keys`, and samples that got no verdict."""

    keys: tuple[str, ...]
    n: np.ndarray
    c: np.ndarray
    unjudged: int


def units(problems: int, n: int) -> list[Unit]:
    """All work for `n` samples of each problem, early samples of all problems first."""
    cells = [(sample, first) for sample in range(0, n, SAMPLES) for first in range(0, problems, PROBLEMS)]
    return [Unit(first, min(PROBLEMS, problems - first), sample, min(SAMPLES, n - sample)) for sample, first in cells]


def sample_all(
    draw: Draw,
    scorer: Scores,
    prompts: Sequence[Prompt],
    n: int,
    folder: str | Path,
    *,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    settings: Mapping[str, Any] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Draw and mark what is missing of shard (index, count), a file a unit, each written whole or not at all; `tick` is
    called once for each unit.

    `settings` (model, sampling) are stored in the folder; InputError where the folder holds samples of other settings,
    prompts or seed, or the shard does not exist.
    """
    index, count = shard
    if not 0 <= index < count or n < 1:
        raise InputError(
            f"shard {index} of {count} with {n} samples: shards count from 0, and a problem needs a sample"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    keys = unique_keys(prompts)
    _check_settings(folder / "settings.json", {"seed": seed, "problems": list(keys), **(settings or {})})
    for unit in units(len(prompts), n)[index::count]:
        if not (folder / unit.file).exists():
            chosen = slice(unit.first, unit.first + unit.problems)
            groups = draw(prompts[chosen], unit.samples, unit.seed(seed))
            scorer.score(groups, None)
            _write(folder / unit.file, keys[chosen], groups, unit)
        tick()


def tally(folder: str | Path, n: int) -> Tally:
    """Count `n` samples a problem from the folder. Raises InputError where units are missing, saying how many."""
    folder = Path(folder)
    try:
        keys = tuple(json.loads((folder / "settings.json").read_text())["problems"])
    except FileNotFoundError:
        raise InputError(f"{folder} holds no pass@k samples") from None
    wanted = units(len(keys), n)
    missing = [unit for unit in wanted if not (folder / unit.file).exists()]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of {len(wanted)} sample files are missing, for example {missing[0].file}; "
            "run the remaining shards, or the same command again"
        )
    place = {key: index for index, key in enumerate(keys)}
    judged, right, unjudged = np.zeros(len(keys), int), np.zeros(len(keys), int), 0
    for unit in wanted:
        for row in pq.read_table(folder / unit.file, columns=["problem", "correct"]).to_pylist():
            unjudged += row["correct"] is None
            judged[place[row["problem"]]] += row["correct"] is not None
            right[place[row["problem"]]] += row["correct"] is True
    return Tally(keys, judged, right, unjudged)


def _write(path: Path, keys: Sequence[str], groups: Sequence[Group], unit: Unit) -> None:
    rows = [
        {
            "problem": key,
            "sample": unit.first_sample + number,
            "correct": completion.correct,
            "reward": completion.reward,
            "num_tokens": completion.num_tokens,
            "finish": str(completion.finish),
            "text": completion.text,
        }
        for key, group in zip(keys, groups, strict=True)
        for number, completion in enumerate(group.completions)
    ]
    if len(rows) != unit.problems * unit.samples:
        raise InputError(
            f"the sampler returned {len(rows)} completions where {unit.problems * unit.samples} were asked for"
        )
    partial = path.with_name(f".{path.name}.tmp{os.getpid()}")
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), partial, compression="zstd")
    os.replace(partial, path)


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Store the settings, or raise InputError where the folder was begun with others."""
    if not path.exists():
        write_whole(path, json.dumps(settings, indent=1) + "\n")
        return
    stored = json.loads(path.read_text())
    now = json.loads(json.dumps(settings))
    for key in {**stored, **now}:
        if stored.get(key) != now.get(key):
            was, is_ = (str(value)[:80] for value in (stored.get(key), now.get(key)))
            raise InputError(f"{path.parent} was begun with {key} = {was}, now {is_}; give another --output")
