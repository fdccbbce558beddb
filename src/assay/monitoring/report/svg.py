"""matplotlib figures as inline SVG that follows the reader's light or dark scheme."""

from __future__ import annotations

import io
import re
from typing import Any

INK = "#12ab34"  # never drawn as such: replaced by the page's own ink colour
# Okabe and Ito's palette without black and yellow: distinct under colour blindness, visible on light and on dark.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
DASHES = ("-", "--", "-.", ":")


def new_figure(width: float = 4.8, height: float = 2.7) -> tuple[Any, Any]:
    """A figure and its axes in the report's style; no global matplotlib state is touched."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    FigureCanvasSVG(figure)
    return figure, style(figure.add_subplot())


def style(axes: Any) -> Any:
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_edgecolor(INK)
    axes.tick_params(which="both", colors=INK, labelsize=9)
    axes.grid(alpha=0.25, color=INK, linewidth=0.6)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    return axes


def legend(axes: Any, **options: Any) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, **options)


def to_svg(figure: Any, label: str, number: int) -> str:
    """The figure as an <svg> element: text stays text, ids are made unique within the page, ink follows the scheme."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"assay-{number}"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id|xlink:href)="(#?)', rf'\1="\2c{number}-', svg)
    svg = svg.replace("url(#", f"url(#c{number}-").replace(INK, "currentColor")
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', svg, count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
