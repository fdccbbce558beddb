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
    # Inside, queries are [L, H_kv, R, D], grouped by the key head that R of them share, keys and values [L, H_kv, D]: a
    # token's heads lie together in memory, as the model's projections wrote them, and taking a row copies whole tokens.

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: SharedPrefix, scale: float
    ) -> torch.Tensor:
        q, k, v = _by_token(query, key.shape[1]), key[0].transpose(0, 1), value[0].transpose(0, 1)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        for start, middle, end in layout.groups:
            prompt, rows = slice(start, middle), slice(middle, end)
            own, own_lse = _causal(q[None, prompt], k[None, prompt], v[None, prompt], scale)
            out[prompt], lse[prompt] = own[0], own_lse[0]
            if end > middle:
                out[rows], lse[rows] = _on_prompt(q[rows], k[prompt], v[prompt], scale)
        for index, valid in layout.buckets:
            own, own_lse = _causal(_take(q, index), _take(k, index), _take(v, index), scale)
            _merge(out, lse, _real(own, valid), _real(own_lse, valid), _real(index, valid))
        ctx.layout, ctx.scale = layout, scale
        ctx.save_for_backward(query, key, value, out, lse)
        return _by_head(out)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        q, k, v = _by_token(query, key.shape[1]), key[0].transpose(0, 1), value[0].transpose(0, 1)
        grad = _by_token(grad_out, key.shape[1])
        asked = _Asked(q, grad, lse, torch.linalg.vecdot(grad.to(lse.dtype), out.to(lse.dtype)))
        grads = tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        for start, middle, end in ctx.layout.groups:
            prompt, rows = slice(start, middle), slice(middle, end)
            keys, values = k[prompt].transpose(0, 1), v[prompt].transpose(0, 1)
            parts = causal_backward(asked.map(lambda x: x[prompt].transpose(0, 1)), keys, values, ctx.scale)  # noqa: B023
            for total, part in zip(grads, parts):
                total[prompt] += part.transpose(0, 1)
            if end > middle:
                parts = prefix_backward(asked.map(lambda x: x[rows].transpose(0, 1)), keys, values, ctx.scale)  # noqa: B023
                for total, part, place in zip(grads, parts, (rows, prompt, prompt)):
                    total[place] += part.transpose(0, 1)
        for index, valid in ctx.layout.buckets:
            _row_backward(asked, k, v, ctx.scale, index, valid, grads)
        return _by_head(grads[0]), grads[1].transpose(0, 1)[None], grads[2].transpose(0, 1)[None], None, None


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q [n, T, H_kv, R, D] on k and v [n, T, H_kv, D] -> output like q, log-sum-exps [n, T, H_kv, R]."""
    out, lse = _flash(q.flatten(2, 3).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0.0, True, scale=scale)
    return out.transpose(1, 2).reshape(q.shape), lse.transpose(1, 2).reshape(q.shape[:-1])


def _on_prompt(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, H_kv, R, D] on all of k and v [P, H_kv, D]. Heads that share a key head become more queries of it."""
    folded = q.transpose(0, 1).flatten(1, 2)[:, None]
    out, lse = _flash(folded, *(x.transpose(0, 1)[:, None] for x in (k, v)), 0.0, False, scale=scale)
    out, lse = (x[:, 0].unflatten(1, q.shape[::2][:2]).transpose(0, 1) for x in (out, lse))
    return out, lse


class _Asked(NamedTuple):
    """What backward knows of queries: q and the gradient of their output [N, T, R, D] (R heads share a key head), the
    log-sum-exp of the scores of *all* keys that a query saw, and grad . output, [N, T, R]."""

    q: torch.Tensor
    grad: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> _Asked:
        return _Asked(function(self.q), function(self.grad), function(self.lse), function(self.delta))


