"""Aggregation: the fixed weight of a row's tokens in the window's loss, [B].

loss = sum over rows of weight_i * sum over counted tokens of loss_it. The weights depend on lengths and on the
window's denominators only, so the window's gradient does not depend on how it is cut; `bnpo` is the exception.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objectives.batch import per_trajectory
from assay.objectives.denominators import Denominators


@dataclass(frozen=True)
class Lengths:
    """Counted tokens of each row's trajectory [B] and group [B], and of the micro-batch (a scalar tensor)."""

    trajectory: Tensor
    group: Tensor | None
    micro_batch: Tensor

    @classmethod
    def of(
        cls, mask: Tensor, dtype: torch.dtype, trajectory_ids: Tensor | None = None, group: Tensor | None = None
    ) -> Lengths:
        tokens = mask.to(dtype)
        return cls(per_trajectory(tokens, trajectory_ids), group, tokens.sum())


def grpo(lengths: Lengths, d: Denominators) -> Tensor:
    """Mean over completions of each one's token mean (GRPO, arXiv:2402.03300 eq. 3): long answers are diluted."""
    return 1.0 / (lengths.trajectory.clamp(min=1.0) * max(d.rows, 1.0))


def dapo(lengths: Lengths, d: Denominators) -> Tensor:
    """Mean over all tokens of the window (DAPO, arXiv:2503.14476 eq. 8)."""
    return torch.full_like(lengths.trajectory, 1.0 / max(d.tokens, 1.0))


def dr_grpo(lengths: Lengths, d: Denominators) -> Tensor:
    """Sum over tokens by a constant (Dr. GRPO, arXiv:2503.20783 sec. 3.2): rows times the maximal length."""
    if d.max_completion_length is None:
        raise ValueError("dr_grpo divides by max_completion_length; give it to Denominators.from_sums")
    return torch.full_like(lengths.trajectory, 1.0 / (max(d.rows, 1.0) * d.max_completion_length))


def bnpo(lengths: Lengths, d: Denominators) -> Tensor:
    """Mean over micro-batches of each one's token mean: the one aggregation that depends on the split."""
    return torch.ones_like(lengths.trajectory) / (lengths.micro_batch.clamp(min=1.0) * max(d.micro_batches, 1.0))


def luspo(lengths: Lengths, d: Denominators) -> Tensor:
    """Mean over completions of each one's token sum (LUSPO, arXiv:2602.05261; sequence-level REINFORCE)."""
    return torch.full_like(lengths.trajectory, 1.0 / max(d.rows, 1.0))


def prompt(lengths: Lengths, d: Denominators) -> Tensor:
    """Mean over prompts of the token mean of each one's completions (ScaleRL, arXiv:2510.13786)."""
    if lengths.group is None:
        raise ValueError("prompt aggregation needs Rows.group_tokens (see assay.objectives.group_tokens)")
    return 1.0 / (lengths.group.to(lengths.trajectory.dtype).clamp(min=1.0) * max(d.groups, 1.0))


AGGREGATIONS: dict[str, Callable[[Lengths, Denominators], Tensor]] = {
    "grpo": grpo,
    "dapo": dapo,
    "dr_grpo": dr_grpo,
    "bnpo": bnpo,
    "luspo": luspo,
    "prompt": prompt,
}


def weighted_sum(loss: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """`loss` [B, T] or [B, 1], `mask` [B, T], `weights` [B] -> scalar; zero, with a graph, for an empty micro-batch."""
    return (torch.where(mask, loss, 0.0).sum(-1) * weights).sum()
