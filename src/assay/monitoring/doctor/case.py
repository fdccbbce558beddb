"""A run as the rules see it: pooled rates, trends and baselines over agreed windows, with refusal built in.

A rule asks for what it needs; what is missing stops the rule with `NotCheckable`, what is too short with `TooEarly`.
So a rule is only its condition, and silence is never mistaken for health.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from assay.monitoring.doctor.statistics import Rate, Trend, trend, wilson
from assay.monitoring.doctor.thresholds import Thresholds
from assay.monitoring.history import History
from assay.monitoring.sources import Run

# Names under which a score on prompts that are never trained on appears.
HELDOUT = ("heldout/accuracy", "heldout/pass_rate", "heldout/reward")
ROLLOUT_COLUMNS = (
    "step", "group", "sample", "prompt_key", "prompt", "text", "num_tokens", "finish", "reward", "correct", "tags",
)  # fmt: skip


class NotCheckable(Exception):
    """The run lacks something; the message names it."""


class TooEarly(Exception):
    """The run is too short; the message says what is needed."""


@dataclass
class Case:
    """`run` with the windows and questions that rules share. `now` (seconds since 1970) is for stalls of live runs."""

    run: Run
    thresholds: Thresholds = field(default_factory=Thresholds)
    now: float | None = None

    @property
    def history(self) -> History:
        return self.run.history

    def has(self, *names: str) -> bool:
        return all(name in self.history for name in names)

    def first_of(self, *names: str) -> str:
        """The first of these metrics that the run has."""
        for name in names:
            if name in self.history:
                return name
        raise NotCheckable(f"needs metric {' or '.join(names)}")

    def fact(self, name: str, default: Any = None) -> Any:
        """A value of the run's configuration by its last name, such as `num_generations`."""
        return self.run.facts.get(name, default)

    def window(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of the recent window: the last `window_share` of the run, at least `window_steps`.

        A run too short for that is judged by its second half, so that what its first steps had is not held against it.
        """
        steps, values = self.history.series(self.first_of(name))
        least = max(5, min(self.thresholds.window_steps, (len(steps) + 1) // 2))
        size = max(least, int(len(steps) * self.thresholds.window_share))
        return steps[-size:], values[-size:]

    def span(self, name: str) -> tuple[int, int]:
        steps, _ = self.window(name)
        return int(steps[0]), int(steps[-1])

    def recent(self, name: str) -> float:
        """Median over the recent window."""
        return float(np.median(self.window(name)[1]))

    def early(self, name: str) -> float:
        """Median of the run's first 5%, at least five values: the run's own baseline."""
        _, values = self.history.series(self.first_of(name))
        if len(values) < 10:
            raise TooEarly(f"needs 10 steps with {name}, has {len(values)}")
        return float(np.median(values[: max(5, len(values) // 20)]))

    def rate(self, name: str, count: str = "completions/count", whole: bool = False) -> Rate:
        """The share pooled over the recent window (or the whole run), weighted by trials where they were logged."""
        steps, values = self.history.series(self.first_of(name)) if whole else self.window(name)
        trials = self._counts(count, steps)
        return wilson(float(np.clip(values, 0, 1) @ trials), float(trials.sum()))

    def rate_early(self, name: str, count: str = "completions/count") -> Rate:
        """The share pooled over the run's first 20%, at least ten values."""
        steps, values = self.history.series(self.first_of(name))
        size = max(10, len(values) // 5)
        trials = self._counts(count, steps[:size])
        return wilson(float(np.clip(values[:size], 0, 1) @ trials), float(trials.sum()))

    def groups_seen(self, name: str) -> float:
        """Groups in the recent window; where the log does not say, what the configuration implies, or 1 a step."""
        return float(self._counts("groups/count", self.window(name)[0]).sum())

    def trend(self, name: str, whole: bool = False, share: float | None = None, points: int | None = None) -> Trend:
        """Trend over the whole run or its last `share`; TooEarly below `trend_steps` (or `points`) values."""
        steps, values = self.history.series(self.first_of(name))
        needed = points or self.thresholds.trend_steps
        if len(steps) < needed:
            raise TooEarly(f"a trend of {name} needs {needed} values, has {len(steps)}")
        if not whole:
            size = max(needed, int(len(steps) * (share or self.thresholds.window_share)))
            steps, values = steps[-size:], values[-size:]
        return trend(steps, values)

    @cached_property
    def heldout(self) -> str | None:
        """The held-out score, if there is one."""
        return next((name for name in HELDOUT if name in self.history), None)

    def heldout_trend(self) -> Trend | None:
        """Trend of the held-out score over the whole run; None without one or below four evaluations."""
        if self.heldout is None or len(self.history.series(self.heldout)[0]) < 4:
            return None
        return trend(*self.history.series(self.heldout))

    def outcome_rises(self) -> bool:
        """Whether what the run is for still improves: held-out where measured, else accuracy or reward."""
        found = self.heldout_trend()
        if found is not None and found.points >= 6:
            # Few points: a lower bar for significance than a trend over steps.
            return found.rises(0.0, p=0.05)
        name = self.first_of("accuracy", "reward")
        return self.trend(name, whole=True).rises(0.02)

    def outcome_falls(self) -> bool:
        found = self.heldout_trend()
        if found is not None and found.falls(0.0, p=0.05):
            return True
        name = self.first_of("accuracy", "reward")
        return self.trend(name, share=0.5).falls(0.02)

    def heldout_rises(self) -> bool:
        found = self.heldout_trend()
        return found is not None and found.rises(0.0, p=0.05)

    def heldout_flat(self) -> bool:
        """Whether there is a held-out score and it does not rise."""
        return self.heldout_trend() is not None and not self.heldout_rises()

    def is_uniform(self) -> bool:
        """Whether no group of the recent window differs inside, by whichever metric says so."""
        name = self.first_of("frac_reward_zero_std", "reward_std")
        values = self.window(name)[1]
        return bool((values == 1).all() if name == "frac_reward_zero_std" else (values == 0).all())

    def group_size(self) -> float | None:
        """Completions a prompt, from the configuration or from the counts that were logged."""
        known = self.fact("num_generations")
        if known is None and self.has("completions/count", "groups/count"):
            known = self.recent("completions/count") / self.recent("groups/count")
        return float(known) if known else None

    def need_several(self) -> None:
        """Raise NotCheckable where groups have one answer (A*-PO) or are cut short: that they are alike says little."""
        if self.group_size() == 1:
            raise NotCheckable("needs several completions a prompt")
        if self.fact("screen"):
            raise NotCheckable("needs whole groups; refill.screen stops those that are alike after a few completions")

    def too_small_groups(self) -> bool:
        """Whether chance alone makes most groups uniform at this success rate, and eight completions would not."""
        size = self.group_size()
        name = self.first_of("accuracy", "reward")
        success = self.recent(name)
        if size is None or not 0 < success < 1:
            return False
        uniform = success**size + (1 - success) ** size
        return uniform > self.thresholds.uniform_warning and success**8 + (1 - success) ** 8 < 0.35

    def unparsable(self) -> Rate | None:
        """Share of answers in which the verifier found none; of the function that finds least, if there are several."""
        rates = [self.rate(name) for name in self.history.matching("verifier/unparsable_frac")]
        return max(rates, key=lambda rate: rate.value, default=None)

    def gives_verdicts(self) -> bool:
        """Whether a reward function says correct, wrong or unparsable; a plain number cannot say "unparsable".

        True where no rollouts are stored that could tell.
        """
        steps = self.run.rollouts.steps() if self.run.rollouts else []
        rows = self.run.rollouts.read(steps[-1], ("judgements",)) if self.run.rollouts and steps else []
        outcomes = {judgement["outcome"] for row in rows for judgement in row["judgements"] or ()}
        return not outcomes or bool(outcomes & {"correct", "wrong", "unparsable"})

    def need_groups(self, name: str, steps: int = 10) -> None:
        """TooEarly unless the recent window of a metric holds enough groups, or `steps` steps of unknown size."""
        seen = self.groups_seen(name)
        if seen < self.thresholds.groups_needed and len(self.window(name)[1]) < steps:
            raise TooEarly(f"needs {self.thresholds.groups_needed} groups, has {seen:.0f}")

    def constant_from_start(self, function: str) -> bool:
        """Whether a reward function (or `reward`) has had one value since the first step."""
        name = "reward" if function == "reward" else f"rewards/{function}/mean"
        return bool(np.ptp(self.history.series(name)[1]) == 0)

    def early_saturated(self, function: str) -> bool:
        """Whether a reward function already stood at its present level in the run's first steps."""
        name = f"rewards/{function}/mean"
        return self.early(name) > 0.9 * self.recent(name)

    def functions(self) -> list[str]:
        """Names of reward functions that were logged."""
        return [name[len("rewards/") : -len("/mean")] for name in self.history.matching("rewards/", "/mean")]

    @cached_property
    def rollouts(self) -> list[Mapping[str, Any]]:
        """Rows of the last steps that have rollouts, newest last; NotCheckable where the run stored none."""
        if self.run.rollouts is None:
            raise NotCheckable("needs rollouts (monitoring.rollouts_every=1 keeps them)")
        rows: list[Mapping[str, Any]] = []
        for step in reversed(self.run.rollouts.steps()):
            rows = self.run.rollouts.read(step, ROLLOUT_COLUMNS) + rows
            if len(rows) >= self.thresholds.rollouts_read:
                break
        if not rows:
            raise NotCheckable("needs rollouts (the run has none yet)")
        return rows

    def groups(self) -> dict[tuple[int, int], list[Mapping[str, Any]]]:
        """The rows of `rollouts` by (step, group)."""
        found: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
        for row in self.rollouts:
            found.setdefault((row["step"], row["group"]), []).append(row)
        return found

    def newest_rollouts(self) -> tuple[str, ...]:
        """Ids to open where any rollout shows the fault; empty where none are stored."""
        try:
            return self.pick(self.rollouts, 3)
        except NotCheckable:
            return ()

    def pick(self, rows: Sequence[Mapping[str, Any]], limit: int = 5) -> tuple[str, ...]:
        """Ids of a few rows, the newest first."""
        return tuple(rollout_id(row) for row in list(reversed(rows))[:limit])

    def _counts(self, name: str, steps: np.ndarray) -> np.ndarray:
        values = self.history.columns.get(name)
        implied = 1.0
        if name == "completions/count":
            implied = max(1.0, float(self.fact("num_generations") or 1) * float(self.fact("prompts_per_step") or 1))
        elif name == "groups/count":
            implied = max(1.0, float(self.fact("prompts_per_step") or 1))
        if values is None:
            return np.full(len(steps), implied)
        place = np.searchsorted(self.history.steps, steps)
        found = values[place]
        return np.where(np.isfinite(found), found, implied)


def rollout_id(row: Mapping[str, Any]) -> str:
    return f"{row['step']}/{row['group']}/{row['sample']}"


def flags_of(row: Mapping[str, Any]) -> list[str]:
    """Names that the tampering detector attached to the completion."""
    tags = row.get("tags")
    if not tags:
        return []
    found = json.loads(tags).get("flags", []) if isinstance(tags, str) else tags.get("flags", [])
    return [str(flag) for flag in found]
