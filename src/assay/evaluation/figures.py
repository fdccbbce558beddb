"""Pictures of evaluation as SVG text: curves with bands, pass@k on a log axis, the compute fit and its forecast."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.evaluation.comparison import Band
from assay.evaluation.fit import SigmoidFit
from assay.evaluation.passk import Curve

# Okabe and Ito's palette: apart for every common form of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C00")


def curves(bands: Mapping[str, Band], ylabel: str, title: str = "") -> str:
    """One line a setting over steps, with its band."""
    figure, axes = _figure(title)
    for (label, band), colour in zip(bands.items(), _colours(len(bands)), strict=True):
        axes.plot(band.steps, band.mean, color=colour, linewidth=1.8, label=label)
        axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def pass_at_k(models: Mapping[str, Curve], title: str = "", ylabel: str = "pass@k") -> str:
    """pass@k of each model against k on a log axis, with bands over problems."""
    figure, axes = _figure(title)
    for (label, curve), colour in zip(models.items(), _colours(len(models)), strict=True):
        axes.plot(curve.ks, curve.values, "o-", color=colour, linewidth=1.8, markersize=4, label=label)
        axes.fill_between(curve.ks, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    ks = sorted({k for curve in models.values() for k in curve.ks})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_ylim(0, 1)
    axes.set_xlabel("k (samples a problem)")
    axes.set_ylabel(ylabel)
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def compute_fits(runs: Mapping[str, tuple[np.ndarray, np.ndarray, SigmoidFit]], xlabel: str, title: str = "") -> str:
    """Measurements, fitted curves, and (dashed) their extrapolation to four times the compute.

    The ceiling and its interval are drawn only where they are identified.
    """
    figure, axes = _figure(title)
    for (label, (compute, reward, fit)), colour in zip(runs.items(), _colours(len(runs)), strict=True):
        positive = compute[compute > 0]
        axes.plot(positive, reward[compute > 0], "o", color=colour, markersize=4, alpha=0.6)
        seen = np.geomspace(positive.min(), positive.max(), 200)
        ahead = np.geomspace(positive.max(), 4 * positive.max(), 100)
        known = "" if fit.identified else " (not identified yet)"
        axes.plot(seen, fit.predict(seen), color=colour, linewidth=1.8, label=f"{label}{known}")
        axes.plot(ahead, fit.predict(ahead), "--", color=colour, linewidth=1.4)
        if fit.identified:
            axes.axhspan(fit.interval.low, fit.interval.high, color=colour, alpha=0.1, linewidth=0)
    axes.set_xscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("held-out reward")
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def write_picture(svg: str, path: str | Path) -> None:
    """Save SVG text as a file."""
    Path(path).write_text(svg, encoding="utf-8")


def _figure(title: str) -> tuple[Any, Any]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_title(title, fontsize=10, loc="left")
    return figure, axes


def _svg(figure: Any) -> str:
    """The figure without its XML header, fit to stand inside a page; the same data give the same text."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "assay", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _colours(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
