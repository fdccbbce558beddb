"""How far the policy has moved from the one that wrote the tokens: log pi - log pi_old, per token or per sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.objectives.batch import per_trajectory

# exp() of more would overflow into inf, and inf times a zero gradient is NaN.
_LARGEST = {torch.float32: 80.0, torch.float64: 700.0}


def bounded_exp(x: Tensor) -> Tensor:
    """exp(x), with x bounded where the result would leave the floating-point range (beyond it the gradient is zero).

    >>> bounded_exp(torch.tensor([0.0, 1000.0])).isfinite().all().item()
    True
    """
    return torch.exp(x.clamp(max=_LARGEST[x.dtype]))


def overflows(x: Tensor) -> Tensor:
    """Where `bounded_exp` changed something; objectives count and report it."""
    return x > _LARGEST[x.dtype]


def token_level(log_ratio: Tensor, mask: Tensor, trajectory_ids: Tensor | None = None) -> Tensor:
    """[B, T]: each token's own log-ratio (PPO, arXiv:1707.06347 eq. 6)."""
    return log_ratio


def sequence_level(log_ratio: Tensor, mask: Tensor, trajectory_ids: Tensor | None = None) -> Tensor:
    """[B, 1]: log of the geometric mean of the token ratios (GSPO, arXiv:2507.18071 eq. 7).

    >>> log_ratio = torch.tensor([[0.7, 0.95, 1.1, 1.35]], dtype=torch.float64).log()
    >>> round(sequence_level(log_ratio, torch.ones(1, 4, dtype=torch.bool)).exp().item(), 5)
    0.99687
    """
    tokens = per_trajectory(mask.to(log_ratio.dtype), trajectory_ids).clamp(min=1.0)
    return (per_trajectory(log_ratio * mask, trajectory_ids) / tokens).unsqueeze(-1)


def sequence_token_level(log_ratio: Tensor, mask: Tensor, trajectory_ids: Tensor | None = None) -> Tensor:
    """[B, T]: the sequence's value with each token's own gradient (GSPO-token, arXiv:2507.18071 eq. 14)."""
    return sequence_level(log_ratio, mask, trajectory_ids).detach() + log_ratio - log_ratio.detach()


def sequence_sum_level(log_ratio: Tensor, mask: Tensor, trajectory_ids: Tensor | None = None) -> Tensor:
    """[B, 1]: log of the product of the token ratios, the completion as one action (RLOO, arXiv:2402.14740)."""
    return per_trajectory(log_ratio * mask, trajectory_ids).unsqueeze(-1)


RATIO_LEVELS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "token": token_level,
    "sequence": sequence_level,
    "sequence_token": sequence_token_level,
    "sequence_sum": sequence_sum_level,
}
