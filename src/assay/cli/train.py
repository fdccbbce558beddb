"""`assay train`: the loop, from a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.common import note, print_json


def train(
    recipe: Annotated[str, typer.Argument(help="A YAML recipe, or the directory of a run to go on with.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Keys to change, such as train.steps=100 rollout.num_generations=8.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
    profile: Annotated[
        int, typer.Option(help="Record so many steps, from the second on, into RUN/profile: a trace and a table.")
    ] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print summary.json on standard output.")] = False,
) -> None:
    """Train as RECIPE says. Runs in runs/NAME; the same command again goes on where it stopped.

    Ctrl-C ends after the round with a checkpoint. `accelerate launch --num-processes N -m assay train RECIPE` uses N
    processes.
    """
    from pathlib import Path

    from assay.api.run import run
    from assay.cli.results import show_result
    from assay.config.load import load_recipe
    from assay.training.profile import StepProfiler

    words = list(overrides or []) + (["monitoring.console=quiet"] if quiet else [])
    config = load_recipe(recipe, words)
    profiler = StepProfiler(Path(config.output_dir) / config.name / "profile", profile)
    try:
        result = run(config, on_step=profiler)
    finally:
        profiler.close()
    if result.was_finished:
        note(f"{result.directory} was finished already; raise train.steps to go on, or set another name")
    if json_output:
        print_json({**result.summary, "directory": str(result.directory)})
    else:
        show_result(result)
