"""Which of several runs is heading higher, and if none is, which gets there with less compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.evaluation.fit import SigmoidFit, fit_sigmoid, interval_of, observations
from assay.evaluation.intervals import Interval


@dataclass(frozen=True)
class Comparison:
    """Two runs' fits: which has the higher ceiling, or, if the ceilings agree, which gets there more efficiently.

    `by` names what decided ("A", "B" or "" for neither); `better` is the run's name or None.
    """

    first: str
    second: str
    by: str
    better: str | None
    detail: str


def compare_fits(
    runs: Mapping[str, Sequence[Any]],
    *,
    margin: float = 0.02,
    initial: float | None = None,
    exclude_below: float = 0.0,
    ceiling: float = 1.0,
) -> tuple[dict[str, SigmoidFit], list[Comparison]]:
    """Fit every run {name: (compute, reward, error, runs)} and compare pairs by A first, then by B.

    The last two of a run's arrays may be missing or None; the options are `fit_sigmoid`'s. Ceilings closer than
    `margin` (the paper's error margin of A) are one: both runs are fitted again with the mean A, and B decides where
    its intervals do not overlap. Ceilings that are not identified are not compared.
    """
    arrays = {name: (*run, None, None)[:4] for name, run in runs.items()}
    options = {"exclude_below": exclude_below, "ceiling": ceiling}
    fits = {
        name: fit_sigmoid(compute, reward, error=error, runs=number, initial=initial, **options)
        for name, (compute, reward, error, number) in arrays.items()
    }

    def exponent(name: str, ceiling_a: float) -> Interval:
        fixed = {"A": ceiling_a} | ({} if initial is None else {"R0": initial})
        return interval_of(observations(*arrays[name], **options), "B", fixed)

    names = list(fits)
    pairs = [(first, second) for index, first in enumerate(names) for second in names[index + 1 :]]
    return fits, [_compare(pair, fits, margin, exponent) for pair in pairs]


def _compare(pair: tuple[str, str], fits: Mapping[str, SigmoidFit], margin: float, exponent: Any) -> Comparison:
    first, second = pair
    one, two = fits[first], fits[second]
    if not (one.identified and two.identified):
        unknown = " and ".join(name for name in pair if not fits[name].identified)
        return Comparison(first, second, "", None, f"not identified yet: {unknown}")
    if abs(one.A - two.A) > margin and one.A not in two.interval and two.A not in one.interval:
        better = first if one.A > two.A else second
        return Comparison(first, second, "A", better, f"ceiling {one.A:.3f} against {two.A:.3f}")
    shared = (one.A + two.A) / 2
    ours, theirs = exponent(first, shared), exponent(second, shared)
    detail = f"one ceiling {shared:.3f}; B {ours} against {theirs}"
    if ours.low > theirs.high:
        return Comparison(first, second, "B", first, detail)
    if theirs.low > ours.high:
        return Comparison(first, second, "B", second, detail)
    return Comparison(first, second, "", None, f"not distinguishable: {detail}")
