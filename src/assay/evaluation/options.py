"""The `eval` section: how the policy is measured on prompts that it never trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from assay.errors import InputError


@dataclass(frozen=True)
class EvalOptions:
    """Held-out prompts are answered greedily (accuracy) and, with `samples` above 0, sampled as in training (pass rate)."""

    every: Annotated[int, "Steps between held-out evaluations; 0 leaves only the ones before and after training."] = 25
    prompts: Annotated[int, "Held-out prompts in an evaluation; the interval of the accuracy narrows with their square root."] = 100
    samples: Annotated[int, "Sampled completions a held-out prompt for the pass rate; 0 saves the time."] = 0
    max_completion_length: Annotated[int | None, "Cut-off in evaluation; by default the one of training."] = None

    def __post_init__(self) -> None:
        for name in ("every", "prompts", "samples"):
            if getattr(self, name) < 0:
                raise InputError(f"eval.{name} is {getattr(self, name)}; it must not be negative")
