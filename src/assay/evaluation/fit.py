"""The compute-scaling fit of arXiv 2510.13786: where a run is heading, and whether its data can say so at all.

R(C) = R0 + (A - R0) / (1 + (Cmid/C)^B): the ceiling A, the exponent B, and the compute Cmid at half the way.
For fixed B and Cmid the curve is linear in A and R0, so a grid in log space finds the valley and a bounded
least-squares step its bottom, in any unit of compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, stats

from assay.errors import InputError
from assay.evaluation.intervals import Interval

IDENTIFIED_WIDTH = 0.1  # a ceiling known no better than this is not known
IDENTIFIED_REACH = 2.0  # simulations: a run that ends before twice Cmid fits almost any ceiling
_NAMES = ("A", "B", "Cmid", "R0")
_B_RANGE = (0.1, 10.0)


@dataclass(frozen=True)
class SigmoidFit:
    """The fitted curve. `interval` is the profile-likelihood interval of A, `residual` the weighted RMS of the fit.

    `identified` is True only where the run went past twice the fitted Cmid and `interval` is narrower than 0.1;
    otherwise `reason` says what is missing, and A is not to be quoted.
    """

    A: float
    B: float
    Cmid: float
    R0: float
    points: int
    reach: float
    residual: float
    interval: Interval
    identified: bool
    reason: str

    def predict(self, compute: float | np.ndarray) -> float | np.ndarray:
        """The curve at `compute`."""
        return sigmoid(compute, self.A, self.B, self.Cmid, self.R0)


def sigmoid(compute: float | np.ndarray, A: float, B: float, Cmid: float, R0: float) -> float | np.ndarray:
    """R(C) of arXiv 2510.13786, equation 1; R0 at no compute.

    >>> [round(float(sigmoid(c, A=0.6, B=1.5, Cmid=1000, R0=0.2)), 7) for c in (0, 100, 1000, 10000)]
    [0.2, 0.2122614, 0.4, 0.5877386]
    """
    with np.errstate(divide="ignore", over="ignore"):
        return R0 + (A - R0) / (1 + (Cmid / np.asarray(compute, float)) ** B)


@dataclass(frozen=True)
class Observations:
    """Checked measurements: reward [N] at compute [N] with standard errors [N] (all 1 where they are not known), of run
    number `run` [N].
    """

    compute: np.ndarray
    reward: np.ndarray
    error: np.ndarray
    run: np.ndarray
    known_error: bool
    ceiling: float

    @property
    def cmid_range(self) -> tuple[float, float]:
        positive = self.compute[self.compute > 0]
        return float(positive.min()) / 10, float(positive.max()) * 100

    def chosen(self, kept: np.ndarray) -> Observations:
        """Those where `kept` [N] is True."""
        arrays = {name: getattr(self, name)[kept] for name in ("compute", "reward", "error", "run")}
        return replace(self, **arrays)

    def residuals(self, parameters: Mapping[str, float]) -> np.ndarray:
        return (np.asarray(sigmoid(self.compute, **parameters)) - self.reward) / self.error

    def derivatives(self, parameters: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Of the residuals [N], by A, log B, log Cmid and R0."""
        share = np.asarray(sigmoid(self.compute, A=1.0, B=parameters["B"], Cmid=parameters["Cmid"], R0=0.0))
        slope = (parameters["A"] - parameters["R0"]) * share * (1 - share) / self.error
        with np.errstate(divide="ignore"):
            distance = np.where(self.compute > 0, parameters["B"] * np.log(parameters["Cmid"] / self.compute), 0.0)
        return {
            "A": share / self.error,
            "B": -slope * distance,
            "Cmid": -slope * parameters["B"],
            "R0": (1 - share) / self.error,
        }


def fit_sigmoid(
    compute: Any,
    reward: Any,
    *,
    error: Any = None,
    runs: Any = None,
    initial: float | None = None,
    exclude_below: float = 0.0,
    ceiling: float = 1.0,
    level: float = 0.95,
) -> SigmoidFit:
    """Fit held-out reward [N] against cumulative compute [N], in any unit.

    `error` [N] are standard errors of the rewards (None: one unknown noise level, estimated from the fit). `runs` [N]
    tells points of several runs (seeds) apart, whose scatter then widens the interval (`interval_of`). `initial` is
    a measured R0 to hold fixed; None fits it, and a point at compute 0 counts as a measurement of it. Points with
    0 < compute < `exclude_below` are left out: the first part of a run often rises off the curve. `ceiling` bounds A
    and R0 from above, 0 from below. Raises InputError for unequal lengths, values that are not finite, negative
    compute, or fewer than 5 points with compute above 0.
    """
    data = observations(compute, reward, error, runs, exclude_below, ceiling)
    fixed = {} if initial is None else {"R0": float(initial)}
    best, cost = _minimise(data, fixed)
    reach = float(data.compute.max()) / best["Cmid"]
    residual = float(np.sqrt(cost / len(data.compute)))
    interval = interval_of(data, "A", fixed, level)
    reason = _missing(reach, interval)
    return SigmoidFit(
        **best,
        points=len(data.compute),
        reach=reach,
        residual=residual,
        interval=interval,
        identified=not reason,
        reason=reason,
    )


