"""A curriculum over rewards: weights and limits that change with the step, such as a format reward that fades."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from assay.errors import InputError

# progress in [0, 1] -> how far the value has moved from `start` to `end`
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,
    "cosine": lambda progress: (1 - math.cos(math.pi * progress)) / 2,
    "jump": lambda progress: float(progress >= 1),
}


@dataclass(frozen=True)
class Schedule:
    """A number that goes from `start` to `end` between two steps and is constant before and after.

    A function of the step alone, so there is nothing to checkpoint.

    >>> fade = Schedule(start=1.0, end=0.2, from_step=100, to_step=300)
    >>> [round(fade.at(step), 3) for step in (0, 100, 200, 300, 900)]
    [1.0, 1.0, 0.6, 0.2, 0.2]
    """

    start: Annotated[float, "Value before and at from_step."]
    end: Annotated[float, "Value from to_step on."]
    to_step: Annotated[int, "Step at which the end value is reached."]
    from_step: Annotated[int, "Step at which the change begins."] = 0
    shape: Annotated[Literal["linear", "cosine", "jump"], "How the value moves; jump changes at to_step at once."] = (
        "linear"
    )

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise InputError(f"schedule shape {self.shape!r} does not exist; known are {', '.join(SHAPES)}")
        if not 0 <= self.from_step < self.to_step:
            raise InputError(
                f"schedule goes from step {self.from_step} to step {self.to_step}; it must start at 0 or later"
            )

    def at(self, step: int) -> float:
        progress = min(max((step - self.from_step) / (self.to_step - self.from_step), 0.0), 1.0)
        return self.start + (self.end - self.start) * SHAPES[self.shape](progress)


@dataclass(frozen=True)
class RewardCurriculum:
    """Scheduled reward weights (by reward name) and limits (by name, such as max_completion_length)."""

    weights: Mapping[str, Schedule]
    limits: Mapping[str, Schedule]

    def weights_at(self, step: int) -> dict[str, float]:
        """Weights that apply at `step`, for the rewards that have a schedule."""
        return {name: schedule.at(step) for name, schedule in self.weights.items()}

    def limits_at(self, step: int) -> dict[str, int]:
        """Limits at `step`, rounded down to whole tokens."""
        return {name: math.floor(schedule.at(step)) for name, schedule in self.limits.items()}

    def metrics(self, step: int) -> dict[str, float]:
        weights = {f"curriculum/weight/{name}": value for name, value in self.weights_at(step).items()}
        return weights | {f"curriculum/{name}": float(value) for name, value in self.limits_at(step).items()}


LIMITS = ("max_completion_length",)


def reward_curriculum(
    weights: Mapping[str, Mapping[str, Any]], limits: Mapping[str, Mapping[str, Any]], rewards: list[str]
) -> RewardCurriculum:
    """From the plain `curriculum.reward_weights` (names among `rewards`) and `curriculum.limits`."""
    for key, given, known in (("reward_weights", weights, rewards), ("limits", limits, list(LIMITS))):
        for name in given:
            if name not in known:
                raise InputError(
                    f"curriculum.{key}.{name} has a schedule, but there is none of that name; known: {', '.join(known)}"
                )
    return RewardCurriculum(
        {name: as_schedule(f"curriculum.reward_weights.{name}", item) for name, item in weights.items()},
        {name: as_schedule(f"curriculum.limits.{name}", item) for name, item in limits.items()},
    )


def as_schedule(where: str, item: Mapping[str, Any]) -> Schedule:
    """A schedule from a mapping with its keys; an unknown or missing key is an InputError that names it."""
    known = [entry.name for entry in fields(Schedule)]
    for key in item:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise InputError(
                f"unknown key {where}.{key}; "
                + (f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}")
            )
    missing = [name for name in ("start", "end", "to_step") if name not in item]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}; a schedule needs start, end and to_step")
    try:
        return Schedule(**item)
    except TypeError as error:
        raise InputError(f"{where}: {error}") from error
