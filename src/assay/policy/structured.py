"""Attention of a packed row by its parts, on CPU: prompts, completions on their prompt, completions on themselves.

A mask over the packed row would cost (P + G T)^2 for a group. Here a prompt attends to itself once, all completions
of a group attend to the prompt's keys in one product (nothing is repeated, grouped-query heads are folded into the
queries), and each completion attends to itself. The last two are merged by their log-sum-exps; backward gives the
flash kernels the merged output and log-sum-exp, with which each part's gradient is exact (as in Ring Attention,
arXiv 2310.01889).
"""

from __future__ import annotations

from typing import Any

import torch

from assay.policy.packing import SharedPrefix

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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
        layout, scale = ctx.layout, ctx.scale
        q, k, v = _grouped(query, key, value)
        grad = grad_out.reshape(q.shape)
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k[:, 0]), torch.zeros_like(v[:, 0])
        for start, middle, end in layout.groups:
            span = slice(start, middle)
            operands = _causal_operands(q, k, v, start, middle)
            parts = _flash_backward(
                grad[:, :, span], *operands, out[:, :, span], lse[:, :, span], 0.0, True, scale=scale
            )
            grad_q[:, :, span] = parts[0]
            grad_k[:, span] += parts[1].sum(1)
            grad_v[:, span] += parts[2].sum(1)
            if end == middle:
                continue
            rows = slice(middle, end)
            operands = _prefix_operands(q, k, v, start, middle, end)
            folded = [tensor[:, :, rows].reshape(operands[0].shape) for tensor in (grad, out)]
            total = lse[:, :, rows].reshape(operands[0].shape[:3])
            parts = _flash_backward(folded[0], *operands, folded[1], total, 0.0, False, scale=scale)
            grad_q[:, :, rows] = parts[0].view(grad_q[:, :, rows].shape)
            grad_k[:, span] += parts[1][:, 0]
            grad_v[:, span] += parts[2][:, 0]
        for index, valid in layout.buckets:
            _row_backward(ctx, grad, (q, k, v), (out, lse), index, valid, (grad_q, grad_k, grad_v))
        return grad_q.view(query.shape), grad_k[None], grad_v[None], None, None


def _row_backward(
    ctx: Any,
    grad: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    results: tuple[torch.Tensor, torch.Tensor],
    index: torch.Tensor,
    valid: torch.Tensor,
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Add the completions-on-themselves part to the gradients. Padding repeats a real token with zero gradient."""
    q = inputs[0]
    operands = _row_operands(*inputs, index)
    above = _by_row(grad, index) * valid[:, None, None, :, None].to(grad.dtype)
    parts = _flash_backward(
        above.flatten(0, 1),
        *operands,
        _by_row(results[0], index).flatten(0, 1),
        _by_row(results[1], index).flatten(0, 1),
        0.0,
        True,
        scale=ctx.scale,
    )
    places = index[valid]
    grads[0][:, :, places] += _ungroup(parts[0], q, index, valid)
    grads[1][:, places] += _ungroup(parts[1], q, index, valid).sum(1)
    grads[2][:, places] += _ungroup(parts[2], q, index, valid).sum(1)


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
