"""The report: one self-contained HTML file about a run (inline SVG, no network, no script), for people and archives."""

from assay.monitoring.report.charts import CHARTS, Chart, draw_charts
from assay.monitoring.report.page import render_report, write_report

__all__ = ["CHARTS", "Chart", "draw_charts", "render_report", "write_report"]
