"""The `eval` section: how the policy is measured on prompts that it never trains on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from assay.errors import InputError
from assay.prompts.options import SourceOptions, mixture_source
from assay.rewards.options import RewardSpec


@dataclass(frozen=True)
class EvalOptions:
    """Held-out prompts are answered greedily (accuracy) and, with `samples` above 0, also sampled (pass rate)."""

    every: Annotated[
        int, "Steps between held-out evaluations (at the end of a round); 0 leaves the ones before and after."
    ] = 25
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
    rewards: Annotated[
        tuple[RewardSpec, ...],
        "Functions that mark held-out answers, written like `rewards`; by default the training's, which it may game.",
    ] = ()
    forgetting: Annotated[
        Mapping[str, Any] | None,
        "General prompts that show forgetting: the keys of `data`, and `rewards` and `prompts` of their own.",
    ] = None
    kl_to_base: Annotated[
        bool | None,
        "Measure the divergence from the base model; by default where it costs a pass only (LoRA, or a fixed KL "
        "reference). The KL itself needs samples of 1 or more. true keeps a copy for full fine-tuning: 4 bytes a "
        "parameter, on model.reference_device.",
    ] = None
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

        if self.forgetting is not None:
            ForgettingSet.read(self.forgetting)

    @property
    def primary(self) -> Literal["accuracy", "pass_rate"]:
        """The figure that picks the best checkpoint."""
        return self.best_by or ("pass_rate" if self.samples else "accuracy")


@dataclass(frozen=True)
class ForgettingSet:
    """What `eval.forgetting` says: a source of prompts, how many of them, and what marks the answers, if anything."""

    source: Mapping[str, Any]
    prompts: int
    rewards: tuple[RewardSpec, ...]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> ForgettingSet:
        """Raises InputError for a key that neither `data` nor this section has, and for a value out of range."""
        source = {
            "heldout_size": 0,
            **{key: value for key, value in given.items() if key not in ("prompts", "rewards")},
        }
        shared = {name: getattr(SourceOptions(), name) for name in SourceOptions.__dataclass_fields__}
        try:
            mixture_source(shared, 0, source)
        except InputError as error:
            raise InputError(f"eval.forgetting: {str(error).replace('data.mixture[0].', '')}") from error
        prompts = given.get("prompts", 100)
        if not isinstance(prompts, int) or prompts < 1:
            raise InputError(f"eval.forgetting.prompts is {prompts!r}; it must be at least 1")
        listed = given.get("rewards", ())
        listed = [listed] if isinstance(listed, str) else listed
        rewards = tuple(RewardSpec(**item) if isinstance(item, Mapping) else RewardSpec(item) for item in listed)
        return cls(source, prompts, rewards)
