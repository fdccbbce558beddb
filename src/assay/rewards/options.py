"""The `rewards:` section of a run: which functions mark a completion, and how their answers become one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from assay.errors import InputError


@dataclass(frozen=True)
class RewardSpec:
    """One reward function: a built-in name, `file.py:function`, `package.module:function`, or a callable."""

    fn: Annotated[
        str | Callable[..., Any], "Which function marks: a built-in name, file.py:function or package.module:function."
    ]
    weight: Annotated[float, "How much this function counts in the sum; 0 records it without training on it."] = 1.0
    name: Annotated[str, "The name in metrics and rollouts, where the function's own says too little."] = ""
    options: Annotated[Mapping[str, Any], "Keyword arguments of the built-in or of your function."] = field(
        default_factory=dict
    )
    batch: Annotated[
        bool, "Call once with the whole round; needed by functions that compare completions with one another."
    ] = False
    tasks: Annotated[tuple[str, ...], "Only rows whose `task` is one of these are marked; empty marks every row."] = ()
    isolation: Annotated[
        Literal["thread", "process"],
        "`process` runs your function in killable workers, for code that may hang while holding the interpreter.",
    ] = "thread"

    def __post_init__(self) -> None:
        if self.isolation == "process" and not isinstance(self.fn, str):
            raise InputError(
                f"rewards: isolation: process needs a function that another process can import (file.py:function); "
                f"got the object {self.fn!r}"
            )
        if self.weight != self.weight or self.weight in (float("inf"), float("-inf")):
            raise InputError(f"rewards: weight of {self.fn!r} is {self.weight}; use a finite number")


@dataclass(frozen=True)
class RewardOptions:
    """Every reward function of a run and the rules that combine them."""

    functions: Annotated[tuple[RewardSpec, ...], "The functions that mark a completion, in order."] = ()
    primary: Annotated[
        str, "The function whose verdict sets `correct`; by default the first that gives a verdict on the row."
    ] = ""
    correct_threshold: Annotated[
        float, "Where no function gives verdicts: the reward from which on a completion counts as correct."
    ] = 1.0
    workers: Annotated[int, "How many completions are marked at once; 0 takes the number of cores."] = 0
    sample_timeout_s: Annotated[float, "Wall-clock seconds that one function may take for one completion."] = 30.0
    round_timeout_s: Annotated[float, "Wall-clock seconds that marking a whole round may take."] = 1800.0
    on_error: Annotated[
        Literal["raise", "skip"],
        "What an exception in your function does: end the run, or leave the one completion out and count it.",
    ] = "raise"

    def __post_init__(self) -> None:
        for key in ("sample_timeout_s", "round_timeout_s"):
            if not getattr(self, key) > 0:
                raise InputError(f"rewards.{key} is {getattr(self, key)}; use a number of seconds above 0")
        if self.workers < 0:
            raise InputError(f"rewards.workers is {self.workers}; use 0 (all cores) or more")
