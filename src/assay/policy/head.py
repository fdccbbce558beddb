"""Log-probabilities of chosen tokens from hidden states, in chunks: the [N, V] logits never exist at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# 24 MiB of float32 logits: enough rows for efficient matrix products, and below the size (32 MiB) from which the C
# library maps fresh pages for every allocation.
CHUNK_ELEMENTS = 6 * 2**20

# Rows of the output embedding that one product takes on CPU in float32.
_VOCABULARY_BLOCK = 768


@dataclass(frozen=True)
class LogitRule:
    """How logits z become the distribution that is sampled: softcap(scale * z) / temperature.

    `softcap` c is c * tanh(z / c) (Gemma 2), `scale` multiplies (Cohere) or divides as 1/x (Granite).
    """

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """In place where it can be; returns the logits of the distribution."""
        if self.scale != 1.0:
            logits = logits.mul_(self.scale)
        if self.softcap is not None:
            logits = logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)

    def chain(self, gradient: torch.Tensor, every: torch.Tensor, log_total: torch.Tensor) -> torch.Tensor:
        """d/dz from the gradient with respect to apply(z) = every + log_total. In place on `gradient`."""
        if self.softcap is not None:
            tanh = (every + log_total).mul_(self.temperature / self.softcap)
            gradient = gradient.mul_(1 - tanh.square_())
        factor = self.scale / self.temperature
        return gradient if factor == 1.0 else gradient.mul_(factor)


def token_logps(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    rule: LogitRule | None = None,
    entropies: bool = False,
    entropy_grad: bool = False,
    float32_logits: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log p(target) and, if asked, the entropy of p, under the rule's distribution.

    With a frozen head the gradient with respect to `hidden` is linear in what comes from above, so forward computes it
    for unit gradients and backward only scales it (two matrix products instead of three). With a trained head, backward
    recomputes the logits chunk by chunk.

    Args:
        hidden: [N, H].
        weight: [V, H] output embedding.
        targets: [N] token ids.
        bias: [V] or None.
        rule: scale, softcap and temperature of the logits.
        entropies: also return entropies, in nats.
        entropy_grad: entropies carry a gradient.
        float32_logits: multiply in float32 even where hidden and weight are half precision.

    Returns:
        ([N] log-probs, [N] entropies or None), float32 (float64 for float64 input).
    """
    logps, entropy = _TokenLogps.apply(
        hidden, weight, bias, targets, rule or LogitRule(), entropies or entropy_grad, entropy_grad, float32_logits
    )
    if entropy is not None and not entropy_grad:
        entropy = entropy.detach()
    return logps, entropy


def _compute_dtype(hidden: torch.Tensor, float32_logits: bool) -> torch.dtype:
    if float32_logits and hidden.dtype != torch.float64:
        return torch.float32
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def head_logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rule: LogitRule) -> torch.Tensor:
    """[N, H] -> [N, V] logits of the distribution, at least float32; hidden and weight have one dtype."""
    raw = _product(hidden, weight)
    exact = raw if raw.dtype in (torch.float32, torch.float64) else raw.float()
    if bias is not None:
        exact += bias
    return rule.apply(exact)


