"""Several runs side by side: what each setting reached, and which differences its seeds and problems can support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from assay.errors import InputError
from assay.evaluation.heldout import compare as compare_results
from assay.evaluation.intervals import Interval
from assay.evaluation.runs import Run, Setting, group_settings, read_run
from assay.evaluation.seeds import setting_difference, welch_difference

HELDOUT = ("heldout/pass_rate", "heldout/accuracy", "heldout/reward")
# Column of the table -> metric; each is averaged over the last tenth of the steps.
COLUMNS = {
    "reward": "reward",
    "length": "completions/mean_length",
    "terminated": "completions/mean_terminated_length",
    "wrong length": "completions/mean_length_wrong",
    "clipped": "completions/clipped_ratio",
    "zero std": "frac_reward_zero_std",
    "entropy": "sampling/entropy",
    "flagged": "hack/flagged_frac",
}
ONLY_WHERE_SEEN = ("flagged",)  # a column of zeros would only say that there are no programs


@dataclass(frozen=True)
class Band:
    """A curve over steps [N]: the mean of a setting's runs, with bounds [N]; `kind` says what the bounds are."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    kind: str


@dataclass(frozen=True)
class Row:
    """One setting: its figure at the compared step by run, the gain over the start, the best, late training means."""

    setting: str
    runs: tuple[str, ...]
    values: tuple[float, ...]
    gain: float | None
    best: float
    best_steps: tuple[int, ...]
    columns: dict[str, float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))


@dataclass(frozen=True)
class Pair:
    """`second - first`. `basis` says what was drawn at random; without an interval there is no verdict."""

    first: str
    second: str
    value: float
    interval: Interval | None
    basis: str

    @property
    def distinguishable(self) -> bool:
        return self.interval is not None and 0.0 not in self.interval

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "cannot be told"
        if not self.distinguishable:
            return "not distinguishable"
        return f"{self.second if self.value > 0 else self.first} is higher"


@dataclass(frozen=True)
class Report:
    """`metric` at `step`, by setting and by pair; pairs have simultaneous 95% intervals (Bonferroni)."""

    metric: str
    step: int
    settings: tuple[Setting, ...]
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        pairs = [
            {**asdict(pair), "distinguishable": pair.distinguishable, "verdict": pair.verdict} for pair in self.pairs
        ]
        rows = [{**asdict(row), "mean": row.mean} for row in self.rows]
        return {
            "metric": self.metric,
            "step": self.step,
            "settings": rows,
            "pairs": pairs,
            "warnings": list(self.warnings),
        }


def compare_runs(
    paths: Sequence[str | Path], *, metric: str | None = None, step: int | None = None, baseline: str | None = None
) -> Report:
    """Compare run directories at `step` (default: the last that all have measured) by `metric` (default: held-out).

    Runs whose configurations differ only in the seed are one setting. Every pair of settings is compared, or, where
    `baseline` is a part of a setting's label, that setting with each other. Raises InputError where nothing is common.
    """
    runs = [read_run(path) for path in paths]
    settings = group_settings(runs)
    metric = metric or _common_metric(runs)
    at = _common_step(runs, metric, step)
    warnings = _warnings(runs, settings, metric, at if step is None else None)
    chosen = _pairs(settings, baseline)
    level = 1 - 0.05 / max(1, len(chosen))
    pairs = tuple(_compare(first, second, metric, at, level) for first, second in chosen)
    rows = tuple(_row(setting, metric, at) for setting in settings)
    return Report(metric, at, tuple(settings), rows, pairs, tuple(warnings))


def band(setting: Setting, metric: str) -> Band | None:
    """The metric's curve over a setting's runs at the steps that all of them measured; None where there is none.

    The band is Student's interval of the mean from three seeds on, the range of two, and the interval over problems of
    one run, where it was logged.
    """
    series = [dict(zip(*map(np.ndarray.tolist, run.history.series(metric)), strict=True)) for run in setting.runs]
    steps = sorted(set.intersection(*map(set, series)))
    if not steps:
        return None
    values = np.array([[run[step] for step in steps] for run in series])
    mean = values.mean(axis=0)
    at = np.array(steps)
    if len(values) >= 3:
        half = stats.t.ppf(0.975, len(values) - 1) * values.std(axis=0, ddof=1) / np.sqrt(len(values))
        low, high = mean - half, mean + half
        if _is_share(metric):
            low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
        return Band(at, mean, low, high, "95% interval of the mean over seeds")
    if len(values) == 2:
        return Band(at, mean, values.min(axis=0), values.max(axis=0), "range of two seeds")
    logged = [setting.runs[0].history.series(f"{metric}_{end}") for end in ("low", "high")]
    if all(np.array_equal(found, at) for found, _ in logged):
        return Band(at, mean, logged[0][1], logged[1][1], "95% interval over problems, one seed")
    return Band(at, mean, mean, mean, "one seed")


def _is_share(metric: str) -> bool:
    """Whether the metric cannot leave [0, 1], where Student's interval could."""
    last = metric.rpartition("/")[2]
    return last in ("accuracy", "pass_rate") or last.startswith("frac_") or last.endswith(("_ratio", "_frac"))


def _common_metric(runs: Sequence[Run]) -> str:
    for name in (*HELDOUT, "reward"):
        if all(name in run.history for run in runs):
            return name
    raise InputError("the runs have no common figure: neither held-out scores nor `reward`; name one with --metric")


