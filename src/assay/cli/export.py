"""`assay export`: the better model itself, out of a run directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.common import print_json
from assay.errors import InputError


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the model goes; must not exist yet.")],
    merge: Annotated[bool, typer.Option("--merge", help="Merge LoRA adapters into whole weights.")] = False,
    which: Annotated[
        str | None, typer.Option(help="best or last; by default best, or last where none was picked.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Copy the trained model; with --merge as a plain folder that transformers and vLLM load without peft."""
    from assay.api.models import ADAPTER, save_model, trained_model

    source = trained_model(run, which)
    if folder.exists():
        raise InputError(f"{folder} exists; give the name of a folder that does not")
    adapters = (source / ADAPTER).exists()
    differs: float | None = None
    if merge and adapters:
        from assay.api.models import disagreement, load_trained
        from assay.api.session import Session
        from assay.config.load import load_recipe

        with Session(load_recipe(run)) as session:
            load_trained(session, source)
            save_model(session.policy, session.tokenizer, folder, merged=True)
            differs = disagreement(session, folder, run)
        record(run, differs)
    else:
        shutil.copytree(source, folder)
    kind = "adapters" if adapters and not merge else "a whole model"
    if as_json:
        print_json({"from": str(source), "to": str(folder), "kind": kind, "disagreement": differs})
    else:
        checked = "" if differs is None else f"; it expects another next token at {differs:.1%} of the places tried"
        print(f"{folder}: {kind} from {source}{checked}")


def record(run: Path, differs: float) -> None:
    """Leave the comparison in the run, where the doctor looks for it (EV03)."""
    from assay.monitoring.history import read_metrics
    from assay.monitoring.store import MetricsLog

    steps = read_metrics(run).steps
    log = MetricsLog(run / "metrics.jsonl")
    log.append(int(steps[-1]) if len(steps) else 0, {"export/disagreement": differs})
    log.close()
