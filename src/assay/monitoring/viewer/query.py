"""Questions about stored rollouts, answered a step at a time so that a run of a million completions opens at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.monitoring.doctor.case import flags_of
from assay.monitoring.imports import RolloutSource
from assay.monitoring.metrics import repetition

# Everything but the token arrays, which are fetched for one completion at a time.
LIGHT = (
    "step", "group", "sample", "draw", "prompt_key", "task", "prompt", "prompt_format", "gold", "text", "messages",
    "num_tokens", "finish", "reward", "correct", "advantage", "judgements", "policy_versions", "tags",
)  # fmt: skip
SORTS = ("stored", "advantage", "length", "reward", "repetition", "mismatch")
SECONDS = 1.5


@dataclass(frozen=True)
class Filter:
    """What a group must contain to be shown: a completion with all of these. None or empty does not restrict.

    `mixed` is about the whole group. `query` looks for a text in prompt, gold or completion, without case.
    """

    step: int | None = None
    query: str = ""
    mixed: bool = False
    truncated: bool = False
    flagged: bool = False
    outcome: str = ""
    task: str = ""
    min_reward: float | None = None
    max_reward: float | None = None
    sort: str = "stored"

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise InputError(f"sort {self.sort!r} does not exist; it can be {', '.join(SORTS)}")

    def matches(self, row: Mapping[str, Any]) -> bool:
        reward = row["reward"]
        return (
            (not self.truncated or row["finish"] == "length")
            and (not self.flagged or bool(flags_of(row)))
            and (not self.task or row["task"] == self.task)
            and (not self.outcome or any(item["outcome"] == self.outcome for item in row["judgements"] or ()))
            and (self.min_reward is None or (reward is not None and reward >= self.min_reward))
            and (self.max_reward is None or (reward is not None and reward <= self.max_reward))
            and (not self.query or self._contains(row))
        )

    def _contains(self, row: Mapping[str, Any]) -> bool:
        wanted = self.query.casefold()
        return any(wanted in (row[name] or "").casefold() for name in ("text", "prompt", "gold"))


def find_groups(
    source: RolloutSource, chosen: Filter, before: int | None = None, limit: int = 20, offset: int = 0
) -> dict[str, Any]:
    """Groups that match, newest step first: {"groups", "next_before", "next_offset", "scanned"}.

    Stops after `limit` groups or about a second and a half; where more may come, `next_before` is the step to go on
    with (its groups from `next_offset` on), else both are null.
    """
    steps = source.steps()
    wanted = [step for step in steps if chosen.step in (None, step) and (before is None or step <= before)]
    found: list[dict[str, Any]] = []
    started = time.monotonic()
    for index, step in enumerate(reversed(wanted)):
        groups = list(_step_groups(source, step, chosen))
        skip = offset if index == 0 else 0
        for position, group in enumerate(groups[skip:], skip):
            if len(found) == limit:
                return {"groups": found, "next_before": step, "next_offset": position, "scanned": index + 1}
            found.append(group)
        last = index == len(wanted) - 1
        if not last and time.monotonic() - started > SECONDS:
            following = wanted[len(wanted) - 2 - index]
            return {"groups": found, "next_before": following, "next_offset": 0, "scanned": index + 1}
    return {"groups": found, "next_before": None, "next_offset": None, "scanned": len(wanted)}


def prompt_history(source: RolloutSource, key: str, limit: int = 200) -> list[dict[str, Any]]:
    """The groups of one prompt through the run, oldest first: the same prompt through time."""
    found: list[dict[str, Any]] = []
    started = time.monotonic()
    for step in reversed(source.steps()):
        if time.monotonic() - started > 4 * SECONDS or len(found) >= limit:
            break
        # One small column decides whether the file is worth opening.
        if not any(row["prompt_key"] == key for row in source.read(step, ("prompt_key",))):
            continue
        groups = _grouped(source.read(step, LIGHT))
        found += [describe(rows) for rows in groups.values() if rows[0]["prompt_key"] == key]
    return found[::-1]


def tokens_of(source: RolloutSource, step: int, group: int, sample: int) -> dict[str, Any]:
    """One completion's tokens with what is known of each: log-probs of sampler and trainer, entropy, authorship."""
    for row in source.read(step):
        if (row["group"], row["sample"]) == (group, sample):
            return {
                "token_ids": row["token_ids"] or [],
                "loss_mask": row["loss_mask"] or [],
                "sampling_logps": _finite(row["sampling_logps"]),
                "old_logps": _spread(row["old_logps"], row["loss_mask"]),
                "entropies": _spread(row["entropies"], row["loss_mask"]),
                "segment_lengths": row["segment_lengths"] or [],
            }
    raise InputError(f"step {step} has no completion {group}/{sample}")


def describe(rows: Sequence[Mapping[str, Any]], chosen: Filter | None = None) -> dict[str, Any]:
    """A group as the page shows it."""
    first = rows[0]
    return {
        **{name: first[name] for name in ("step", "group", "draw", "prompt_key", "task", "prompt_format", "gold")},
        "prompt": first["prompt"],
        "completions": [
            {
                **{name: _json_number(row[name]) for name in ("reward", "advantage")},
                **{name: row[name] for name in ("sample", "text", "num_tokens", "finish", "correct")},
                "messages": json.loads(row["messages"]) if row.get("messages") else None,
                "judgements": row["judgements"] or [],
                "versions": [span["version"] for span in row.get("policy_versions") or ()],
                "flags": flags_of(row),
                "matches": chosen is None or chosen.matches(row),
            }
            for row in rows
        ],
    }


def _step_groups(source: RolloutSource, step: int, chosen: Filter) -> Iterator[dict[str, Any]]:
    extra = {"repetition": ("token_ids",), "mismatch": ("sampling_logps", "old_logps", "loss_mask")}
    groups = _grouped(source.read(step, (*LIGHT, *extra.get(chosen.sort, ()))))
    kept = []
    for rows in groups.values():
        if chosen.mixed and len({row["reward"] for row in rows if row["reward"] is not None}) < 2:
            continue
        if any(chosen.matches(row) for row in rows):
            kept.append(rows)
    if chosen.sort != "stored":
        kept.sort(key=lambda rows: max(_rank(row, chosen.sort) for row in rows), reverse=True)
    for rows in kept:
        yield describe(rows, chosen)


def _rank(row: Mapping[str, Any], sort: str) -> float:
    if sort == "repetition":
        return repetition(np.array(row["token_ids"] or [], dtype=np.int64))
    if sort == "mismatch":
        if not row["old_logps"] or not row["sampling_logps"]:
            return 0.0
        sampled = np.array(row["sampling_logps"])[np.array(row["loss_mask"], bool)]
        gap = np.abs(sampled - np.array(row["old_logps"]))
        return float(np.nanmax(gap)) if np.isfinite(gap).any() else 0.0
    value = row["num_tokens" if sort == "length" else sort]
    return float("-inf") if value is None else abs(float(value)) if sort == "advantage" else float(value)


def _grouped(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    return groups


def _json_number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def _finite(values: Sequence[float] | None) -> list[float | None]:
    return [_json_number(value) for value in values or ()]


def _spread(values: Sequence[float] | None, mask: Sequence[bool] | None) -> list[float | None]:
    """Values of policy-authored tokens put back at their places among all tokens."""
    if values is None or mask is None:
        return []
    remaining = iter(values)
    return [_json_number(next(remaining, None)) if authored else None for authored in mask]
