"""The `eval` section: how the policy is measured on prompts that it never trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from assay.errors import InputError


@dataclass(frozen=True)
class EvalOptions:
    """Held-out prompts are answered greedily (accuracy) and, with `samples` above 0, also sampled (pass rate)."""

    every: Annotated[int, "Steps between held-out evaluations; 0 leaves only the ones before and after training."] = 25
    prompts: Annotated[
        int, "Held-out prompts in an evaluation; the interval of the accuracy narrows with their square root."
    ] = 100
    samples: Annotated[int, "Sampled completions a held-out prompt for the pass rate and pass@k; 0 saves the time."] = 0
    temperature: Annotated[float, "Temperature of the sampled completions; 1 measures what training samples."] = 1.0
    top_p: Annotated[float, "Nucleus of the sampled completions; below 1 measures a deployment that truncates."] = 1.0
    max_completion_length: Annotated[int | None, "Cut-off in evaluation; by default the one of training."] = None
    best_by: Annotated[
        Literal["accuracy", "pass_rate"] | None,
        "Figure that picks the best checkpoint; by default the pass rate where it is measured, which is less noisy.",
    ] = None
    kl_to_base: Annotated[bool, "Measure the divergence from the base model, also when beta is 0; one pass more."] = (
        True
    )
    seed: Annotated[int, "Seed of the sampled completions, the same at every step so that its noise is shared."] = 1234

    def __post_init__(self) -> None:
        for name in ("every", "prompts", "samples"):
            if getattr(self, name) < 0:
                raise InputError(f"eval.{name} is {getattr(self, name)}; it must not be negative")
        if self.temperature <= 0:
            raise InputError(f"eval.temperature is {self.temperature}; it must be above 0 (accuracy is greedy anyway)")
        if not 0 < self.top_p <= 1:
            raise InputError(f"eval.top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.best_by == "pass_rate" and not self.samples:
            raise InputError("eval.best_by is pass_rate, which is measured only with eval.samples of at least 1")

    @property
    def primary(self) -> Literal["accuracy", "pass_rate"]:
        """The figure that picks the best checkpoint."""
        return self.best_by or ("pass_rate" if self.samples else "accuracy")
