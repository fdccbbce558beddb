"""The report: one self-contained HTML file about a run (inline SVG, no network, no script), for people and archives."""

from assay.monitoring.report import charts, charts_rollouts
from assay.monitoring.report.page import render_report, write_report
from assay.monitoring.report.register import CHARTS, Chart, draw_charts

# Importing them is what registers their charts, in the order in which they are shown.
CHART_MODULES = (charts, charts_rollouts)

__all__ = ["CHARTS", "Chart", "draw_charts", "render_report", "write_report"]
