"""The `train` section: how much to train, how fast, and what to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from assay.errors import InputError

FULL_LEARNING_RATE = 1e-6
LORA_LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class TrainOptions:
    """A step is one optimiser update on `prompts_per_step` groups; a round generates for `steps_per_generation`."""

    steps: Annotated[int, "Optimiser updates in all; small models often need 300 before the reward moves."] = 300
    prompts_per_step: Annotated[
        int, "Prompts in one update; more of them make the gradient less noisy and a step slower."
    ] = 8
    steps_per_generation: Annotated[
        int, "Updates made from one round of generation; above 1 the later ones are off-policy."
    ] = 1
    num_iterations: Annotated[int, "Passes over each round; above 1 reuses completions and relies on clipping."] = 1
    learning_rate: Annotated[
        float | None,
        "Step size; by default 1e-6 for full fine-tuning and 1e-5 for LoRA, which wants about ten times more.",
    ] = None
    lr_schedule: Annotated[Literal["constant", "linear", "cosine"], "How the step size falls after warm-up."] = (
        "constant"
    )
    warmup_steps: Annotated[
        int, "Steps over which the step size rises from zero; raise it if the first steps are unstable."
    ] = 0
    optimizer: Annotated[
        Literal["adamw", "adamw_8bit", "paged_adamw_8bit"],
        "With 8 bits (bitsandbytes) its state takes a quarter; paged moves it to main memory when a GPU is full.",
    ] = "adamw"
    weight_decay: Annotated[float, "AdamW weight decay; RL runs usually need none."] = 0.0
    adam_betas: Annotated[tuple[float, float], "AdamW moment decay rates; lower the second for short runs."] = (
        0.9,
        0.999,
    )
    max_grad_norm: Annotated[float, "Gradient norm above which the update is scaled down; 0 switches it off."] = 1.0
    token_budget: Annotated[
        int, "Tokens in one micro-batch, prompt included; lower it when memory runs out: the gradient stays the same."
    ] = 8192
    token_entropies: Annotated[
        bool, "Measure the policy's entropy at every trained token, for metrics and heat maps; a few percent of a step."
    ] = False
    checkpoint_every: Annotated[
        int, "Rounds between checkpoints; what came after the last one is done again on resume."
    ] = 10
    keep_checkpoints: Annotated[int, "How many of the newest checkpoints stay on disk."] = 2

    def __post_init__(self) -> None:
        for name in ("steps", "prompts_per_step", "steps_per_generation", "num_iterations", "token_budget",
                     "checkpoint_every", "keep_checkpoints"):  # fmt: skip
            if getattr(self, name) < 1:
                raise InputError(f"train.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("warmup_steps", "weight_decay", "max_grad_norm"):
            if getattr(self, name) < 0:
                raise InputError(f"train.{name} is {getattr(self, name)}; it must not be negative")
        if self.learning_rate is not None and not 0 < self.learning_rate <= 1:
            raise InputError(
                f"train.learning_rate is {self.learning_rate}; it must be above 0 and at most 1, since AdamW moves a "
                f"weight by about this much in every step (1e-6 to 1e-3 are usual)"
            )

    @property
    def prompts_per_round(self) -> int:
        return self.prompts_per_step * self.steps_per_generation

    @property
    def updates_per_round(self) -> int:
        return self.steps_per_generation * self.num_iterations

    def peak_learning_rate(self, lora: bool) -> float:
        """The configured step size, or the default for the way of fine-tuning."""
        if self.learning_rate is not None:
            return self.learning_rate
        return LORA_LEARNING_RATE if lora else FULL_LEARNING_RATE