def _product(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """hidden weight^T. float32 on CPU goes by blocks of the vocabulary: one product as wide as the vocabulary writes
    rows so far apart that they fall into the same cache lines, and took up to twice as long (docs/speed.md)."""
    blocks = weight.shape[0] // _VOCABULARY_BLOCK
    if hidden.device.type != "cpu" or hidden.dtype != torch.float32 or blocks < 2:
        return hidden @ weight.T
    whole = blocks * _VOCABULARY_BLOCK
    out = hidden.new_empty(len(hidden), weight.shape[0])
    parts = torch.bmm(hidden.expand(blocks, *hidden.shape), weight[:whole].view(blocks, _VOCABULARY_BLOCK, -1).mT)
    out[:, :whole].view(len(hidden), blocks, _VOCABULARY_BLOCK).copy_(parts.transpose(0, 1))
    torch.mm(hidden, weight[whole:].T, out=out[:, whole:])
    return out


class _TokenLogps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        rule: LogitRule,
        entropies: bool,
        entropy_grad: bool,
        float32_logits: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        dtype = _compute_dtype(hidden, float32_logits)
        exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        count, rows = len(hidden), max(1, CHUNK_ELEMENTS // weight.shape[0])
        logps = torch.empty(count, dtype=exact, device=hidden.device)
        entropy = torch.empty_like(logps) if entropies else None
        trained_head = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        unit = ctx.needs_input_grad[0] and not trained_head
        unit_logp = torch.empty_like(hidden) if unit else None
        unit_entropy = torch.empty_like(hidden) if unit and entropy_grad else None
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(dtype)
            for start in range(0, count, rows):
                part = slice(start, start + rows)
                logits = head_logits(hidden[part].to(dtype), head, bias, rule)
                index = targets[part, None]
                if rule.softcap is None and not entropies:
                    logps[part], slope = _unit_logps(logits, index, head, rule, unit)
                    if unit_logp is not None and slope is not None:
                        unit_logp[part] = slope
                    continue
                log_total = logits.logsumexp(-1, keepdim=True)
                every = logits.sub_(log_total)
                logps[part] = every.gather(1, index).squeeze(1)
                if entropy is not None:
                    entropy[part] = -torch.linalg.vecdot(every.exp(), every)
                    if unit_entropy is not None:
                        slope = _entropy_slope(every, entropy[part])
                        unit_entropy[part] = rule.chain(slope, every, log_total).to(dtype) @ head
                if unit_logp is not None:
                    capped = every.clone() if rule.softcap is not None else every
                    slope = rule.chain(_logp_slope(every, index), capped, log_total)
                    unit_logp[part] = slope.to(dtype) @ head
        ctx.rule, ctx.dtype, ctx.entropy_grad, ctx.rows = rule, dtype, entropy_grad, rows
        if trained_head:
            ctx.save_for_backward(hidden, weight, bias, targets)
        else:
            ctx.save_for_backward(unit_logp, unit_entropy)
        ctx.trained_head = trained_head
        if entropy is not None and not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    def backward(ctx: Any, grad_logps: torch.Tensor, grad_entropy: torch.Tensor | None) -> tuple[Any, ...]:
        if not ctx.entropy_grad:
            grad_entropy = None
        if not ctx.trained_head:
            unit_logp, unit_entropy = ctx.saved_tensors
            if unit_logp is None:
                return (None,) * 8
            grad_hidden = unit_logp * grad_logps[:, None].to(unit_logp.dtype)
            if grad_entropy is not None:
                grad_hidden = grad_hidden + unit_entropy * grad_entropy[:, None].to(unit_logp.dtype)
            return grad_hidden, None, None, None, None, None, None, None
        return (*_recomputed_gradients(ctx, grad_logps, grad_entropy), None, None, None, None, None)


def _unit_logps(
    logits: torch.Tensor, index: torch.Tensor, head: torch.Tensor, rule: LogitRule, with_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log p(target) [n] and its gradient with respect to the hidden states [n, H]; overwrites the logits.

    The gradient is (onehot - p) W. With e = exp(z - max z) it is (total * onehot - e) W / total: neither the log-probs
    of all tokens nor p are ever written, and 1 - p stays exact for a target that is almost certain.
    """
    top = logits.amax(-1, keepdim=True)
    chosen = logits.gather(1, index) - top
    weights = logits.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    logps = (chosen - total.log()).squeeze(1)
    if not with_gradient:
        return logps, None
    weights.scatter_add_(1, index, -total)
    factor = -rule.scale / rule.temperature / total
    return logps, (weights.to(head.dtype) @ head).to(total.dtype).mul_(factor)


def _logp_slope(every: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """d log p_target / d logits = onehot - p, from the log-probs of all tokens, which it overwrites."""
    return every.exp_().neg_().scatter_add_(1, index, torch.ones_like(index, dtype=every.dtype))


def _entropy_slope(every: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    """d H / d logits_j = -p_j (log p_j + H), from the log-probs of all tokens."""
    return every.exp().neg_().mul_(every + entropy[:, None])


def _recomputed_gradients(
    ctx: Any, grad_logps: torch.Tensor, grad_entropy: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    hidden, weight, bias, targets = ctx.saved_tensors
    rule, dtype = ctx.rule, ctx.dtype
    needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    grad_hidden = torch.empty_like(hidden) if needs_hidden else None
    grad_weight = torch.zeros_like(weight) if needs_weight else None
    grad_bias = torch.zeros_like(bias) if needs_bias else None
    with torch.autocast(hidden.device.type, enabled=False):
        head = weight.to(dtype)
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            states = hidden[part].to(dtype)
            logits = head_logits(states, head, bias, rule)
            log_total = logits.logsumexp(-1, keepdim=True)
            every = logits.sub_(log_total)
            capped = every.clone() if rule.softcap is not None else every
            slope = torch.zeros(0)
            if grad_entropy is not None:
                entropy = -torch.linalg.vecdot(every.exp(), every)
                slope = _entropy_slope(every, entropy).mul_(grad_entropy[part, None])
            of_logp = _logp_slope(every, targets[part, None]).mul_(grad_logps[part, None])
            slope = of_logp if grad_entropy is None else slope.add_(of_logp)
            slope = rule.chain(slope, capped, log_total)
            if grad_bias is not None:
                grad_bias += slope.sum(0)
            slope = slope.to(dtype)
            if grad_hidden is not None:
                grad_hidden[part] = slope @ head
            if grad_weight is not None:
                grad_weight += slope.T @ states
    return grad_hidden, grad_weight, grad_bias
