"""pass@k, the chance that one of k answers is right, and pass^k, the chance that all k are; both unbiased."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.errors import InputError
from assay.evaluation.intervals import Interval, bootstrap, paired_difference, rate_interval

Counts = int | Sequence[int] | np.ndarray


def pass_at_k(n: Counts, c: Counts, k: int) -> np.ndarray | float:
    """Unbiased estimate 1 - C(n-c, k)/C(n, k) that one of k answers is right, from c right of n.

    arXiv 2107.03374, equation 1.

    Scalars give a float, arrays [P] give per-problem estimates [P]; their mean is the benchmark's pass@k. The product
    of (n-c-j)/(n-j) over j < k is summed as log1p, so nothing overflows and small estimates keep their digits.
    Raises InputError unless 0 <= c <= n and 1 <= k <= n.

    >>> round(pass_at_k(64, 5, 8), 9)
    0.499008461
    """
    n_, c_ = _counts(n, c, k)
    log_miss = np.zeros(np.broadcast(n_, c_).shape)
    for drawn in range(k):
        with np.errstate(divide="ignore"):
            log_miss = log_miss + np.log1p(-np.minimum(c_ / (n_ - drawn), 1.0))
    return _unwrap(-np.expm1(log_miss) + 0.0)


def pass_hat_k(n: Counts, c: Counts, k: int) -> np.ndarray | float:
    """Unbiased estimate C(c, k)/C(n, k) that all k answers are right: reliability (pass^k of arXiv 2406.12045).

    Shapes and errors as for `pass_at_k`.

    >>> round(pass_hat_k(8, 4, 2), 10)
    0.2142857143
    """
    n_, c_ = _counts(n, c, k)
    estimate = np.ones(np.broadcast(n_, c_).shape)
    for drawn in range(k):
        estimate = estimate * np.maximum(c_ - drawn, 0.0) / (n_ - drawn)
    return _unwrap(estimate)


@dataclass(frozen=True)
class Curve:
    """pass@k (or pass^k) over `ks`: `values` [K] and the bounds of the bootstrap over problems."""

    ks: tuple[int, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    problems: int
    warnings: tuple[str, ...] = ()

    def at(self, k: int) -> tuple[float, Interval]:
        """The value and interval at one k of `ks`."""
        column = self.ks.index(k)
        return float(self.values[column]), Interval(float(self.low[column]), float(self.high[column]))


def curve(n: Counts, c: Counts, ks: Sequence[int] | None = None, *, reliability: bool = False, seed: int = 0) -> Curve:
    """pass@k at each k, with 95% percentile-bootstrap bands over problems; `reliability` gives pass^k.

    `n` and `c` are counts by problem [P]; `ks` defaults to the powers of two up to the smallest n. k above n/2 is
    computed but warned about: there the estimate rests on few distinct subsets and its band is too narrow.
    """
    n_, c_, ks = _problems(n, c, ks)
    by_problem = _by_problem(n_, c_, ks, reliability)
    low, high = bootstrap(by_problem, seed=seed)
    for column in np.flatnonzero(np.ptp(by_problem, axis=0) == 0):  # resampling equal values would claim certainty
        interval = rate_interval(by_problem[:, column])
        low[column], high[column] = interval.low, interval.high
    return Curve(ks, by_problem.mean(axis=0), low, high, len(n_), _warnings(n_, ks))


def paired_curve(
    before: tuple[Counts, Counts],
    after: tuple[Counts, Counts],
    ks: Sequence[int] | None = None,
    *,
    reliability: bool = False,
    seed: int = 0,
) -> Curve:
    """The difference after - before of two models' pass@k on the same problems, bootstrapped in pairs.

    Each side is (n, c), counts by problem [P] in the same order. Where the band at a k excludes 0, the models differ.
    """
    n_before, c_before, _ = _problems(*before, None)
    n_after, c_after, _ = _problems(*after, None)
    if len(n_before) != len(n_after):
        raise InputError(f"paired pass@k needs the same problems, got {len(n_before)} and {len(n_after)}")
    smallest = np.minimum(n_before, n_after)
    chosen = tuple(ks) if ks is not None else powers_of_two(int(smallest.min()))
    difference = _by_problem(n_after, c_after, chosen, reliability) - _by_problem(
        n_before, c_before, chosen, reliability
    )
    low, high = bootstrap(difference, seed=seed)
    for column in np.flatnonzero(np.ptp(difference, axis=0) == 0):
        interval = paired_difference(np.zeros(len(difference)), difference[:, column], int(smallest.min())).interval
        low[column], high[column] = interval.low, interval.high
    return Curve(chosen, difference.mean(axis=0), low, high, len(smallest), _warnings(smallest, chosen))


def powers_of_two(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `largest`.

    >>> powers_of_two(9)
    (1, 2, 4, 8)
    """
    return tuple(2**power for power in range(largest.bit_length()))


def _by_problem(n: np.ndarray, c: np.ndarray, ks: Sequence[int], reliability: bool) -> np.ndarray:
    estimate = pass_hat_k if reliability else pass_at_k
    return np.stack([np.asarray(estimate(n, c, k)) for k in ks], axis=1)


def _problems(n: Counts, c: Counts, ks: Sequence[int] | None) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    c_ = np.atleast_1d(np.asarray(c))
    n_ = np.broadcast_to(np.asarray(n), c_.shape)
    if len(c_) == 0:
        raise InputError("pass@k needs at least one problem, got none")
    return n_, c_, tuple(ks) if ks is not None else powers_of_two(int(n_.min()))


def _warnings(n: np.ndarray, ks: Sequence[int]) -> tuple[str, ...]:
    thin = [k for k in ks if (n < 2 * k).any()]
    if not thin:
        return ()
    return (
        f"k = {', '.join(map(str, thin))}: fewer than 2k samples on some problem (n = {int(n.min())}); "
        f"the estimate is unbiased but noisy and its band too narrow. Draw n >= {2 * max(thin)}.",
    )


def _unwrap(estimate: np.ndarray) -> np.ndarray | float:
    return float(estimate) if estimate.ndim == 0 else estimate


def _counts(n: Counts, c: Counts, k: int) -> tuple[np.ndarray, np.ndarray]:
    n_, c_ = np.asarray(n, float), np.asarray(c, float)
    if (n_ != np.floor(n_)).any() or (c_ != np.floor(c_)).any():
        raise InputError("pass@k counts answers: n and c must be whole numbers")
    if (c_ < 0).any() or (c_ > n_).any():
        raise InputError("pass@k needs 0 <= c <= n for every problem")
    if int(k) != k or k < 1 or (n_ < k).any():
        raise InputError(f"pass@{k} needs 1 <= k <= n, and the smallest n is {int(n_.min())}")
    return n_, c_
