"""The `sft` section: supervised fine-tuning on answers, before or between stages of reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from assay.errors import InputError

FULL_LEARNING_RATE = 1e-5
LORA_LEARNING_RATE = 2e-4


@dataclass(frozen=True)
class SftOptions:
    """How `assay sft` trains; the model, the prompts and the micro-batch size come from the other sections."""

    answer: Annotated[
        str | None, "Column with the answers to imitate; by default answer, completion, response, else the gold."
    ] = None
    epochs: Annotated[float, "Passes over the rows; a cold start needs few, or the model recites."] = 2.0
    batch_size: Annotated[int, "Rows in one update."] = 32
    learning_rate: Annotated[
        float | None, "Peak step size; by default 1e-5 for full fine-tuning and 2e-4 for LoRA; it falls by a cosine."
    ] = None
    warmup_steps: Annotated[int, "Updates over which the step size rises from zero."] = 5
    checkpoint_every: Annotated[int, "Updates between checkpoints; a killed command goes on from the last one."] = 100

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise InputError(f"sft.{name} is {getattr(self, name)}; it must be above 0")
        if self.warmup_steps < 0:
            raise InputError(f"sft.warmup_steps is {self.warmup_steps}; it must not be negative")
        if self.learning_rate is not None and not 0 < self.learning_rate <= 1:
            raise InputError(f"sft.learning_rate is {self.learning_rate}; it must be above 0 and at most 1")

    def peak_learning_rate(self, lora: bool) -> float:
        """The configured step size, or the default for the way of fine-tuning."""
        if self.learning_rate is not None:
            return self.learning_rate
        return LORA_LEARNING_RATE if lora else FULL_LEARNING_RATE