def interval_of(data: Observations, name: str, fixed: Mapping[str, float], level: float = 0.95) -> Interval:
    """The profile interval of a parameter, and where there are several runs at least that of the jackknife over runs.

    Points of one run err together, which the profile cannot know; leaving out one run at a time shows it.
    """
    inside = profile(data, name, fixed, level)
    runs = np.unique(data.run)
    if len(runs) < 2:
        return inside
    centre = _scaled(name, _minimise(data, fixed)[0][name])
    left_out = [_scaled(name, _minimise(data.chosen(data.run != run), fixed)[0][name]) for run in runs]
    error = np.sqrt((len(runs) - 1) / len(runs) * np.square(left_out - np.mean(left_out)).sum())
    half = stats.t.ppf((1 + level) / 2, len(runs) - 1) * error
    smallest, largest = _range(data, name)
    low, high = (float(_unscaled(name, end)) for end in (centre - half, centre + half))
    return Interval(max(smallest, min(inside.low, low)), min(largest, max(inside.high, high)), level)


def profile(data: Observations, name: str, fixed: Mapping[str, float], level: float = 0.95) -> Interval:
    """Interval of one parameter: the values whose best fit, over all others, is not significantly worse.

    With known errors the threshold is that of a likelihood ratio, widened where the fit is worse than the errors allow;
    otherwise it is an F test on the residual variance.
    """
    best, cost = _minimise(data, fixed)
    free = len(_NAMES) - len(fixed)
    degrees = max(1, len(data.reward) - free)
    if data.known_error:
        allowed = stats.chi2.ppf(level, 1) * max(1.0, cost / degrees)
    else:
        allowed = stats.f.ppf(level, 1, degrees) * cost / degrees
    allowed = max(allowed, 1e-12)

    def excess(value: float) -> float:
        return _minimise(data, {**fixed, name: value}, near=best)[1] - cost - allowed

    low, high = _range(data, name)
    logarithmic = name in ("B", "Cmid")
    return Interval(
        _crossing(excess, best[name], low, logarithmic), _crossing(excess, best[name], high, logarithmic), level
    )


def _crossing(excess: Callable[[float], float], best: float, bound: float, logarithmic: bool) -> float:
    """Where `excess` turns positive between the best value and the bound; the bound where it never does."""
    if best == bound:
        return bound
    to, back = (np.log, np.exp) if logarithmic else (float, float)
    start, end = to(best), to(bound)
    inside = start
    for share in np.geomspace(1 / 256, 1, 9):
        outside = start + (end - start) * share
        if excess(float(back(outside))) > 0:
            root = optimize.brentq(lambda value: excess(float(back(value))), inside, outside, xtol=1e-5)
            return float(back(root))
        inside = outside
    return bound


def _minimise(
    data: Observations, fixed: Mapping[str, float], near: Mapping[str, float] | None = None
) -> tuple[dict[str, float], float]:
    """Best parameters and their sum of squared residuals, with those in `fixed` held."""
    starts = [*_grid(data, fixed, keep=1), {**near, **fixed}] if near else _grid(data, fixed, keep=3)
    free = [name for name in _NAMES if name not in fixed]
    bounds = np.array([_scaled(name, np.array(_range(data, name))) for name in free]).T

    def unpack(vector: np.ndarray) -> dict[str, float]:
        values = {name: float(_unscaled(name, value)) for name, value in zip(free, vector, strict=True)}
        return {name: values.get(name, fixed.get(name, 0.0)) for name in _NAMES}

    def jacobian(vector: np.ndarray) -> np.ndarray:
        columns = data.derivatives(unpack(vector))
        return np.stack([columns[name] for name in free], axis=1)

    best: dict[str, float] = {}
    cost = np.inf
    for start in starts:
        vector = np.clip([_scaled(name, start[name]) for name in free], bounds[0], bounds[1])
        found = optimize.least_squares(
            lambda v: data.residuals(unpack(v)), vector, jacobian, bounds=bounds, xtol=1e-12, ftol=1e-12
        )
        if 2 * found.cost < cost:
            best, cost = unpack(found.x), 2 * float(found.cost)
    return best, cost


