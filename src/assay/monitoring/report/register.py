"""The register of charts, and the one shape that most of them have: smoothed lines over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.monitoring.plots import smooth
from assay.monitoring.report.data import ReportData
from assay.monitoring.report.svg import CYCLE, DASHES, legend, new_figure, to_svg

Draw = Callable[[ReportData], Any]


@dataclass(frozen=True)
class Chart:
    """`draw` returns a figure, or None where the run lacks the data; `reading` tells how to read it."""

    id: str
    title: str
    reading: str
    draw: Draw


CHARTS: list[Chart] = []


def chart(id: str, title: str, reading: str) -> Callable[[Draw], Draw]:
    def register(draw: Draw) -> Draw:
        CHARTS.append(Chart(id, title, reading, draw))
        return draw

    return register


def draw_charts(data: ReportData) -> list[tuple[Chart, str]]:
    """Every chart that the run has data for, as SVG."""
    drawn = []
    for number, item in enumerate(CHARTS, 1):
        figure = item.draw(data)
        if figure is not None:
            drawn.append((item, to_svg(figure, item.title, number)))
    return drawn


def lines(data: ReportData, names: Sequence[tuple[str, str]], ylabel: str, log: bool = False) -> Any:
    """Smoothed lines over faint points; None where no name was measured."""
    present = [(name, label) for name, label in names if name in data.history]
    if not present:
        return None
    figure, axes = new_figure()
    for index, (name, label) in enumerate(present):
        steps, values = data.history.series(name)
        if log:
            steps, values = steps[values > 0], values[values > 0]
        colour = CYCLE[index % len(CYCLE)]
        axes.plot(steps, values, ".", color=colour, alpha=0.25, markersize=3)
        line = smooth(values, max(1, len(values) // 20))
        axes.plot(steps, line, DASHES[index // len(CYCLE) % 4], color=colour, linewidth=1.8, label=label)
    if log and any((data.history.series(name)[1] > 0).any() for name, _ in present):
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    legend(axes)
    return figure