def _common_step(runs: Sequence[Run], metric: str, step: int | None) -> int:
    measured = [set(run.history.series(metric)[0].tolist()) for run in runs]
    for run, steps in zip(runs, measured, strict=True):
        if not steps:
            raise InputError(f"{run.path} never measured {metric!r}")
    common = set.intersection(*measured)
    if not common:
        raise InputError(f"no step at which all runs measured {metric!r}; train them with one eval.every")
    if step is not None and step not in common:
        raise InputError(f"step {step}: not all runs measured {metric!r} there; the last common one is {max(common)}")
    return max(common) if step is None else step


def _warnings(runs: Sequence[Run], settings: Sequence[Setting], metric: str, last: int | None) -> list[str]:
    """What a reader must know; `last` is the step where it was chosen as the last common one."""
    warnings = [f"{run.name}: {text}" for run in runs for text in run.history.warnings]
    longer = [run.name for run in runs if last is not None and run.history.series(metric)[0].max() > last]
    if longer:
        warnings.append(f"compared at step {last}, the last that all runs have; longer: {', '.join(longer)}")
    if not metric.startswith("heldout/"):
        warnings.append(
            f"{metric} is measured on training prompts: a policy that cheats its verifier scores well on it"
        )
    for setting in settings:
        if len(set(map(str, setting.seeds))) < len(setting.seeds):
            warnings.append(f"{setting.label}: several runs have one seed, so they are not independent repeats")
    if any(len(setting.runs) == 1 for setting in settings) and len(settings) > 1:
        warnings.append("one seed of a setting: intervals then compare these trained models, not the settings")
    return warnings


def _pairs(settings: Sequence[Setting], baseline: str | None) -> list[tuple[Setting, Setting]]:
    if baseline is None:
        return [(first, second) for index, first in enumerate(settings) for second in settings[index + 1 :]]
    found = [setting for setting in settings if baseline in setting.label]
    if len(found) != 1:
        labels = "; ".join(setting.label for setting in settings)
        raise InputError(f"baseline {baseline!r} matches {len(found)} settings; give a part of one of: {labels}")
    return [(found[0], setting) for setting in settings if setting is not found[0]]


def _compare(first: Setting, second: Setting, metric: str, at: int, level: float) -> Pair:
    """Seeds and problems where both are known, else what is known of the two."""
    values = [np.array([_at(run, metric, at) for run in setting.runs]) for setting in (first, second)]
    change = float(values[1].mean() - values[0].mean())
    tables = [_verdict_table(setting, metric, at) for setting in (first, second)]
    several = min(map(len, values)) >= 2
    if tables[0] is not None and tables[1] is not None:
        keys = [key for key in tables[0] if key in tables[1]]
        rates = [np.array([table[key] for key in keys]).T for table in (tables[0], tables[1])]
        if several and len(keys) >= 2:
            found = setting_difference(rates[0], rates[1], level)
            return Pair(first.label, second.label, found.value, found.interval, "seeds and problems")
        if keys:
            return _compare_models(first, second, metric, at, level)
    if several:
        change, interval = welch_difference(values[0], values[1], level)
        return Pair(first.label, second.label, change, interval, "seeds")
    return Pair(first.label, second.label, change, None, "one seed and no per-problem verdicts")


def _compare_models(first: Setting, second: Setting, metric: str, at: int, level: float) -> Pair:
    """The first run of each setting, paired by problem."""
    one, two = (setting.runs[0].verdicts["", _figure(metric)][at] for setting in (first, second))
    found = compare_results(one, two, level)
    if found is None:
        return Pair(first.label, second.label, 0.0, None, "no problem that both judged")
    return Pair(first.label, second.label, found.value, found.interval, "problems, one seed")


def _verdict_table(setting: Setting, metric: str, at: int) -> dict[str, list[float]] | None:
    """Problem -> rate by run; None where a run has no verdicts for the metric at this step."""
    results = [run.verdicts.get(("", _figure(metric)), {}).get(at) for run in setting.runs]
    if not metric.startswith("heldout/") or any(result is None for result in results):
        return None
    rates = [dict(zip(result.keys, result.rates.tolist(), strict=True)) for result in results if result is not None]
    return {key: [run[key] for run in rates] for key in rates[0] if all(key in run for run in rates)}


def _figure(metric: str) -> str:
    return metric.removeprefix("heldout/")


def _row(setting: Setting, metric: str, at: int) -> Row:
    series = [run.history.series(metric) for run in setting.runs]
    values = tuple(_at(run, metric, at) for run in setting.runs)
    first = [found[0] for steps, found in series if steps[0] == 0]
    late = {label: _late(setting.runs, name) for label, name in COLUMNS.items()}
    columns = {
        label: found for label, found in late.items() if found is not None and (found or label not in ONLY_WHERE_SEEN)
    }
    return Row(
        setting=setting.label,
        runs=tuple(run.name for run in setting.runs),
        values=values,
        gain=float(np.mean(values) - np.mean(first)) if len(first) == len(values) else None,
        best=float(np.mean([found.max() for _, found in series])),
        best_steps=tuple(int(steps[found.argmax()]) for steps, found in series),
        columns=columns,
    )


def _at(run: Run, metric: str, step: int) -> float:
    steps, values = run.history.series(metric)
    return float(values[steps == step][0])


def _late(runs: Sequence[Run], metric: str) -> float | None:
    """Mean over runs of the metric over the last tenth of its measurements; None where a run lacks it."""
    series = [run.history.series(metric)[1] for run in runs]
    if any(len(values) == 0 for values in series):
        return None
    return float(np.mean([values[-max(1, len(values) // 10) :].mean() for values in series]))
