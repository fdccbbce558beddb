"""The `rollout` section: who writes completions, how many, how long, and how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from assay.errors import InputError
from assay.rollouts.vllm_options import VllmOptions

# Engines that take requests while they write others, outside the process that trains.
CONCURRENT = ("vllm-server",)


@dataclass(frozen=True)
class RolloutOptions:
    """One round asks the engine for `num_generations` completions of every drawn prompt."""

    engine: Annotated[
        Literal["transformers", "vllm", "vllm-server"],
        "Which program writes: transformers runs anywhere; vllm is faster, in this process or on servers.",
    ] = "transformers"
    num_generations: Annotated[int, "Completions a prompt (G); rare successes need more of them to be seen at all."] = 8
    stage1_samples: Annotated[
        int, "Answers of the starting model to every training prompt where the baseline is given (A*-PO, stage 1)."
    ] = 8
    max_completion_length: Annotated[int, "Tokens until an answer is cut off; raise it if many are."] = 512
    temperature: Annotated[float, "Leave at 1.0: differences within a group are the signal."] = 1.0
    top_p: Annotated[float, "Must stay 1.0 in training: the trainer's probabilities would not be the sampler's."] = 1.0
    top_k: Annotated[int, "Must stay 0 in training, for the same reason as top_p."] = 0
    min_p: Annotated[float, "Must stay 0.0 in training, for the same reason as top_p."] = 0.0
    kv_cache_gib: Annotated[
        float, "Memory for keys and values (transformers, and vLLM on a CPU); with more, more is written at once."
    ] = 2.0
    max_rows: Annotated[int, "Most completions written at once; 0 leaves it to the memory."] = 0
    keep_outputs_gib: Annotated[
        float,
        "Memory for what adapted layers put out while writing, which the update then need not compute again "
        "(transformers engine, LoRA, on CPU); 0 switches it off.",
    ] = 2.0
    vllm: VllmOptions = field(default_factory=VllmOptions)
    max_staleness: Annotated[
        int, "Rounds that completions may be written ahead, so that writing and training overlap; 0 is synchronous."
    ] = 0
    weight_sync_steps: Annotated[
        int, "Rounds between two pushes of weights to the engine; raise it where a push takes long."
    ] = 1

    def __post_init__(self) -> None:
        if self.num_generations < 1:
            raise InputError(f"rollout.num_generations is {self.num_generations}; it must be at least 1")
        if self.stage1_samples < 1:
            raise InputError(f"rollout.stage1_samples is {self.stage1_samples}; it must be at least 1")
        if self.max_completion_length < 1:
            raise InputError(f"rollout.max_completion_length is {self.max_completion_length}; it must be at least 1")
        self.check_staleness()
        if self.keep_outputs_gib < 0:
            raise InputError(f"rollout.keep_outputs_gib is {self.keep_outputs_gib}; it must not be negative")
        if self.temperature <= 0:
            raise InputError(f"rollout.temperature is {self.temperature}; training needs it above 0 (1.0 is usual)")
        if self.top_p != 1.0 or self.top_k != 0 or self.min_p != 0.0:
            raise InputError(
                f"rollout.top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p}: truncated sampling biases "
                "importance ratios, because the trainer normalises over the whole vocabulary; keep 1.0, 0 and 0.0"
            )

    def check_staleness(self) -> None:
        if self.max_staleness < 0 or self.weight_sync_steps < 1:
            raise InputError(
                f"rollout.max_staleness is {self.max_staleness} and rollout.weight_sync_steps "
                f"{self.weight_sync_steps}; they must be at least 0 and 1"
            )
        if self.max_staleness and self.engine not in CONCURRENT:
            raise InputError(
                f"rollout.max_staleness is {self.max_staleness}, but the {self.engine} engine writes in the process "
                f"that trains, where the two cannot overlap; set rollout.engine={CONCURRENT[0]}, or max_staleness to 0"
            )
        if self.weight_sync_steps - 1 > self.max_staleness:
            raise InputError(
                f"rollout.weight_sync_steps is {self.weight_sync_steps}: weights would be up to "
                f"{self.weight_sync_steps - 1} rounds old, but rollout.max_staleness allows {self.max_staleness}"
            )
