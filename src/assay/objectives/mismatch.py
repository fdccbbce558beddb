"""The engine's probabilities against the trainer's: importance weights old/sampling, truncated or masked.

A weight is a constant factor of the policy term. Its tokens stay in every denominator. Statistics are those of the raw
ratio, before anything is cut.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.objectives.batch import per_trajectory
from assay.objectives.metrics import Metrics
from assay.objectives.ratio import bounded_exp


def log_mismatch(old_logps: Tensor, sampling_logps: Tensor, mask: Tensor) -> Tensor:
    """[B, T]: old - sampling on counted tokens; zero where the engine gave no log-probability (NaN)."""
    known = mask & ~sampling_logps.isnan()
    return torch.where(known, old_logps - sampling_logps, 0.0).detach()


def mismatch_level(log_diff: Tensor, mask: Tensor, mode: str, trajectory_ids: Tensor | None = None) -> Tensor:
    """The log-weight at the level `mode` names: token [B, T]; product or geometric mean over the sequence [B, 1]."""
    level = mode.partition("_")[0]
    if level == "token":
        return log_diff
    total = per_trajectory(log_diff * mask, trajectory_ids)
    if level == "geometric":
        total = total / per_trajectory(mask.to(total.dtype), trajectory_ids).clamp(min=1.0)
    return total.unsqueeze(-1)


def bounded_weight(log_weight: Tensor, mode: str, low: float | None, high: float | None) -> Tensor:
    """Truncated: clip(w, low, high) (TIS, Yao et al. 2025). Masked: w if low <= w <= high else 0 (MIS; with both bounds
    and token level it is IcePop, arXiv:2510.18855). Bounds are inclusive; None is no bound.

    >>> w = torch.tensor([0.4, 0.9, 1.5, 2.6], dtype=torch.float64).log()
    >>> [round(x, 3) for x in bounded_weight(w, "token_truncate", 0.5, 2.0).tolist()]
    [0.5, 0.9, 1.5, 2.0]
    >>> [round(x, 3) for x in bounded_weight(w, "token_mask", 0.5, 2.0).tolist()]
    [0.0, 0.9, 1.5, 0.0]
    """
    weight = bounded_exp(log_weight)
    if mode.endswith("truncate"):
        return weight.clamp(low, high)
    return torch.where(_outside(weight, low, high), 0.0, weight)


def _outside(weight: Tensor, low: float | None, high: float | None) -> Tensor:
    return (weight < (-math.inf if low is None else low)) | (weight > (math.inf if high is None else high))


def mismatch_metrics(
    log_diff: Tensor, log_weight: Tensor, mask: Tensor, low: float | None, high: float | None
) -> Metrics:
    """Statistics of the raw ratio at its level, and the share of tokens (or sequences) that a bound touched."""
    metrics = Metrics()
    metrics.masked_mean("sampling/sampling_logp_difference/mean", log_diff.abs(), mask)
    metrics.maximum("sampling/sampling_logp_difference/max", log_diff.abs(), mask)
    seen = mask if log_weight.shape == mask.shape else mask.any(-1, keepdim=True)
    weight = bounded_exp(log_weight)
    name = "sampling/importance_sampling_ratio"
    metrics.masked_mean(f"{name}/mean", weight, seen)
    metrics.maximum(f"{name}/max", weight, seen)
    metrics.minimum(f"{name}/min", weight, seen)
    metrics.quantiles(name, log_weight, seen)
    metrics.effective_sample_size("sampling/effective_sample_size", weight, seen)
    metrics.masked_mean("sampling/outside_bounds", _outside(weight, low, high), seen)
    return metrics
