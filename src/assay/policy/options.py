"""What a user may say about the model that learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from assay.errors import InputError


@dataclass(frozen=True)
class ModelOptions:
    """The `model:` section of a run configuration.

    Raises:
        InputError: if two fields contradict each other or a number is out of range.
    """

    path: Annotated[str, "Which model learns: `smollm2` (ships in a package), a local folder, or a hub id."] = "smollm2"
    revision: Annotated[str | None, "Pin a hub commit or tag, so that the run can be repeated."] = None
    trust_remote_code: Annotated[bool, "Allow a hub model to run its own Python code."] = False
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "Precision of the forward pass; auto measures what is faster on this CPU and takes bfloat16 on a GPU that has "
        "it; float16 is for cards without bfloat16.",
    ] = "auto"
    lora: Annotated[bool, "Train low-rank adapters (a tenth of the memory) instead of all weights."] = True
    lora_rank: Annotated[int, "Size of the adapters; RL works with ranks as low as 1."] = 16
    lora_alpha: Annotated[float, "Scale of the adapters' contribution (times 1/rank)."] = 32.0
    lora_dropout: Annotated[float, "Regularise the adapters; 0 keeps sampling and training distributions equal."] = 0.0
    lora_targets: Annotated[
        tuple[str, ...], "Which layers get adapters: `all-linear`, or names of modules such as q_proj."
    ] = ("all-linear",)
    gradient_checkpointing: Annotated[bool, "Recompute activations in backward: less memory, about a third slower."] = (
        False
    )
    fp32_lm_head: Annotated[
        bool, "Compute the logits in float32, which shrinks the sampler-trainer mismatch of half-precision models."
    ] = False
    critic: Annotated[
        Literal["none", "head", "model"],
        "For PPO: a value head on the policy's trunk, or a value network of its own.",
    ] = "none"
    prefix_sharing: Annotated[
        bool, "Score a prompt once for all of its completions; falls back by itself where a model cannot."
    ] = True
    attention: Annotated[str, "transformers' attention kernel for the paths that are not ours."] = "sdpa"
    reference_device: Annotated[
        str, "Where a frozen reference copy lives: `same` as the policy, or `cpu` to save accelerator memory."
    ] = "same"

    def __post_init__(self) -> None:
        if self.lora and self.lora_rank < 1:
            raise InputError(f"model.lora_rank is {self.lora_rank}; it must be at least 1 (or set model.lora=false)")
        if not 0.0 <= self.lora_dropout < 1.0:
            raise InputError(f"model.lora_dropout is {self.lora_dropout}; it must lie in [0, 1)")
        if not self.lora_targets:
            raise InputError("model.lora_targets is empty; name modules, or use all-linear")
        if not self.lora and self.dtype == "float16":
            raise InputError(
                "model.dtype=float16 needs model.lora=true: float16 weights cannot be trained, float32 adapters can"
            )
        if self.reference_device not in ("same", "cpu"):
            raise InputError(f"model.reference_device is {self.reference_device!r}; it must be `same` or `cpu`")
