"""The learned baseline: generalised advantage estimation, returns, the clipped value loss, whitening (PPO)."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.objectives.batch import wide
from assay.objectives.denominators import SumOverRanks, sum_locally


def discounted_sum(x: Tensor, discount: float) -> Tensor:
    """y_t = sum over k of discount^k x_{t+k}, along the last dimension, in log2(T) steps rather than T.

    >>> discounted_sum(torch.tensor([1.0, 1.0, 1.0]), 0.5).tolist()
    [1.75, 1.5, 1.0]
    """
    length, step = x.shape[-1], 1
    while step < length:
        shifted = torch.nn.functional.pad(x[..., step:], (0, step))
        x = x + discount**step * shifted
        step *= 2
    return x


def left_packed(mask: Tensor) -> Tensor:
    """[N, T] indices that move counted tokens to the left, in order: tools' tokens are no steps of the policy."""
    return torch.sort(~mask, dim=-1, stable=True).indices


def last_token(mask: Tensor) -> Tensor:
    """[N, T]: True on the last counted token of each row."""
    return mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """(advantages, returns), both [N, T] and zero off the mask (arXiv:1506.02438 eq. 16; PPO, arXiv:1707.06347 eq. 11).

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}; returns = A + V. The step after the last
    token is terminal. Steps are the counted tokens, whatever lies between them.

    >>> r, v = torch.tensor([[0.0, 0, 1]]), torch.tensor([[0.2, 0.4, 0.6]])
    >>> a, ret = gae(r, v, torch.ones(1, 3, dtype=torch.bool), gamma=1.0, lam=0.95)
    >>> [round(x, 3) for x in a[0].tolist()], [round(x, 3) for x in ret[0].tolist()]
    ([0.751, 0.58, 0.4], [0.951, 0.98, 1.0])
    """
    order = left_packed(mask)
    packed_mask = mask.gather(-1, order)
    r = torch.where(packed_mask, rewards.gather(-1, order), 0.0)
    v = torch.where(packed_mask, values.gather(-1, order), 0.0)
    following = torch.nn.functional.pad(v[..., 1:], (0, 1))
    advantages = discounted_sum(torch.where(packed_mask, r + gamma * following - v, 0.0), gamma * lam)
    advantages = torch.where(packed_mask, advantages, 0.0)
    scatter = torch.zeros_like(advantages).scatter
    return scatter(-1, order, advantages), scatter(-1, order, advantages + v)


def whiten(x: Tensor, mask: Tensor, eps: float = 1e-8, sum_over_ranks: SumOverRanks = sum_locally) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the counted tokens of the batch and all ranks, with Bessel's correction; zero
    elsewhere. Fewer than two counted tokens have no variance: they become zero.

    >>> x = torch.tensor([[1.005, 1.015, 0.995], [-0.03, 0, 9]], dtype=torch.float64)
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> [round(v, 6) for v in whiten(x, mask)[mask].tolist()]
    [0.730107, 0.748001, 0.712212, -1.122002, -1.068318]
    """
    inside = torch.where(mask, wide(x), 0.0)
    total, count = sum_over_ranks(torch.stack([inside.sum(), wide(mask.sum())])).unbind()
    centred = torch.where(mask, inside - total / count.clamp(min=1), 0.0)
    variance = sum_over_ranks(centred.square().sum()) / (count - 1).clamp(min=1)
    return torch.where(count > 1, centred * torch.rsqrt(variance + eps), 0.0).to(x.dtype)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, cliprange: float) -> Tensor:
    """[B, T]: max((v - R)^2, (clip(v, v_old +- cliprange) - R)^2) / 2.

    >>> v, old, ret = torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.2]), torch.tensor([1.0, 1.0])
    >>> round(value_loss(v, old, ret, 0.2).mean().item(), 4)
    0.225
    """
    clipped = old_values + (values - old_values).clamp(-cliprange, cliprange)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square())
