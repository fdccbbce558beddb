"""Filters: which completions reach the loss at all."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.objectives.batch import per_trajectory


def drop_truncated(mask: Tensor, truncated: Tensor) -> Tensor:
    """`mask` [N, T] without the rows of truncated completions [N] (overlong filtering, arXiv:2503.14476 sec. 3.4)."""
    return mask & ~truncated.unsqueeze(-1)


def off_policy_mask(
    advantages: Tensor,
    logps: Tensor,
    behaviour_logps: Tensor,
    mask: Tensor,
    threshold: float,
    trajectory_ids: Tensor | None = None,
) -> Tensor:
    """True where the policy term stays: A >= 0, or the sequence drifted at most `threshold` nats a token
    (DeepSeek-V3.2, arXiv:2512.02556 sec. 3.1).

    `behaviour_logps` [B, T] are the sampler's where known, else the old policy's; NaN tokens count as no drift.
    """
    known = mask & ~behaviour_logps.isnan()
    drift = torch.where(known, behaviour_logps - logps.detach(), 0.0)
    tokens = per_trajectory(mask.to(drift.dtype), trajectory_ids).clamp(min=1.0)
    mean = per_trajectory(drift, trajectory_ids) / tokens
    return (advantages >= 0) | (mean.unsqueeze(-1) <= threshold)
