"""Measurements that add up: over micro-batches, over ranks, and only then become numbers.

A mean of means weighs a short micro-batch like a long one. Here each entry holds what can be added (or compared), so
that the reduced value is that of the whole window, however it was cut. Names are those of TRL's logs where it has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from assay.objectives.batch import wide

QUANTILES = (0.01, 0.5, 0.99)
_EDGE = 4.0
_BINS = 800


@dataclass
class Metrics:
    """Entries by name, each a small float64 tensor of its kind.

    `totals` [1] add up; `means` [2] are (sum, count); `weights` [3] are (sum, sum of squares, count) of an importance
    weight, giving its effective sample size; `spreads` [3] are the same of a value, giving its sample standard
    deviation; `histograms` [bins] count log-ratios, giving quantiles; `maxima` and
    `minima` [1] compare. The keys depend on the objective and on which tensors a row has, never on values, so that
    ranks can reduce packed tensors.

    >>> a, b = Metrics(), Metrics()
    >>> a.mean("kl", torch.tensor(6.0), 3); b.mean("kl", torch.tensor(1.0), 1)
    >>> Metrics.reduce([a, b]).values()
    {'kl': 1.75}
    """

    totals: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    spreads: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)
    minima: dict[str, Tensor] = field(default_factory=dict)

    def total(self, name: str, value: Tensor | float) -> None:
        self.totals[name] = _flat(value)

    def mean(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        total = torch.as_tensor(total)
        self.means[name] = torch.cat([_flat(total), _flat(count).to(total.device)])

    def masked_mean(self, name: str, x: Tensor, mask: Tensor) -> None:
        """The mean of `x` where `mask` is True; both of one shape."""
        self.mean(name, masked_sum(x, mask), mask.sum())

    def effective_sample_size(self, name: str, weight: Tensor, mask: Tensor) -> None:
        """(sum w)^2 / (n sum w^2): 1 when all weights are equal, near 1/n when one dominates."""
        self.weights[name] = _powers(weight, mask)

    def spread(self, name: str, x: Tensor, mask: Tensor) -> None:
        """The sample standard deviation of `x` where `mask` is True."""
        self.spreads[name] = _powers(x, mask)

    def quantiles(self, name: str, log_ratio: Tensor, mask: Tensor) -> None:
        """Quantiles of exp(log_ratio), to 1% of the value between e^-4 and e^4 (beyond, the edge)."""
        inside = wide(log_ratio.detach()).clamp(-_EDGE, _EDGE)[mask]
        position = ((inside + _EDGE) * (_BINS / (2 * _EDGE))).long().clamp(0, _BINS - 1)
        self.histograms[name] = wide(torch.bincount(position, minlength=_BINS))

    def maximum(self, name: str, x: Tensor, mask: Tensor) -> None:
        self.maxima[name] = torch.where(mask, wide(x.detach()), -math.inf).amax().reshape(1) if x.numel() else _none(x)

    def minimum(self, name: str, x: Tensor, mask: Tensor) -> None:
        self.minima[name] = torch.where(mask, wide(x.detach()), math.inf).amin().reshape(1) if x.numel() else -_none(x)

    def constant(self, name: str, value: float, device: torch.device | str = "cpu") -> None:
        """A number that is the same in every micro-batch and on every rank."""
        self.maxima[name] = wide(torch.full((1,), value, device=device))

    def update(self, other: Metrics) -> None:
        """Take over the entries of `other`, whose names are different ones."""
        for mine, theirs in zip(self._kinds(), other._kinds(), strict=True):
            mine.update(theirs)

    def split(self, prefix: str) -> tuple[Metrics, Metrics]:
        """The entries whose names begin with `prefix`, and the others."""
        inside, outside = Metrics(), Metrics()
        for mine, match, rest in zip(self._kinds(), inside._kinds(), outside._kinds(), strict=True):
            for name, value in mine.items():
                (match if name.startswith(prefix) else rest)[name] = value
        return inside, outside

    @staticmethod
    def reduce(parts: Iterable[Metrics]) -> Metrics:
        """One Metrics for the whole, from those of its micro-batches (or windows)."""
        whole = Metrics()
        for part in parts:
            for mine, theirs in zip(whole._additive(), part._additive(), strict=True):
                for name, value in theirs.items():
                    mine[name] = mine[name] + value if name in mine else value
            for name, value in part.maxima.items():
                whole.maxima[name] = torch.maximum(whole.maxima.get(name, value), value)
            for name, value in part.minima.items():
                whole.minima[name] = torch.minimum(whole.minima.get(name, value), value)
        return whole

    def pack(self) -> tuple[Tensor, Tensor]:
        """Two flat float64 tensors: ranks reduce the first by SUM and the second by MAX, then `unpack` them."""
        additive = [value for kind in self._additive() for _, value in sorted(kind.items())]
        extreme = [value for _, value in sorted(self.maxima.items())]
        extreme += [-value for _, value in sorted(self.minima.items())]
        empty = torch.zeros(0, dtype=torch.float64)
        return torch.cat(additive or [empty]), torch.cat(extreme or [empty])

    def unpack(self, additive: Tensor, extreme: Tensor) -> Metrics:
        """The reduced Metrics, with the names of this one."""
        whole = Metrics()
        for mine, theirs in zip(self._additive(), whole._additive(), strict=True):
            for name, value in sorted(mine.items()):
                theirs[name], additive = additive[: len(value)], additive[len(value) :]
        for name in sorted(self.maxima):
            whole.maxima[name], extreme = extreme[:1], extreme[1:]
        for name in sorted(self.minima):
            whole.minima[name], extreme = -extreme[:1], extreme[1:]
        return whole

    def values(self) -> dict[str, float]:
        """Numbers by name. An entry that nothing was observed for is left out, never a NaN or a zero."""
        numbers = {name: float(value) for name, value in self.totals.items()}
        for name, (total, count) in ((name, value.tolist()) for name, value in self.means.items()):
            if count > 0:
                numbers[name] = total / count
        for name, (total, squares, count) in ((name, value.tolist()) for name, value in self.weights.items()):
            if count > 0 and squares > 0:
                numbers[name] = total * total / (count * squares)
        for name, (total, squares, count) in ((name, value.tolist()) for name, value in self.spreads.items()):
            if count > 1:
                numbers[name] = math.sqrt(max(squares - total * total / count, 0.0) / (count - 1))
        for name, counts in self.histograms.items():
            numbers |= {f"{name}/p{round(100 * q)}": value for q, value in _quantiles(counts)}
        for name, value in [*self.maxima.items(), *self.minima.items()]:
            if not math.isinf(float(value)):
                numbers[name] = float(value)
        return numbers

    def _additive(self) -> tuple[dict[str, Tensor], ...]:
        return self.totals, self.means, self.weights, self.spreads, self.histograms

    def _kinds(self) -> tuple[dict[str, Tensor], ...]:
        return *self._additive(), self.maxima, self.minima


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of `x` where `mask` is True, in float64 and without gradient."""
    return torch.where(mask, wide(x.detach()), 0.0).sum()


def _powers(x: Tensor, mask: Tensor) -> Tensor:
    """(sum, sum of squares, count) where `mask` is True."""
    kept = torch.where(mask, wide(x.detach()), 0.0)
    return torch.stack([kept.sum(), kept.square().sum(), wide(mask.sum())])


def _flat(value: Tensor | float) -> Tensor:
    return wide(torch.as_tensor(value).detach()).reshape(1)


def _none(x: Tensor) -> Tensor:
    return wide(torch.full((1,), -math.inf, device=x.device))


def _quantiles(counts: Tensor) -> list[tuple[float, float]]:
    """(q, value) from a histogram of log-ratios; the value is the middle of the bin that holds the quantile."""
    cumulative = counts.cumsum(0)
    if cumulative[-1] == 0:
        return []
    found = []
    for q in QUANTILES:
        bin_ = int(torch.searchsorted(cumulative, q * cumulative[-1]).clamp(max=_BINS - 1))
        found.append((q, math.exp((bin_ + 0.5) * 2 * _EDGE / _BINS - _EDGE)))
    return found
