"""`assay compare RUN...`: seeds and ablations side by side, with paired intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.common import wide_console

if TYPE_CHECKING:
    from rich.table import Table

    from assay.evaluation.comparison import Report


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories; those that differ only in the seed are one setting.")
    ],
    metric: Annotated[str | None, typer.Option(help="Figure to compare; by default the held-out one.")] = None,
    step: Annotated[
        int | None, typer.Option(help="Step to compare at; by default the last that all runs have.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Part of a setting's label: compare the others with it only; narrower intervals.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the comparison with its curves as one HTML file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the curves of the compared figure as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare runs: what each setting reached, and which differences the data can support."""
    from assay.evaluation.comparison import compare_runs
    from assay.evaluation.comparison_page import picture, render

    report = compare_runs(runs, metric=metric, step=step, baseline=baseline)
    for path, content in ((html, render), (plot, picture)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content(report), encoding="utf-8")
    if as_json:
        print(json.dumps(report.as_dict()))
        return
    console = wide_console()
    console.print(f"{report.metric} at step {report.step}", highlight=False)
    for table in tables(report):
        console.print(table)
    for warning in report.warnings:
        console.print(f"note: {warning}", style="yellow", highlight=False)
    if html is not None:
        console.print(f"page: {html}", highlight=False)


def tables(report: Report) -> list[Table]:
    """What each setting reached, how its training looked late, and the differences of pairs."""
    from rich.table import Table

    from assay.evaluation.comparison import COLUMNS
    from assay.evaluation.comparison_page import number

    reached = Table("setting", "runs", "figure", "each run", "gain", "best", "at step")
    for row in report.rows:
        gain = "" if row.gain is None else f"{row.gain:+.3f}"
        runs, steps = " ".join(map(number, row.values)), " ".join(map(str, row.best_steps))
        reached.add_row(row.setting, str(len(row.runs)), number(row.mean), runs, gain, number(row.best), steps)
    shown = [reached]
    columns = [label for label in COLUMNS if any(label in row.columns for row in report.rows)]
    if columns:
        late = Table("setting", *columns, title="means over the last tenth of training", title_justify="left")
        for row in report.rows:
            cells = [number(row.columns[label]) if label in row.columns else "" for label in columns]
            late.add_row(row.setting, *cells)
        shown.append(late)
    if report.pairs:
        pairs = Table("second − first", "difference", "interval", "verdict", "basis")
        for pair in report.pairs:
            interval = "" if pair.interval is None else str(pair.interval).replace("[", "\\[")
            pairs.add_row(f"{pair.second} − {pair.first}", f"{pair.value:+.3f}", interval, pair.verdict, pair.basis)
        shown.append(pairs)
    for table in shown:
        for column in table.columns:
            column.overflow = "fold"
    return shown
