"""`assay fit RUN...`: the sigmoid compute fit of ScaleRL, with the ceiling only where the data identify it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.common import print_json, wide_console

if TYPE_CHECKING:
    from rich.table import Table

    from assay.evaluation.scaling import Scaling


def fit(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories; runs that differ only in the seed are fitted together.")
    ],
    metric: Annotated[str | None, typer.Option(help="Score to fit; by default the held-out one.")] = None,
    compute: Annotated[
        str, typer.Option(help="num_tokens, seconds (training only), step, or flops (estimated).")
    ] = "num_tokens",
    exclude_below: Annotated[float, typer.Option(help="Leave out evaluations made before this much compute.")] = 0.0,
    initial: Annotated[
        float | None, typer.Option(help="A measured R0 to hold; by default it is fitted, with the start as a point.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write points, curves and forecast as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit R(C) = R0 + (A - R0) / (1 + (Cmid/C)^B); exits with 1 while a run's ceiling A is not identified."""
    from assay.evaluation.figures import compute_fits, write_picture
    from assay.evaluation.scaling import fit_runs

    found = fit_runs(runs, metric=metric, compute=compute, exclude_below=exclude_below, initial=initial)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        curves = {label: (at.compute, at.reward, found.fits[label]) for label, at in found.points.items()}
        write_picture(compute_fits(curves, found.compute, found.metric), plot)
    if as_json:
        print_json(found.as_dict())
    else:
        console = wide_console()
        console.print(table(found))
        for label, each in found.fits.items():
            if not each.identified:
                console.print(f"{label}: ceiling not identified yet: {each.reason}", highlight=False, markup=False)
        for pair in found.comparisons:
            verdict = f"{pair.better} is better by {pair.by}" if pair.better else "no verdict"
            console.print(
                f"{pair.first} against {pair.second}: {verdict} ({pair.detail})", highlight=False, markup=False
            )
    if not all(each.identified for each in found.fits.values()):
        raise typer.Exit(1)


def table(found: Scaling) -> Table:
    """One row a setting; A only where it is identified."""
    from rich.table import Table

    rows = Table(
        "setting", "points", "A", "95% of A", "B", "Cmid", "R0", "end/Cmid", title=f"{found.metric} by {found.compute}"
    )
    for label, fit in found.fits.items():
        ceiling = f"{fit.A:.3f}" if fit.identified else "?"
        interval = str(fit.interval).replace("[", "\\[")
        numbers = [f"{fit.B:.2f}", f"{fit.Cmid:.3g}", f"{fit.R0:.3f}", f"{fit.reach:.2g}"]
        rows.add_row(label, str(fit.points), ceiling, interval, *numbers)
    for column in rows.columns:
        column.overflow = "fold"
    return rows
