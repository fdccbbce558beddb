"""Attention of a packed row by its parts, on CPU: prompts, completions on their prompt, completions on themselves.

A mask over the packed row would cost (P + G T)^2 for a group. Here a prompt attends to itself once, all completions
of a group attend to the prompt's keys in one product (nothing is repeated, grouped-query heads are folded into the
queries), and each completion attends to itself. The last two are merged by their log-sum-exps, with which each part's
gradient is exact on its own (as in Ring Attention, arXiv 2310.01889). Backward is plain batched products over blocks of
queries: torch's flash kernel takes most of a bfloat16 step there (docs/speed.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from assay.policy.packing import SharedPrefix

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

# Scores that exist at once in backward: 4 MiB in float32. Both a quarter and double of it were slower.
_BLOCK_ELEMENTS = 2**20


def structured_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: SharedPrefix, scale: float
) -> torch.Tensor:
    """query [1, H, L, D], key and value [1, H_kv, L, D] -> [1, H, L, D]. CPU, no dropout, no sliding window."""
    return _StructuredAttention.apply(query, key, value, layout, scale)


class _StructuredAttention(torch.autograd.Function):
    # Inside, a tensor is [H_kv, R, L, D]: query heads grouped by the key head that they share.

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: SharedPrefix, scale: float
    ) -> torch.Tensor:
        q, k, v = _grouped(query, key, value)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        for start, middle, end in layout.groups:
            out[:, :, start:middle], lse[:, :, start:middle] = _flash(
                *_causal_operands(q, k, v, start, middle), 0.0, True, scale=scale
            )
            if end > middle:
                part, part_lse = _flash(*_prefix_operands(q, k, v, start, middle, end), 0.0, False, scale=scale)
                out[:, :, middle:end] = part.view(q.shape[0], q.shape[1], end - middle, -1)
                lse[:, :, middle:end] = part_lse.view(q.shape[0], q.shape[1], end - middle)
        for index, valid in layout.buckets:
            own, own_lse = _flash(*_row_operands(q, k, v, index), 0.0, True, scale=scale)
            _merge(out, lse, _ungroup(own, q, index, valid), _ungroup(own_lse, q, index, valid), index[valid])
        ctx.layout, ctx.scale = layout, scale
        ctx.save_for_backward(query, key, value, out, lse)
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        q, k, v = _grouped(query, key, value)
        k, v = k[:, 0], v[:, 0]
        grad = grad_out.reshape(q.shape)
        asked = _Asked(q, grad, lse, torch.linalg.vecdot(grad.to(lse.dtype), out.to(lse.dtype)))
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for start, middle, end in ctx.layout.groups:
            prompt, rows = slice(start, middle), slice(middle, end)
            keys, values = k[:, prompt], v[:, prompt]
            parts = causal_backward(asked.map(lambda x: x[:, :, prompt]), keys, values, ctx.scale)  # noqa: B023
            grad_q[:, :, prompt] = parts[0]
            grad_k[:, prompt] += parts[1]
            grad_v[:, prompt] += parts[2]
            if end > middle:
                parts = prefix_backward(asked.map(lambda x: x[:, :, rows]), keys, values, ctx.scale)  # noqa: B023
                grad_q[:, :, rows] = parts[0]
                grad_k[:, prompt] += parts[1]
                grad_v[:, prompt] += parts[2]
        for index, valid in ctx.layout.buckets:
            _row_backward(asked, k, v, ctx.scale, index, valid, (grad_q, grad_k, grad_v))
        return grad_q.view(query.shape), grad_k[None], grad_v[None], None, None


class _Asked(NamedTuple):
    """What backward knows of queries: q and the gradient of their output [N, R, T, D] (R heads share a key head), the
    log-sum-exp of the scores of *all* keys that a query saw, and grad . output, [N, R, T]."""

    q: torch.Tensor
    grad: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> _Asked:
        return _Asked(function(self.q), function(self.grad), function(self.lse), function(self.delta))


Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _row_backward(
    asked: _Asked,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    index: torch.Tensor,
    valid: torch.Tensor,
    grads: Gradients,
) -> None:
    """Add the completions-on-themselves part to the gradients. Padding repeats a real token with zero gradient."""
    mine = asked.map(lambda x: _by_row(x, index))
    if not valid.all():
        seen = valid[:, None, None, :]
        mine = mine._replace(grad=mine.grad * seen[..., None].to(mine.grad.dtype), delta=mine.delta * seen)
    keys, values = (tensor[:, index].movedim(1, 0).flatten(0, 1) for tensor in (k, v))
    parts = causal_backward(mine.map(lambda x: x.flatten(0, 1)), keys, values, scale)
    places = index[valid]
    grads[0][:, :, places] += _ungroup(parts[0], asked.q, index, valid)
    for total, part in zip(grads[1:], parts[1:]):
        total[:, places] += part.unflatten(0, (len(index), k.shape[0])).movedim(0, 1)[:, valid]


def causal_backward(asked: _Asked, k: torch.Tensor, v: torch.Tensor, scale: float) -> Gradients:
    """Gradients of q, k and v [N, T, D] of attention in which position t sees keys 0 ... t.

    Blocks of queries keep the scores that exist at once below `_BLOCK_ELEMENTS`.
    """
    heads, repeats, length, _ = asked.q.shape
    grad_q = torch.empty_like(asked.q)
    grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
    step = max(16, _BLOCK_ELEMENTS // (heads * repeats * length))
    for start in range(0, length, step):
        end = min(start + step, length)
        later = torch.ones(end - start, end - start, dtype=torch.bool, device=k.device).triu(1).repeat(repeats, 1)
        folded = asked.map(lambda x: x[:, :, start:end].flatten(1, 2))  # noqa: B023
        parts = _part_backward(folded, k[:, :end], v[:, :end], scale, later)
        grad_q[:, :, start:end] = parts[0].unflatten(1, (repeats, end - start))
        grad_k[:, :end] += parts[1]
        grad_v[:, :end] += parts[2]
    return grad_q, grad_k, grad_v


def prefix_backward(asked: _Asked, k: torch.Tensor, v: torch.Tensor, scale: float) -> Gradients:
    """`causal_backward` where every query sees every key: k and v [N, K, D]."""
    folded = asked.map(lambda x: x.flatten(1, 2))
    grad_q = torch.empty_like(folded.q)
    grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
    step = max(16, _BLOCK_ELEMENTS // (k.shape[0] * k.shape[1]))
    for start in range(0, grad_q.shape[1], step):
        span = slice(start, start + step)
        grad_q[:, span], part_k, part_v = _part_backward(folded.map(lambda x: x[:, span]), k, v, scale, None)  # noqa: B023
        grad_k += part_k
        grad_v += part_v
    return grad_q.view(asked.q.shape), grad_k, grad_v


def _part_backward(
    asked: _Asked, k: torch.Tensor, v: torch.Tensor, scale: float, later: torch.Tensor | None
) -> Gradients:
    """Queries [N, M, D] on keys [N, K, D]; `later` [M, W] says which of the last W keys a query may not see."""
    q, grad, lse, delta = asked
    scaled = q * scale
    weights = _product(scaled, k, lse).exp_()
    if later is not None:
        weights[..., -later.shape[1] :].masked_fill_(later, 0.0)
    slope = _product(grad, v, delta).mul_(weights).to(q.dtype)
    return torch.bmm(slope, k).mul_(scale), torch.bmm(slope.mT, scaled), torch.bmm(weights.to(q.dtype).mT, grad)


def _product(left: torch.Tensor, right: torch.Tensor, minus: torch.Tensor) -> torch.Tensor:
    """left right^T - minus: [N, M, D], [N, K, D] and [N, M] -> [N, M, K] in the dtype of `minus`."""
    if left.dtype == minus.dtype:
        return torch.baddbmm(minus[..., None], left, right.mT, beta=-1)
    return torch.bmm(left, right.mT).to(minus.dtype).sub_(minus[..., None])


def _grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kv_heads, length, size = key.shape[1:]
    repeats = query.shape[1] // kv_heads
    q = query.reshape(kv_heads, repeats, length, size)
    return q, key[0][:, None].expand(-1, repeats, -1, -1), value[0][:, None].expand(-1, repeats, -1, -1)


def _causal_operands(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, end: int
) -> tuple[torch.Tensor, ...]:
    return q[:, :, start:end], k[:, :, start:end], v[:, :, start:end]


def _prefix_operands(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, middle: int, end: int
) -> tuple[torch.Tensor, ...]:
    """Heads that share a key head become more queries of that one head."""
    folded = q[:, :, middle:end].reshape(q.shape[0], 1, -1, q.shape[-1])
    return folded, k[:, :1, start:middle], v[:, :1, start:middle]


def _row_operands(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    repeats = q.shape[1]
    shared = (_by_row(tensor[:, :1], index).flatten(0, 1).expand(-1, repeats, -1, -1) for tensor in (k, v))
    return _by_row(q, index).flatten(0, 1), *shared


def _by_row(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[H_kv, R, L, ...] -> [n, H_kv, R, T, ...] at index [n, T]."""
    return tensor[:, :, index].movedim(2, 0)


def _ungroup(part: torch.Tensor, q: torch.Tensor, index: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """[n * H_kv, R, T, ...] -> [H_kv, R, M, ...] over the M valid places."""
    return part.unflatten(0, (len(index), q.shape[0])).movedim(0, 2)[:, :, valid]


def _merge(
    out: torch.Tensor, lse: torch.Tensor, own: torch.Tensor, own_lse: torch.Tensor, places: torch.Tensor
) -> None:
    """Combine attention over two disjoint sets of keys, in place."""
    before = lse[:, :, places]
    total = torch.logaddexp(before, own_lse)
    mixed = out[:, :, places] * (before - total).exp()[..., None] + own * (own_lse - total).exp()[..., None]
    out[:, :, places] = mixed.to(out.dtype)
    lse[:, :, places] = total
