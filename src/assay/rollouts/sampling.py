"""Drawing tokens: one random stream per completion, by inversion of the cumulative distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from assay.rollouts.protocol import Sampling

_BLOCK = 256


class RandomStream:
    """Uniform numbers in [0, 1) that depend on (seed, index) and on nothing else.

    >>> [round(RandomStream(7, 1).next(), 6) == round(RandomStream(7, 1).next(), 6), RandomStream(7, 1).next() < 1]
    [True, True]
    """

    def __init__(self, seed: int, index: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([abs(seed), index])))
        self._block: list[float] = []

    def next(self) -> float:
        if not self._block:
            self._block = self._generator.random(32).tolist()[::-1]
        return self._block.pop()


@dataclass(frozen=True)
class Draw:
    """Tokens [B], their log-probs [B] and the entropies [B] (nats) of the distributions that they were drawn from."""

    tokens: torch.Tensor
    logps: torch.Tensor
    entropies: torch.Tensor


def draw(logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> Draw:
    """Draw one token a row.

    Args:
        logits: [B, V].
        samplings: how each row is drawn. Temperature 0 takes the largest logit; its log-prob and entropy are then
            those of temperature 1.
        uniforms: B numbers in [0, 1); equal numbers and logits give equal tokens.
    """
    device = logits.device
    # Apple's backend has no float64, which the cumulative sums need.
    scores = (logits.cpu() if device.type == "mps" else logits).float()
    temperatures = [sampling.temperature or 1.0 for sampling in samplings]
    if any(temperature != 1.0 for temperature in temperatures):
        scores = scores / torch.tensor(temperatures, device=scores.device)[:, None]
    is_truncated = any(sampling.is_truncated for sampling in samplings)
    if is_truncated:
        scores = torch.stack([truncate(row, sampling) for row, sampling in zip(scores, samplings)])
    shifted = scores - scores.amax(-1, keepdim=True)
    weights = shifted.exp()
    blocks = _block_sums(weights)
    total = blocks[:, -1:]
    tokens = _invert(weights, blocks, torch.tensor(uniforms, dtype=torch.float64, device=scores.device))
    if any(sampling.temperature == 0 for sampling in samplings):
        greedy = torch.tensor([sampling.temperature == 0 for sampling in samplings], device=scores.device)
        tokens = torch.where(greedy, shifted.argmax(-1), tokens)
    log_total = total.log()
    logps = (shifted.gather(1, tokens[:, None]).double() - log_total).squeeze(1).float()
    if is_truncated:
        # sum p (s - max), with 0 * -inf = 0 for the tokens that truncation removed.
        shifted = shifted.clamp_(min=-1e4)
    mean = torch.linalg.vecdot(weights, shifted).double() / total.squeeze(1)
    return Draw(tokens.to(device), logps, (log_total.squeeze(1) - mean).float())


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """[B, V] -> [B, V / block] cumulative sums over blocks in float64: no tail is lost to float32's rounding."""
    size = weights.shape[1]
    whole = size // _BLOCK * _BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, _BLOCK)).sum(-1).double()
    if whole < size:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True).double()], dim=1)
    return sums.cumsum(1)


def _invert(weights: torch.Tensor, blocks: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative weight exceeds uniform * total: first its block, then inside the block."""
    goal = uniforms[:, None] * blocks[:, -1:]
    block = torch.searchsorted(blocks, goal, right=True).clamp_(max=blocks.shape[1] - 1)
    before = F.pad(blocks, (1, 0))[:, :-1].gather(1, block)
    columns = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=weights.shape[1] - 1)).double()
    inside.masked_fill_(columns >= weights.shape[1], 0.0)
    running = inside.cumsum(1)
    offset = torch.searchsorted(running, goal - before, right=True)
    # Rounding may push the goal past the block's end: then the last token with any weight is meant.
    last = (inside > 0).double().mul_(torch.arange(1, _BLOCK + 1, device=weights.device)).argmax(1, keepdim=True)
    return (block * _BLOCK + torch.minimum(offset, last)).squeeze(1)


def truncate(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """[V] scores with the tokens outside top-k, then min-p, then top-p at -inf; the most likely one always stays."""
    order = scores.sort(descending=True, stable=True)
    probs = order.values.softmax(0)
    keep = torch.ones_like(probs, dtype=torch.bool)
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    if sampling.min_p > 0:
        keep &= probs >= sampling.min_p * probs[0]
    if sampling.top_p < 1:
        kept = probs * keep
        kept = kept / kept.sum()
        keep &= kept.cumsum(0) - kept < sampling.top_p
    keep[0] = True
    return torch.full_like(scores, -torch.inf).index_copy(0, order.indices[keep], order.values[keep])
