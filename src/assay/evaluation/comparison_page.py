"""The comparison as one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from assay.evaluation.comparison import COLUMNS, Band, Pair, Report, Row, band
from assay.evaluation.figures import curves

# What the page draws besides the compared figure: the quantities that tell why settings differ.
FIGURES = {
    "reward": "training reward",
    "completions/mean_terminated_length": "length of completions that ended by themselves",
    "completions/mean_length_wrong": "length of wrong completions",
    "completions/clipped_ratio": "share of completions that were cut off",
    "frac_reward_zero_std": "share of groups without signal",
    "sampling/entropy": "entropy of the sampler",
}
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}td.told{font-weight:600}
.warn{color:#8a4b00}.note{color:#555;font-size:.9em}svg{max-width:100%;height:auto}
"""


def render(report: Report) -> str:
    """The whole page."""
    parts = [
        f"<h1>{len(report.settings)} settings, {sum(len(setting.runs) for setting in report.settings)} runs</h1>",
        f"<p>Compared by <code>{escape(report.metric)}</code> at step {report.step}.</p>",
        *(f'<p class="warn">{escape(warning)}</p>' for warning in report.warnings),
        _settings_table(report.rows),
        _pairs_table(report.pairs),
        *_figures(report),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>assay compare</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _settings_table(rows: Sequence[Row]) -> str:
    columns = [label for label in COLUMNS if any(label in row.columns for row in rows)]
    head = ["setting", "runs", "at this step", "each run", "gain", "best", *columns]
    body = [
        [
            row.setting,
            str(len(row.runs)),
            number(row.mean),
            " ".join(map(number, row.values)),
            "" if row.gain is None else f"{row.gain:+.3f}",
            f"{number(row.best)} (step {', '.join(map(str, row.best_steps))})",
            *(number(row.columns[label]) if label in row.columns else "" for label in columns),
        ]
        for row in rows
    ]
    note = "Columns after <em>best</em> are means over the last tenth of the steps. The best of a run is optimistic."
    return f'{_table(head, body)}<p class="note">{note}</p>'


def _pairs_table(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return ""
    body = [
        [
            f"{pair.second} − {pair.first}",
            f"{pair.value:+.3f}",
            "" if pair.interval is None else str(pair.interval),
            pair.verdict,
            pair.basis,
        ]
        for pair in pairs
    ]
    table = _table(["pair", "difference", "interval", "verdict", "basis"], body)
    note = "Simultaneous 95% intervals (Bonferroni). <em>Not distinguishable</em> is not <em>equal</em>: see the width."
    return f'<h2>Differences</h2>{table}<p class="note">{note}</p>'


def bands(report: Report, metric: str) -> dict[str, Band]:
    """The metric's curve of every setting that measured it."""
    found = {setting.label: band(setting, metric) for setting in report.settings}
    return {label: curve for label, curve in found.items() if curve is not None}


def picture(report: Report) -> str:
    """The compared figure over the steps as SVG text, one line with its band a setting."""
    return curves(bands(report, report.metric), report.metric)


def _figures(report: Report) -> list[str]:
    found = []
    for metric, title in {report.metric: f"held-out figure: {report.metric}", **FIGURES}.items():
        if drawn := bands(report, metric):
            kinds = ", ".join(dict.fromkeys(curve.kind for curve in drawn.values()))
            found.append(f'<h2>{escape(title)}</h2>{curves(drawn, metric)}<p class="note">Band: {escape(kinds)}.</p>')
    return found


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def number(value: float) -> str:
    """Three decimals for shares, one for lengths.

    >>> number(0.12345), number(812.3456)
    ('0.123', '812.3')
    """
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