Gradients = tuple[torch.Tensor, ...]


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
    mine = asked.map(lambda x: _take(x, index))
    if not valid.all():
        seen = valid[:, :, None, None]
        mine = mine._replace(grad=mine.grad * seen[..., None].to(mine.grad.dtype), delta=mine.delta * seen)
    mine = mine.map(lambda x: x.transpose(1, 2).flatten(0, 1))
    keys, values = (_take(x, index).transpose(1, 2).flatten(0, 1) for x in (k, v))
    for total, part in zip(grads, causal_backward(mine, keys, values, scale)):
        by_row = part.unflatten(0, (len(index), -1)).transpose(1, 2)
        total.index_add_(0, _real(index, valid), _real(by_row, valid))


def causal_backward(asked: _Asked, k: torch.Tensor, v: torch.Tensor, scale: float) -> Gradients:
    """Gradients of q, k and v [N, T, D] of attention in which position t sees keys 0 ... t.

    Blocks of queries keep the scores that exist at once below `_BLOCK_ELEMENTS`.
    """
    heads, length, repeats, _ = asked.q.shape
    grad_q = torch.empty(asked.q.shape, dtype=k.dtype, device=k.device)
    grad_k, grad_v = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    step = max(16, _BLOCK_ELEMENTS // (heads * repeats * length))
    for start in range(0, length, step):
        end = min(start + step, length)
        later = torch.ones(end - start, end - start, dtype=torch.bool, device=k.device).triu(1)
        folded = asked.map(lambda x: x[:, start:end].flatten(1, 2))  # noqa: B023
        parts = _part_backward(folded, k[:, :end], v[:, :end], scale, later.repeat_interleave(repeats, 0))
        grad_q[:, start:end] = parts[0].unflatten(1, (end - start, repeats))
        grad_k[:, :end] += parts[1]
        grad_v[:, :end] += parts[2]
    return grad_q, grad_k, grad_v


def prefix_backward(asked: _Asked, k: torch.Tensor, v: torch.Tensor, scale: float) -> Gradients:
    """`causal_backward` where every query sees every key: k and v [N, K, D]."""
    folded = asked.map(lambda x: x.flatten(1, 2))
    grad_q = torch.empty_like(folded.q)
    grad_k, grad_v = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    step = max(16, _BLOCK_ELEMENTS // (k.shape[0] * k.shape[1]))
    for start in range(0, grad_q.shape[1], step):
        span = slice(start, start + step)
        grad_q[:, span], part_k, part_v = _part_backward(folded.map(lambda x: x[:, span]), k, v, scale, None)  # noqa: B023
        grad_k += part_k
        grad_v += part_v
    return grad_q.view(asked.q.shape), grad_k, grad_v


def _part_backward(
    asked: _Asked, k: torch.Tensor, v: torch.Tensor, scale: float, later: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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


def _by_token(heads: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[1, H, L, D] -> [L, H_kv, R, D]."""
    return heads[0].transpose(0, 1).unflatten(1, (kv_heads, -1))


def _by_head(tokens: torch.Tensor) -> torch.Tensor:
    """[L, H_kv, R, D] -> [1, H, L, D]."""
    return tokens.flatten(1, 2).transpose(0, 1)[None]


def _take(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[L, ...] at index [n, T] -> [n, T, ...]."""
    return tensor.index_select(0, index.flatten()).unflatten(0, tuple(index.shape))


def _real(by_row: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """[n, T, ...] -> [M, ...] over the M valid places."""
    flat = by_row.flatten(0, 1)
    return flat if valid.all() else flat[valid.flatten()]


def _merge(
    out: torch.Tensor, lse: torch.Tensor, own: torch.Tensor, own_lse: torch.Tensor, places: torch.Tensor
) -> None:
    """Combine attention over two disjoint sets of keys, in place."""
    before = lse[places]
    total = torch.logaddexp(before, own_lse)
    mixed = out[places] * (before - total).exp()[..., None] + own * (own_lse - total).exp()[..., None]
    out[places] = mixed.to(out.dtype)
    lse[places] = total
