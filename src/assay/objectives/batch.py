"""What an objective reads: the policy's outputs and the rows they belong to.

Dimensions, here and in every file of this room: N rows of a round, B rows of a micro-batch, T completion tokens
(right-padded; the prompt is not in any tensor), F reward functions, G completions of a group. Log-probabilities and
entropies are in nats. A row is one token sequence; a trajectory is usually one row, and several where a chat template
rewrote earlier turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyOutputs:
    """What the policy returns for a micro-batch: `logps` [B, T] of the tokens that were written, with gradient;
    `entropies` [B, T] of its full next-token distributions; `values` [B, T] of its critic.
    """

    logps: Tensor
    entropies: Tensor | None = None
    values: Tensor | None = None


@dataclass(frozen=True)
class Rows:
    """One micro-batch of rows, apart from what the policy computes.

    `mask` [B, T] is True on tokens that the policy wrote and that count; it comes from lengths, authorship and the
    truncation filter, never from pad ids. What the other tensors hold where it is False is never read.

    `advantages` [B] or [B, T]. `old_logps` is None when a round has one update: then the policy itself is the old one.
    `sampling_logps` are the engine's; NaN where it gave none. `group_tokens` [B] counts the tokens of each row's
    group over the window and all ranks (`assay.objectives.group_tokens`). Rows of one trajectory share an id in
    `trajectory_ids` [B] and must be in one micro-batch; None says that each row is a trajectory.
    `entropy_mask` [B, T] marks the high-entropy tokens where the window's threshold is known before the split.
    """

    mask: Tensor
    advantages: Tensor
    old_logps: Tensor | None = None
    sampling_logps: Tensor | None = None
    ref_logps: Tensor | None = None
    old_values: Tensor | None = None
    returns: Tensor | None = None
    group_tokens: Tensor | None = None
    trajectory_ids: Tensor | None = None
    entropy_mask: Tensor | None = None


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precision is computed in float32; float32 and float64 stay as they are."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def wide(x: Tensor) -> Tensor:
    """`x` in the precision that sums are kept in: float64 wherever the device has it (Apple's does not)."""
    return x.float() if x.device.type == "mps" else x.double()


def masked(x: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` [B, T] in `dtype`, with zeros (and zero gradient) where `mask` is False, whatever padding holds."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)).to(dtype)


def per_trajectory(x: Tensor, trajectory_ids: Tensor | None) -> Tensor:
    """Sum over tokens [B, T] -> [B], shared by the rows of a trajectory.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0], [5.0, 0.0]])
    >>> per_trajectory(x, None).tolist()
    [3.0, 3.0, 5.0]
    >>> per_trajectory(x, torch.tensor([7, 7, 8])).tolist()
    [6.0, 6.0, 5.0]
    """
    sums = x.sum(-1)
    if trajectory_ids is None:
        return sums
    unique, index = torch.unique(trajectory_ids, return_inverse=True)
    return torch.zeros(len(unique), dtype=sums.dtype, device=sums.device).index_add(0, index, sums)[index]


def group_tokens(mask: Tensor, group_ids: Tensor) -> Tensor:
    """Counted tokens of each row's group: mask [N, T], group_ids [N] -> [N].

    >>> group_tokens(torch.tensor([[True, True], [True, False], [True, True]]), torch.tensor([4, 4, 9])).tolist()
    [3.0, 3.0, 2.0]
    """
    return per_trajectory(mask.to(torch.float32), group_ids)
