"""Held-out score against compute, read from run directories, and the sigmoid fits of several settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.evaluation.fit import SigmoidFit
from assay.evaluation.fit_compare import Comparison, compare_fits
from assay.evaluation.runs import Run, Setting, group_settings, read_run

HELDOUT = ("heldout/pass_rate", "heldout/accuracy", "heldout/reward")
# What compute may be: num_tokens is processed tokens, seconds the wall clock of training without evaluation, flops an
# estimate, which makes models of different sizes comparable.
COMPUTE = ("num_tokens", "seconds", "step", "flops")
# Sampling passes a token forward once (2 operations a parameter); training forward and backward (6). Attention's part
# that grows with the context, a reference's pass, and what LoRA saves are left out.
FLOPS_PER_PARAMETER_AND_TOKEN = 8.0
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Measured:
    """A setting's points: reward [N] at compute [N] of run number `run` [N], with standard errors [N] where the runs
    logged intervals.
    """

    compute: np.ndarray
    reward: np.ndarray
    error: np.ndarray | None
    run: np.ndarray


@dataclass(frozen=True)
class Scaling:
    """Fits and comparisons of settings, with the points they rest on."""

    metric: str
    compute: str
    points: Mapping[str, Measured]
    fits: Mapping[str, SigmoidFit]
    comparisons: Sequence[Comparison]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        fits = {name: asdict(fit) for name, fit in self.fits.items()}
        points = {
            name: {"compute": found.compute.tolist(), "reward": found.reward.tolist()}
            for name, found in self.points.items()
        }
        return {
            "metric": self.metric,
            "compute": self.compute,
            "fits": fits,
            "comparisons": [asdict(found) for found in self.comparisons],
            "points": points,
        }


def fit_runs(
    paths: Sequence[str | Path],
    *,
    metric: str | None = None,
    compute: str = "num_tokens",
    exclude_below: float = 0.0,
    initial: float | None = None,
) -> Scaling:
    """Fit each setting among the run directories; runs that differ only in their seed are fitted together.

    The evaluation before the first step, at compute 0, counts as a measurement of R0 (see `fit_sigmoid`). Raises
    InputError where a run lacks the metric or the compute column, or has too few evaluations.
    """
    if compute not in COMPUTE:
        raise InputError(f"compute is {compute!r}; it can be {', '.join(COMPUTE)}")
    settings = group_settings([read_run(path) for path in paths])
    runs = [run for setting in settings for run in setting.runs]
    metric = metric or next((name for name in HELDOUT if all(name in run.history for run in runs)), None)
    if metric is None:
        raise InputError("the runs have no common held-out score; train with eval.prompts above 0, or name a --metric")
    points = {setting.label: measure(setting, metric, compute) for setting in settings}
    data = {label: (found.compute, found.reward, found.error, found.run) for label, found in points.items()}
    fits, comparisons = compare_fits(data, initial=initial, exclude_below=exclude_below)
    return Scaling(metric, compute, points, fits, comparisons)


def measure(setting: Setting, metric: str, compute: str) -> Measured:
    """The points of all runs of a setting, run by run."""
    parts = [_points(run, metric, compute) for run in setting.runs]
    number = np.repeat(np.arange(len(parts)), [len(x) for x, _, _ in parts])
    errors = [error for _, _, error in parts if error is not None]
    return Measured(
        np.concatenate([x for x, _, _ in parts]),
        np.concatenate([y for _, y, _ in parts]),
        np.concatenate(errors) if len(errors) == len(parts) else None,
        number,
    )


def _points(run: Run, metric: str, compute: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    steps, reward = run.history.series(metric)
    if not len(steps):
        raise InputError(f"{run.path} never measured {metric!r}")
    spent = _spent(run, compute, steps)
    low, high = (
        dict(zip(*map(np.ndarray.tolist, run.history.series(f"{metric}_{end}")), strict=True))
        for end in ("low", "high")
    )
    if not all(step in low and step in high for step in steps.tolist()):
        return spent, reward, None
    widths = np.array([high[step] - low[step] for step in steps.tolist()])
    return spent, reward, np.maximum(widths / (2 * NORMAL_95), 1e-6)


def _spent(run: Run, compute: str, steps: np.ndarray) -> np.ndarray:
    """Cumulative compute [N] when each evaluation was made."""
    if compute == "step":
        return steps.astype(float)
    if compute == "flops":
        parameters = run.config.get("measured.parameters")
        if parameters is None:
            raise InputError(f"{run.path}/config.yaml does not say how many parameters the model has; use num_tokens")
        return FLOPS_PER_PARAMETER_AND_TOKEN * float(parameters) * _spent(run, "num_tokens", steps)
    at, values = run.history.series("step_time" if compute == "seconds" else compute)
    if not len(at):
        raise InputError(f"{run.path} did not log {compute}; use --compute step")
    totals = np.r_[0.0, np.cumsum(values) if compute == "seconds" else values]
    return totals[np.searchsorted(at, steps, side="right")]
