"""`assay report RUN`: one self-contained HTML file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from assay.errors import InputError


def report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or one log that `assay doctor` reads.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write; RUN/report.html by default.")
    ] = None,
    facts: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A configuration value that a foreign log lacks, such as num_generations=8.",
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Price of one GPU-hour (or machine-hour), for the cost in the card.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout: files and verdict.")] = False,
) -> None:
    """Write one HTML file about a run: verdict and causes, run card, charts, samples. It opens without a network, in
    light and dark. Beside it lie report.json and report.md for machines. Exit status 0 whatever the verdict is."""
    from assay.cli.doctor import parse_facts
    from assay.monitoring.doctor import diagnose, verdict
    from assay.monitoring.report import write_report
    from assay.monitoring.sources import open_run

    run = open_run(path, parse_facts(facts or []))
    diagnosis = diagnose(run, now=time.time())
    target = output or run.directory / "report.html"
    if target.suffix != ".html":
        raise InputError(f"--output {str(target)!r} should end in .html")
    if not target.parent.is_dir():
        raise InputError(f"--output {str(target)!r}: the folder {str(target.parent)!r} does not exist")
    try:
        write_report(run, diagnosis, target, price)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}; give another --output") from None
    if as_json:
        json.dump({"html": str(target), "verdict": verdict(diagnosis), **diagnosis.to_json()}, sys.stdout)
        print()
    else:
        print(f"{target}: {verdict(diagnosis)}")
