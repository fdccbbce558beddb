"""Rollouts that other trainers stored, read as rows of our schema: TRL's completions parquet, verl's rollout JSONL."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import InputError
from assay.monitoring.history import read_json_lines
from assay.monitoring.schema import SCHEMA, gold_of
from assay.records import Outcome, content_key

EMPTY_ROW: dict[str, Any] = {name: None for name in SCHEMA.names}
TRL_COLUMNS = {"step", "prompt", "completion", "advantage"}
VERL_COLUMNS = {"input", "output", "gts", "score", "step", "acc"}


class RolloutSource(Protocol):
    """Steps that have rollouts, and the rows of one step by the names of `schema.SCHEMA`."""

    def steps(self) -> list[int]: ...

    def read(self, step: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]: ...


def foreign_rollouts(directory: Path) -> RolloutSource | None:
    """TRL's <output>/completions/*.parquet or verl's <dump>/<step>.jsonl, if the directory has either."""
    for place in (directory / "completions", directory):
        if any(place.glob("completions_*.parquet")):
            return TrlRollouts(place)
    for place in (directory, directory / "rollouts", directory / "rollout_data"):
        if any(file.stem.isdigit() for file in place.glob("*.jsonl")):
            return VerlRollouts(place)
    return None


class TrlRollouts:
    """TRL writes one parquet a logging step; rows of a group are adjacent, one column a reward function."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = {_number(file): file for file in directory.glob("completions_*.parquet")}

    def steps(self) -> list[int]:
        return sorted(self._files)

    def read(self, step: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        try:
            raw = pq.read_table(self._files[step]).to_pylist()
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            raise InputError(f"{self.directory}: step {step} cannot be read as parquet: {error}") from None
        rows = []
        for row, (group, sample) in zip(raw, _adjacent([_plain(item.get("prompt")) for item in raw])):
            rewards = {
                name: value
                for name, value in row.items()
                if name not in TRL_COLUMNS and isinstance(value, (int, float)) and not isinstance(value, bool)
            }
            rows.append(
                _row(
                    step=step,
                    group=group,
                    sample=sample,
                    prompt=_plain(row.get("prompt")),
                    text=_plain(row.get("completion")),
                    rewards=rewards,
                    advantage=row.get("advantage"),
                    extra={name: value for name, value in row.items() if name not in TRL_COLUMNS | set(rewards)},
                )
            )
        return rows


class VerlRollouts:
    """verl writes <step>.jsonl with input, output, gts, score and whatever the reward function returned."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = {int(file.stem): file for file in directory.glob("*.jsonl") if file.stem.isdigit()}
        self._read = lru_cache(maxsize=4)(self._rows)

    def steps(self) -> list[int]:
        return sorted(self._files)

    def read(self, step: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        return self._read(step)

    def _rows(self, step: int) -> list[dict[str, Any]]:
        if step not in self._files:
            raise InputError(f"{self.directory} has no rollouts of step {step}")
        raw, _ = read_json_lines(self._files[step])
        # verl balances rows over its workers, so a group is what shares a prompt, wherever it stands.
        rows = []
        for row, (group, sample) in zip(raw, _positions([_plain(item.get("input")) for item in raw])):
            rows.append(
                _row(
                    step=step,
                    group=group,
                    sample=sample,
                    prompt=_plain(row.get("input")),
                    text=_plain(row.get("output")),
                    rewards={"score": row.get("score")},
                    advantage=None,
                    gold=_plain(row["gts"]) if row.get("gts") is not None else None,
                    correct=bool(row["acc"]) if isinstance(row.get("acc"), (bool, int, float)) else None,
                    extra={name: value for name, value in row.items() if name not in VERL_COLUMNS},
                )
            )
        return sorted(rows, key=lambda item: (item["group"], item["sample"]))


def _row(
    *,
    rewards: dict[str, Any],
    prompt: str,
    extra: dict[str, Any],
    gold: str | None = None,
    correct: bool | None = None,
    **known: Any,
) -> dict[str, Any]:
    scored = {name: float(value) for name, value in rewards.items() if value is not None and value == value}
    return {
        **EMPTY_ROW,
        **known,
        "prompt": prompt,
        "prompt_format": "text",
        "prompt_key": content_key(prompt),
        "task": "default",
        "reward": sum(scored.values()) if scored else None,
        "correct": correct,
        "gold": gold if gold is not None else gold_of(extra),
        "row": json.dumps(extra, default=str),
        "judgements": [
            {
                "name": name,
                "outcome": str(Outcome.SCORED if name in scored else Outcome.NOT_APPLICABLE),
                "reward": scored.get(name),
                "extracted": None,
                "span_start": None,
                "span_end": None,
                "detail": "",
            }
            for name in rewards
        ],
        "tags": "{}",
    }


def _adjacent(prompts: Sequence[str]) -> list[tuple[int, int]]:
    """(group, sample) of each row: neighbours with one prompt are a group, as they were for the advantages."""
    places: list[tuple[int, int]] = []
    for index, prompt in enumerate(prompts):
        group, sample = places[-1] if places else (-1, 0)
        places.append((group, sample + 1) if index and prompt == prompts[index - 1] else (group + 1, 0))
    return places


def _positions(prompts: Sequence[str]) -> list[tuple[int, int]]:
    """(group, sample) of each row: rows with one prompt are a group, numbered by first appearance."""
    groups: dict[str, int] = {}
    seen: dict[int, int] = {}
    places = []
    for prompt in prompts:
        group = groups.setdefault(prompt, len(groups))
        places.append((group, seen.get(group, 0)))
        seen[group] = seen.get(group, 0) + 1
    return places


def _plain(value: Any) -> str:
    """Text of a prompt or completion that may be a string or a list of messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return "\n".join(str(item.get("content", "")) for item in value)
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _number(file: Path) -> int:
    found = re.search(r"(\d+)$", file.stem)
    return int(found.group(1)) if found else 0
