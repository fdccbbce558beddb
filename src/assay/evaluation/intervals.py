"""Intervals for what evaluation measures: a rate, and the change of a rate on the same problems.

The problem, never the sample, is the unit that is drawn at random: several samples of one problem are not independent
evidence about the benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from assay.errors import InputError


@dataclass(frozen=True)
class Interval:
    """A confidence interval [low, high] of nominal coverage `level`."""

    low: float
    high: float
    level: float = 0.95

    @property
    def width(self) -> float:
        return self.high - self.low

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"[{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Difference:
    """The mean change `after - before` over `problems` problems that both results judged.

    `better` and `worse` count the problems whose own rate rose and fell.
    """

    value: float
    interval: Interval
    problems: int
    better: int
    worse: int

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes no change at all."""
        return 0.0 not in self.interval

    def __str__(self) -> str:
        verdict = "" if self.distinguishable else ", not distinguishable from no change"
        return f"{self.value:+.3f} {self.interval} on {self.problems} problems{verdict}"


def wilson(successes: float, trials: float, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927, J. Am. Stat. Assoc. 22:209).

    `trials` may be fractional (an effective sample size). Raises InputError unless 0 <= successes <= trials > 0.

    >>> print(wilson(8, 10))
    [0.490, 0.943]
    """
    if not 0 <= successes <= trials or trials <= 0:
        raise InputError(f"wilson({successes}, {trials}): need 0 <= successes <= trials and trials > 0")
    z = _quantile(level)
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return Interval(
        0.0 if successes == 0 else float(centre - half), 1.0 if successes == trials else float(centre + half), level
    )


def rate_interval(rates: np.ndarray, samples: int = 1, level: float = 0.95) -> Interval:
    """Interval of the mean of per-problem rates [P], each a mean of `samples` draws.

    Wilson's interval at the effective sample size m(1-m)P/var(rates) of a cluster sample, at most P * samples, with
    Korn and Graubard's correction for few clusters (1998, Survey Methodology 24:193); with one sample a problem that is
    Wilson's interval exactly. Unlike the bootstrap it does not shrink to a point when every problem has the same rate.
    NaN rates (not judged) are left out.
    """
    rates = _judged(rates)
    mean = float(rates.mean())
    spread = mean * (1 - mean)
    most = len(rates) * samples
    variance = float(rates.var())
    effective = most if variance * samples <= spread or spread == 0 else len(rates) * spread / variance
    if spread == 0:
        effective = len(rates)  # all alike at 0 or 1: samples of one problem need not be independent
    elif samples > 1 and len(rates) > 1:
        effective *= (_quantile(level) / _quantile(level, len(rates) - 1)) ** 2
    return wilson(min(mean, 1.0) * effective, effective, level)


def paired_difference(before: np.ndarray, after: np.ndarray, samples: int = 1, level: float = 0.95) -> Difference:
    """The mean of `after - before`, per-problem rates [P] of the same problems, with its interval.

    With one sample a problem the interval is Bonett and Price's for paired proportions (2012, J. Educ. Behav. Stat.
    37:479): a normal interval after one more win and one more loss, which keeps its coverage when few problems changed.
    With several samples the two added problems change by 1/sqrt(samples), the scale of one problem's noise. `samples`
    is the smaller number of draws behind a rate. Problems that either side did not judge (NaN) are left out.
    Raises InputError where the shapes differ or nothing is left.
    """
    before, after = np.asarray(before, float), np.asarray(after, float)
    if before.shape != after.shape or before.ndim != 1:
        raise InputError(f"paired results must cover the same problems, got shapes {before.shape} and {after.shape}")
    changes = _judged(after - before)
    pseudo = 1 / np.sqrt(samples)
    padded = np.concatenate([changes, [pseudo, -pseudo]])
    half = _quantile(level) * padded.std() / np.sqrt(len(padded))
    low, high = max(-1.0, padded.mean() - half), min(1.0, padded.mean() + half)
    return Difference(
        value=float(changes.mean()),
        interval=Interval(float(low), float(high), level),
        problems=len(changes),
        better=int((changes > 0).sum()),
        worse=int((changes < 0).sum()),
    )


def mcnemar(before: np.ndarray, after: np.ndarray) -> float:
    """Exact two-sided McNemar p-value for paired verdicts [P] of 0 and 1: are wins and losses equally likely?

    >>> float(round(mcnemar(np.array([0, 0, 0, 0, 0, 1]), np.array([1, 1, 1, 1, 1, 1])), 4))
    0.0625
    """
    wins = int(((before == 0) & (after == 1)).sum())
    losses = int(((before == 1) & (after == 0)).sum())
    return 1.0 if wins + losses == 0 else float(stats.binomtest(wins, wins + losses).pvalue)


def bootstrap(
    statistic_by_problem: np.ndarray, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap over problems of column means: [P] or [P, K] -> (low [K], high [K]).

    All columns share the resampled problems, so that a difference of columns is bootstrapped paired. Resampling the
    samples within a problem as well would break the coverage, so it is not offered.
    """
    values = np.asarray(statistic_by_problem, float)
    values = values[:, None] if values.ndim == 1 else values
    if len(values) == 0:
        raise InputError("bootstrap needs at least one problem, got none")
    draws = np.random.default_rng(seed).multinomial(len(values), np.full(len(values), 1 / len(values)), size=resamples)
    means = draws @ values / len(values)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high


def _judged(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, float)
    values = values[~np.isnan(values)]
    if len(values) == 0:
        raise InputError("no problem was judged: every rate is missing, so there is nothing to average")
    return values


def _quantile(level: float, degrees: int | None = None) -> float:
    """Two-sided normal quantile, Student's where `degrees` of freedom are given."""
    if not 0 < level < 1:
        raise InputError(f"level is a coverage between 0 and 1 (such as 0.95), got {level}")
    upper = (1 + level) / 2
    return float(stats.norm.ppf(upper) if degrees is None else stats.t.ppf(upper, degrees))
