"""The learning curve as a picture and in the terminal, and the table of before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from assay.errors import InputError
from assay.monitoring.history import History

# Okabe and Ito's colours that stay apart for every common form of colour blindness, and readable on white and on dark.
COLOURS = {"blue": "#0072B2", "orange": "#E69F00", "green": "#009E73", "red": "#D55E00", "purple": "#CC79A7"}
HELDOUT_NAMES = ("heldout/accuracy", "heldout/pass_rate", "heldout/reward")


def smooth(values: np.ndarray, span: int) -> np.ndarray:
    """Centred moving average whose window shrinks at the ends, so that it neither lags nor starts late.

    >>> smooth(np.array([0.0, 3.0, 6.0]), 3).tolist()
    [1.5, 3.0, 4.5]
    """
    half = span // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(0, index - half), np.minimum(len(values), index + half + 1)
    return (sums[high] - sums[low]) / (high - low)


def heldout_name(history: History) -> str | None:
    """The held-out score to show: accuracy before pass rate before reward, else any held-out metric."""
    names = [name for name in HELDOUT_NAMES if name in history]
    return next(iter(names or history.matching("heldout/")), None)


def learning_curve(history: History, *paths: str | Path, title: str = "") -> None:
    """Training reward (points, smoothed line) and held-out score (markers, line) by step; PNG or SVG by suffix.

    InputError where there is nothing to draw.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps, rewards = history.series("reward")
    heldout = heldout_name(history)
    if not len(steps) and heldout is None:
        raise InputError("no learning curve: the run has neither `reward` nor `heldout/*` in its metrics")
    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if len(steps):
        axes.plot(steps, rewards, ".", color=COLOURS["blue"], alpha=0.3, markersize=4)
        line = smooth(rewards, max(1, len(rewards) // 15))
        axes.plot(steps, line, color=COLOURS["blue"], linewidth=2, label="training reward (points, moving average)")
    if heldout is not None:
        at, scores = history.series(heldout)
        axes.plot(at, scores, "s-", color=COLOURS["red"], linewidth=2, label=f"held-out {heldout[8:]}")
        for index in sorted({0, len(at) - 1}):
            axes.annotate(
                f"{scores[index]:.3g}",
                (at[index], scores[index]),
                textcoords="offset points",
                xytext=(0, 8),
                ha="center",
            )
    axes.set_xlabel("optimisation step")
    axes.set_ylabel("score")
    axes.set_title(title or "Learning curve")
    axes.margins(y=0.15)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    for path in paths:
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)


def terminal_curve(history: History, width: int = 72, height: int = 16) -> str:
    """The same curve as characters."""
    import plotext

    steps, rewards = history.series("reward")
    heldout = heldout_name(history)
    if not len(steps) and heldout is None:
        raise InputError("no learning curve: the run has neither `reward` nor `heldout/*` in its metrics")
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, height)
    if len(steps):
        line = smooth(rewards, max(1, len(rewards) // 15))
        figure.draw(figure.signal(steps.tolist(), line.tolist(), marker="·").lines().label("training reward"))
    if heldout is not None:
        at, scores = history.series(heldout)
        figure.draw(figure.signal(at.tolist(), scores.tolist(), marker="●").label(f"held-out {heldout[8:]}"))
    figure.label("step")
    text = plotext.uncolorize(figure.build().string())
    return "\n".join(row.rstrip() for row in text.splitlines())


def before_after_table(before: Mapping[str, Any], after: Mapping[str, Any], title: str = "") -> Table:
    """One row per measurement with its change; numbers to three places, absent ones as a dash."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("measurement")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    for name in dict.fromkeys([*before, *after]):
        first: Any = before.get(name)
        last: Any = after.get(name)
        change = f"{last - first:+.3f}" if _is_number(first) and _is_number(last) else "—"
        table.add_row(name, _shown(first), _shown(last), change)
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    return f"{value:.3f}" if _is_number(value) else "—" if value is None else str(value)
