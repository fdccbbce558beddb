"""TRL's calling contract: the keyword arguments a reward function gets, and the check of what it returns.

Source: the reward-function contract of TRL 1.16 (GRPOTrainer): keyword arguments prompts, completions, completion_ids,
trainer_state, log_extra, log_metric and every dataset column except prompt; list[float | None] comes back.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.errors import InputError
from assay.records import Completion, Group, Judgement, Outcome

RESERVED = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
NOT_PASSED = ("prompt", "completion", *RESERVED)


class RewardError(InputError):
    """A reward function broke the contract: says which function, which completion, which value."""


@dataclass(frozen=True)
class Sample:
    """One completion with the group that it belongs to and its index in that group."""

    group: Group
    index: int

    @property
    def completion(self) -> Completion:
        return self.group.completions[self.index]

    @property
    def label(self) -> str:
        """How error messages name the row."""
        key = self.group.prompt.content_key or str(self.group.prompt.content)[:40]
        return f"completion {self.index} of prompt {key!r}"


@dataclass
class Logged:
    """What one call logged beside its rewards; applied to completions and metrics when its turn comes."""

    extra: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)


def samples_of(groups: Sequence[Group]) -> list[Sample]:
    return [Sample(group, index) for group in groups for index in range(len(group.completions))]


def arguments(samples: Sequence[Sample], trainer_state: Any, logged: Logged) -> dict[str, Any]:
    """Every keyword argument of one call over `samples`."""
    names = {column for sample in samples for column in sample.group.prompt.row}
    if clash := names & set(RESERVED):
        raise InputError(
            f"the dataset has a column {min(clash)!r}, which reward functions receive from the trainer; rename it"
        )
    columns = {
        name: [sample.group.prompt.row.get(name) for sample in samples] for name in sorted(names - set(NOT_PASSED))
    }
    return {
        **columns,
        "prompts": [sample.group.prompt.content for sample in samples],
        "completions": [sample.completion.content for sample in samples],
        "completion_ids": [token_ids(sample.completion) for sample in samples],
        "trainer_state": trainer_state,
        "log_extra": lambda column, values: logged.extra.__setitem__(column, [plain(value) for value in values]),
        "log_metric": lambda name, value: logged.metrics.setdefault(name, []).append(float(value)),
    }


def token_ids(completion: Completion) -> list[int]:
    """The trajectory's tokens as plain integers, end-of-sequence included."""
    return [int(token) for segment in completion.segments for token in segment.token_ids]


def accepted(fn: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments that `fn` can take: all of them where it has **kwargs, as TRL asks for."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return keywords
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in parameters}


def check_rewards(name: str, returned: Any, samples: Sequence[Sample]) -> list[Judgement]:
    """Turn what a function returned into judgements, or raise RewardError naming function, row and value."""
    if isinstance(returned, (str, bytes, dict)) or not hasattr(returned, "__len__"):
        raise RewardError(
            f"reward function {name!r} returned {short(returned)}; return a list of one number per completion"
        )
    values = list(returned)
    if len(values) != len(samples):
        raise RewardError(
            f"reward function {name!r} returned {len(values)} rewards for {len(samples)} completions "
            f"(from {samples[0].label} on)"
        )
    return [check_reward(name, value, sample, row) for row, (value, sample) in enumerate(zip(values, samples))]


def check_reward(name: str, value: Any, sample: Sample, row: int) -> Judgement:
    """One returned value: None does not apply, a number is a score, a Judgement stays what it is."""
    if isinstance(value, Judgement):
        return value if value.reward is None else replace(value, reward=number(name, value.reward, sample, row))
    if value is None:
        return Judgement(Outcome.NOT_APPLICABLE)
    return Judgement(Outcome.SCORED, number(name, value, sample, row))


def number(name: str, value: Any, sample: Sample, row: int) -> float:
    """A reward as Python's own number; RewardError where it is none."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", None) is not None:
        value = item() if is_scalar(value) else value
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise RewardError(
            f"reward function {name!r} returned {short(value)} at row {row} ({sample.label}); "
            "return a finite number, or None where it does not apply"
        )
    return float(value)


def is_scalar(value: Any) -> bool:
    """Whether a numpy or torch value holds exactly one number."""
    numel = getattr(value, "numel", None)
    return (numel() if callable(numel) else value.size) == 1


def check_extra(name: str, logged: Logged, count: int) -> None:
    for column, values in logged.extra.items():
        if len(values) != count:
            raise RewardError(
                f"reward function {name!r}: log_extra({column!r}) got {len(values)} values for {count} completions"
            )


def plain(value: Any) -> Any:
    """numpy's and torch's values as Python's own: what a function logs must fit into checkpoints and rollouts.

    >>> from pathlib import Path; import numpy as np
    >>> plain({"lengths": np.arange(2), "kinds": {"b", "a"}, "path": Path("x")})
    {'lengths': [0, 1], 'kinds': ['a', 'b'], 'path': 'x'}
    """
    if hasattr(value, "tolist"):
        listed = value.tolist()
        return plain(listed) if isinstance(listed, list) else listed
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return None if value is None else str(value)


def short(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
