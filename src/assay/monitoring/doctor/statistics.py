"""The few statistics behind the rules: bounds of a share, and trends that outliers do not make."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
# Theil-Sen looks at all pairs; 300 points keep it at a few milliseconds and lose nothing that a rule could see.
MAX_POINTS = 300


@dataclass(frozen=True)
class Rate:
    """A pooled share: `value` of `count` trials, with its Wilson 95% bounds."""

    value: float
    count: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} (95% bounds {self.low:.1%} to {self.high:.1%}, n={self.count:.0f})"


@dataclass(frozen=True)
class Trend:
    """A line through the median slope of all pairs. `change` = slope x length of the window; `p` from Mann-Kendall."""

    change: float
    p: float
    start: float
    end: float
    points: int

    def rises(self, at_least: float = 0.0, p: float = 1e-3) -> bool:
        return self.p < p and self.change > at_least

    def falls(self, at_least: float = 0.0, p: float = 1e-3) -> bool:
        return self.p < p and self.change < -at_least

    def __str__(self) -> str:
        return f"{self.start:.3g} -> {self.end:.3g}"


def wilson(successes: float, trials: float) -> Rate:
    """Wilson's score interval (1927), which stays inside [0, 1] and is honest for few trials.

    >>> rate = wilson(8, 10)
    >>> round(rate.low, 4), round(rate.high, 4)
    (0.4902, 0.9433)
    """
    share = successes / trials
    square = Z95**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    spread = Z95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return Rate(share, trials, max(0.0, centre - spread), min(1.0, centre + spread))


def trend(steps: np.ndarray, values: np.ndarray) -> Trend:
    """Theil-Sen slope and Mann-Kendall p; long series are averaged into `MAX_POINTS` blocks first.

    >>> found = trend(np.arange(40), np.arange(40) * 0.5)
    >>> found.change, found.rises()
    (19.5, True)
    """
    from scipy.stats import kendalltau, theilslopes

    if len(values) > MAX_POINTS:
        blocks = np.array_split(np.arange(len(values)), MAX_POINTS)
        steps = np.array([steps[block].mean() for block in blocks])
        values = np.array([values[block].mean() for block in blocks])
    if np.ptp(values) == 0:
        return Trend(0.0, 1.0, float(values[0]), float(values[-1]), len(values))
    slope, intercept, _, _ = theilslopes(values, steps)
    p = float(kendalltau(steps, values).pvalue)
    start, end = intercept + slope * steps[0], intercept + slope * steps[-1]
    return Trend(float(slope * (steps[-1] - steps[0])), p, float(start), float(end), len(values))


def spread(values: np.ndarray) -> float:
    """Robust standard deviation: 1.4826 x the median absolute deviation."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def linear_fit(steps: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """(value at the first step, value at the last, R^2) of the least-squares line."""
    slope, intercept = np.polyfit(steps, values, 1)
    residual = values - (slope * steps + intercept)
    total = ((values - values.mean()) ** 2).sum()
    explained = 1 - (residual**2).sum() / total if total > 0 else 0.0
    return float(slope * steps[0] + intercept), float(slope * steps[-1] + intercept), float(explained)
