"""`assay sweep RECIPE key=[a,b]`: settings times seeds, each its own run, resumed by the same command."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import note, print_json, wide_console
from assay.errors import InputError

if TYPE_CHECKING:
    from assay.evaluation.sweep import Ended, Sweep, SweepRun


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe, or a sweep file (recipe, vary, settings, set, seeds).")],
    keys: Annotated[
        list[str] | None, typer.Argument(help="objective.loss_type=[grpo,dapo] varies a key; train.steps=50 fixes it.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Repeats of every setting, with seeds 0, 1, ...; 3 give intervals.")
    ] = None,
    parallel: Annotated[int | None, typer.Option(help="Processes at a time; they share the machine's cores.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Folder of the runs; by default runs/NAME-sweep.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the commands only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run one recipe under several settings and seeds, then compare them. Run the same command again to go on."""
    from assay.evaluation.sweep import read_sweep, run_sweep

    given = read_sweep(recipe) or {"recipe": str(recipe)}
    plan = build(given, recipe, keys or [], seeds, output_dir)
    if dry_run:
        for run in plan.runs():
            print(f"assay train {plan.recipe} {' '.join(run.overrides)}")
        return
    # A scheduler's stop is a Ctrl-C: runs checkpoint. A shell's background jobs begin with SIGINT ignored, which the
    # runs would inherit, and then never hear of it.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.default_int_handler)
    try:
        ended = run_sweep(plan, parallel or given.get("parallel", 1), report)
    except KeyboardInterrupt:
        note("stopped; run the same command to go on")
        raise typer.Exit(130) from None
    failed = [run for run in ended if run.status != 0]
    comparison = compare([Path(plan.output_dir) / run.name for run in ended if run.status == 0], plan, as_json)
    if as_json:
        runs = [
            {"name": run.name, "status": run.status, "seconds": round(run.seconds, 1), "reason": run.reason}
            for run in ended
        ]
        print_json({"output_dir": plan.output_dir, "runs": runs, "comparison": comparison})
    for end in failed:
        note(f"failed: {end.name}: {end.reason} (log: {end.log})")
    if failed:
        raise typer.Exit(1)


def build(given: Mapping[str, Any], path: Path, words: list[str], seeds: int | None, output_dir: Path | None) -> Sweep:
    """The sweep of a file's keys with the command line's on top; a list varies a key, anything else fixes it."""
    import yaml

    from assay.evaluation.sweep import Sweep

    vary, fixed = dict(given.get("vary") or {}), dict(given.get("set") or {})
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise InputError(f"{word!r} is not of the form key=value or key=[value, value]")
        value = yaml.safe_load(text)
        (vary if isinstance(value, list) else fixed)[key] = value
    for key, values in vary.items():
        if not isinstance(values, list):
            raise InputError(f"vary.{key} is {values!r}; give a list of values")
    numbers = list(range(seeds)) if seeds is not None else given.get("seeds", [0])
    folder = output_dir or given.get("output_dir") or Path("runs") / f"{path.stem}-sweep"
    return Sweep(
        recipe=str(given["recipe"]),
        output_dir=str(folder),
        vary=vary,
        settings=given.get("settings") or (),
        fixed=fixed,
        seeds=list(range(numbers)) if isinstance(numbers, int) else numbers,
    )


def report(event: str, run: SweepRun, ended: Ended | None) -> None:
    """A line a start and an end, on standard error."""
    if ended is None:
        note(f"start   {run.name}")
    else:
        note(f"{'done' if ended.status == 0 else 'FAILED':<7} {run.name} in {ended.seconds:.0f} s")


def compare(runs: list[Path], plan: Sweep, quiet: bool) -> dict[str, Any] | None:
    """Compare what finished, as tables and as compare.html in the sweep's folder."""
    if not runs:
        return None
    from assay.cli.compare import tables
    from assay.evaluation.comparison import compare_runs
    from assay.evaluation.comparison_page import render

    found = compare_runs(runs)
    page = Path(plan.output_dir) / "compare.html"
    page.write_text(render(found), encoding="utf-8")
    if not quiet:
        console = wide_console()
        for table in tables(found):
            console.print(table)
        console.print(f"page: {page}", highlight=False)
    return found.as_dict()
