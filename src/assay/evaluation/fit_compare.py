"""Which of several runs is heading higher, and if none is, which gets there with less compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.evaluation.fit import SigmoidFit, fit_sigmoid, observations, profile


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
    runs: Mapping[str, tuple[Any, Any, Any]], *, margin: float = 0.02, **options: Any
) -> tuple[dict[str, SigmoidFit], list[Comparison]]:
    """Fit every run {name: (compute, reward, error)} and compare pairs by A first, then by B.

    Ceilings closer than `margin` (the paper's error margin of A) are one: both runs are fitted again with the mean A,
    and B decides where its profile intervals do not overlap. Ceilings that are not identified are not compared.
    `options` go to `fit_sigmoid`.
    """
    fits = {name: fit_sigmoid(*run[:2], error=run[2], **options) for name, run in runs.items()}
    return fits, compare_pairs(fits, runs, margin, options)


def compare_pairs(
    fits: Mapping[str, SigmoidFit],
    runs: Mapping[str, tuple[Any, Any, Any]],
    margin: float,
    options: Mapping[str, Any],
) -> list[Comparison]:
    """`compare_fits` for fits that exist; their intervals of A may be wider than the profile's."""
    names = list(fits)
    pairs = [(first, second) for index, first in enumerate(names) for second in names[index + 1 :]]
    return [_compare(first, second, fits, runs, margin, options) for first, second in pairs]


def _compare(
    first: str,
    second: str,
    fits: Mapping[str, SigmoidFit],
    runs: Mapping[str, Any],
    margin: float,
    options: Mapping[str, Any],
) -> Comparison:
    one, two = fits[first], fits[second]
    if not (one.identified and two.identified):
        unknown = " and ".join(name for name in (first, second) if not fits[name].identified)
        return Comparison(first, second, "", None, f"not identified yet: {unknown}")
    if abs(one.A - two.A) > margin and (one.A not in two.interval and two.A not in one.interval):
        better = first if one.A > two.A else second
        return Comparison(first, second, "A", better, f"ceiling {one.A:.3f} against {two.A:.3f}")
    shared = (one.A + two.A) / 2
    intervals = []
    for name in (first, second):
        compute, reward, error = runs[name]
        keep = {key: options[key] for key in ("exclude_below", "ceiling") if key in options}
        data = observations(compute, reward, error, keep.get("exclude_below", 0.0), keep.get("ceiling", 1.0))
        fixed = {"A": shared} | ({"R0": options["initial"]} if options.get("initial") is not None else {})
        intervals.append(profile(data, "B", fixed, options.get("level", 0.95)))
    detail = f"one ceiling {shared:.3f}; B {intervals[0]} against {intervals[1]}"
    if intervals[0].low > intervals[1].high:
        return Comparison(first, second, "B", first, detail)
    if intervals[1].low > intervals[0].high:
        return Comparison(first, second, "B", second, detail)
    return Comparison(first, second, "", None, f"not distinguishable: {detail}")
