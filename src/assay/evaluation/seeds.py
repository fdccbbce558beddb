"""The difference of two settings from several seeds each on common problems: seeds and problems are both drawn."""

from __future__ import annotations

import numpy as np
from scipy import stats

from assay.errors import InputError
from assay.evaluation.intervals import Difference, Interval


def setting_difference(before: np.ndarray, after: np.ndarray, level: float = 0.95) -> Difference:
    """Mean of `after - before` over seeds and problems, from rates [S, P] and [S', P] of S, S' >= 2 seeds.

    The variance is that of a crossed design, V(seeds) + V(problems) - V(residual), because both estimates contain the
    residual noise; degrees of freedom after Satterthwaite (1946, Biometrics Bull. 2:110), which with two or three seeds
    are few and make the interval wide, as they should. Problems with a missing verdict (NaN) are left out. Raises
    InputError for a single seed: then only the two trained models can be compared, not the settings.
    """
    before, after = np.atleast_2d(np.asarray(before, float)), np.atleast_2d(np.asarray(after, float))
    if before.shape[1] != after.shape[1]:
        raise InputError(f"settings must share their problems, got {before.shape[1]} and {after.shape[1]}")
    if min(len(before), len(after)) < 2:
        raise InputError("one seed cannot say how a setting varies; give two or more seeds of each")
    judged = ~(np.isnan(before).any(axis=0) | np.isnan(after).any(axis=0))
    if judged.sum() < 2:
        raise InputError("the settings share fewer than two problems that all runs judged")
    before, after = before[:, judged], after[:, judged]
    change = after.mean(axis=0) - before.mean(axis=0)
    pseudo = 1 / np.sqrt(min(len(before), len(after)))
    problems = float(np.r_[change, pseudo, -pseudo].var(ddof=1)) / (len(change) + 2)
    seeds = [float(table.mean(axis=1).var(ddof=1)) / len(table) for table in (before, after)]
    variance = max(problems + sum(seeds) - _residual(before) - _residual(after), problems, sum(seeds))
    freedom = variance**2 / (
        problems**2 / (len(change) - 1)
        + sum(part**2 / (len(table) - 1) for part, table in zip(seeds, (before, after), strict=True))
    )
    half = float(stats.t.ppf((1 + level) / 2, max(1.0, freedom)) * np.sqrt(variance))
    mean = float(change.mean())
    return Difference(
        value=mean,
        interval=Interval(max(-1.0, mean - half), min(1.0, mean + half), level),
        problems=len(change),
        better=int((change > 0).sum()),
        worse=int((change < 0).sum()),
    )


def welch_difference(before: np.ndarray, after: np.ndarray, level: float = 0.95) -> tuple[float, Interval]:
    """Difference of means [S] and [S'] over seeds alone, S, S' >= 2 (Welch 1947), for metrics without problems."""
    before, after = np.asarray(before, float), np.asarray(after, float)
    if min(len(before), len(after)) < 2:
        raise InputError("one seed cannot say how a setting varies; give two or more seeds of each")
    parts = [values.var(ddof=1) / len(values) for values in (before, after)]
    mean = float(after.mean() - before.mean())
    if sum(parts) == 0:
        return mean, Interval(mean, mean, level)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(before) - 1) + parts[1] ** 2 / (len(after) - 1))
    half = float(stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(sum(parts)))
    return mean, Interval(mean - half, mean + half, level)


def _residual(table: np.ndarray) -> float:
    """Variance of the grand mean that comes from the interaction of seed and problem, sampling noise included."""
    seeds, problems = table.shape
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0, keepdims=True) + table.mean()
    return float((rest**2).sum()) / ((seeds - 1) * (problems - 1)) / (seeds * problems)