def _grid(data: Observations, fixed: Mapping[str, float], keep: int) -> list[dict[str, float]]:
    """The `keep` best starts on a log grid over B and Cmid, with A and R0 in closed form, clipped to their range."""
    axes = [
        np.array([fixed[name]]) if name in fixed else np.geomspace(*_range(data, name), count)
        for name, count in (("B", 20), ("Cmid", 48))
    ]
    b, cmid = (axis.ravel() for axis in np.meshgrid(*axes))
    shape = np.asarray(sigmoid(data.compute[None], A=1.0, B=b[:, None], Cmid=cmid[:, None], R0=0.0)) / data.error
    base = 1 / data.error - shape  # residual = A * shape + R0 * base - target
    target = np.broadcast_to(data.reward / data.error, shape.shape)
    a, r0 = _closed_form(shape, base, target, fixed, data.ceiling)
    cost = ((a[:, None] * shape + r0[:, None] * base - target) ** 2).sum(axis=1)
    order = np.argsort(cost)
    chosen = [order[0], *(index for index in order[1:200:40])][:keep]
    return [dict(zip(_NAMES, map(float, (a[i], b[i], cmid[i], r0[i])), strict=True)) for i in chosen]


def _closed_form(
    shape: np.ndarray, base: np.ndarray, target: np.ndarray, fixed: Mapping[str, float], ceiling: float
) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares A and R0 [G] for every grid point, each given the other where it is fixed."""

    def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x * y).sum(axis=1)

    tiny = 1e-12
    if "R0" in fixed:
        r0 = np.full(len(shape), fixed["R0"])
    elif "A" in fixed:
        r0 = dot(base, target - fixed["A"] * shape) / (dot(base, base) + tiny)
    else:
        determinant = dot(shape, shape) * dot(base, base) - dot(shape, base) ** 2
        r0 = (dot(shape, shape) * dot(base, target) - dot(shape, base) * dot(shape, target)) / (determinant + tiny)
    r0 = r0 if "R0" in fixed else np.clip(r0, 0.0, ceiling)
    a = np.full(len(shape), fixed["A"]) if "A" in fixed else dot(shape, target - r0[:, None] * base)
    a = a if "A" in fixed else np.clip(a / (dot(shape, shape) + tiny), 0.0, ceiling)
    return a, r0


def _range(data: Observations, name: str) -> tuple[float, float]:
    return {"A": (0.0, data.ceiling), "R0": (0.0, data.ceiling), "B": _B_RANGE, "Cmid": data.cmid_range}[name]


def _scaled(name: str, value: Any) -> Any:
    return np.log(value) if name in ("B", "Cmid") else value


def _unscaled(name: str, value: Any) -> Any:
    return np.exp(value) if name in ("B", "Cmid") else value


def _missing(reach: float, interval: Interval) -> str:
    """Why the ceiling may not be quoted; empty where it may."""
    reasons = []
    if reach < IDENTIFIED_REACH:
        reasons.append(f"the run ends at {reach:.2g}x Cmid, before {IDENTIFIED_REACH:g}x")
    if interval.width >= IDENTIFIED_WIDTH:
        reasons.append(f"the interval of A {interval} is not narrower than {IDENTIFIED_WIDTH:g}")
    return "; ".join(reasons)


def observations(
    compute: Any, reward: Any, error: Any, runs: Any, exclude_below: float, ceiling: float
) -> Observations:
    """Check and select what `fit_sigmoid` is given; raises InputError as it says."""
    compute, reward = np.asarray(compute, float), np.asarray(reward, float)
    errors = np.ones_like(reward) if error is None else np.asarray(error, float)
    numbers = np.zeros(reward.shape, int) if runs is None else np.unique(runs, return_inverse=True)[1]
    if compute.ndim != 1 or not compute.shape == reward.shape == errors.shape == numbers.shape:
        raise InputError(f"the fit needs as many rewards as compute values, got {reward.shape} and {compute.shape}")
    if not (np.isfinite(compute).all() and np.isfinite(reward).all() and np.isfinite(errors).all()):
        raise InputError("the fit needs finite compute, rewards and errors; leave out what was not measured")
    if (compute < 0).any() or (errors <= 0).any():
        raise InputError("the fit needs compute of at least 0 and errors above 0")
    kept = (compute == 0) | (compute >= exclude_below)
    usable = int((compute[kept] > 0).sum())
    if usable < 5:
        raise InputError(f"the fit needs 5 points with compute above 0 and at least {exclude_below:g}; got {usable}")
    return Observations(compute, reward, errors, numbers, error is not None, ceiling).chosen(kept)
