"""Which optimiser, by its name in the `train` section. All of them take `lr` anew at every step."""

from __future__ import annotations

from typing import Any

import torch

from assay.errors import InputError
from assay.policy import Policy
from assay.training.options import TrainOptions


def build_optimizer(policy: Policy, options: TrainOptions) -> torch.optim.Optimizer:
    """`options.optimizer` over what is trainable.

    The 8-bit ones are bitsandbytes' (block-wise quantised moments, arXiv:2110.02861): a quarter of AdamW's 8 bytes a
    weight. Tensors below 4,096 elements keep 32-bit moments.

    Raises:
        InputError: if bitsandbytes is missing, or pages are asked for without CUDA.
    """
    trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    settings: dict[str, Any] = {"lr": 0.0, "betas": options.adam_betas, "weight_decay": options.weight_decay}
    if options.optimizer == "adamw":
        return torch.optim.AdamW(trainable, foreach=True, **settings)
    try:
        import bitsandbytes
    except ImportError as error:
        raise InputError(
            f"train.optimizer={options.optimizer} needs bitsandbytes: pip install bitsandbytes, or take adamw"
        ) from error
    if options.optimizer == "adamw_8bit":
        return bitsandbytes.optim.AdamW8bit(trainable, **settings)
    if policy.device.type != "cuda":
        raise InputError(
            f"train.optimizer={options.optimizer} moves its state between GPU and main memory, but the model is on "
            f"{policy.device.type}; take adamw_8bit"
        )
    return bitsandbytes.optim.PagedAdamW8bit(trainable, **settings)
