"""`assay check RECIPE`: would this run learn? Before spending a GPU-hour."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.common import note, print_json

if TYPE_CHECKING:
    from assay.monitoring.preflight import Report


def check(
    recipe: Annotated[str, typer.Argument(help="The recipe that is to be trained.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[section.key=value ...]")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts that the untrained model answers.")] = 16,
    samples: Annotated[int, typer.Option(min=0, help="Answers a prompt; 0 takes rollout.num_generations.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say what would keep a run from learning, in minutes: try the verifier on gold and on non-answers, let the
    untrained model answer a few prompts, score them with sampler and trainer, make two updates and undo them, save and
    load a checkpoint, let a reward hang. Exit status 1 if anything would."""
    from assay.api.preflight import gather
    from assay.api.session import Session
    from assay.config.load import load_recipe
    from assay.monitoring.preflight import preflight

    config = load_recipe(recipe, overrides or [])
    with Session(config) as session:
        report = preflight(gather(session, prompts, samples or config.rollout.num_generations, note))
    if as_json:
        print_json(report.to_json())
    else:
        show(report)
    if report.alarming:
        sys.exit(1)


def show(report: Report) -> None:
    """The text form, on stdout."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    marks = {"error": "[red]✖[/]", "warning": "[yellow]▲[/]", "info": "[blue]●[/]"}
    for item in report.checks:
        mark = marks.get(item.severity, "[green]✔[/]" if item.status == "clear" else "[dim]?[/]")
        console.print(f"{mark} {item.id} {escape(item.title)}: {escape(item.evidence)}")
        if item.fix:
            console.print(f"     do: {escape(item.fix)}" + (f" [dim]({item.key})[/]" if item.key else ""))
    cost = report.estimate
    if cost.get("hours") is not None:
        memory = sum((cost["memory_gib"] or {}).values())
        console.print(
            f"estimate: {cost['seconds_per_step']:.1f} s a step, {cost['hours']:.2f} h in all, about {memory:.1f} GiB "
            f"of "
            f"memory and {cost['disk_gib']:.2f} GiB of disk"
        )
    wrong = [item for item in report.checks if item.severity in ("error", "warning")]
    console.print(f"[bold]{'This run would probably not learn well.' if wrong else 'Nothing stands in the way.'}[/]")
