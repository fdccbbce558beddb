"""`assay train`: the loop, from a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.common import print_json


def train(
    recipe: Annotated[str, typer.Argument(help="A YAML recipe, or the directory of a run to go on with.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Keys to change, such as train.steps=100 rollout.num_generations=8.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print summary.json on standard output.")] = False,
) -> None:
    """Train as RECIPE says. Runs in runs/NAME; the same command again goes on where it stopped.

    Ctrl-C ends after the round with a checkpoint. `accelerate launch --num-processes N -m assay train RECIPE` uses N
    processes.
    """
    import assay
    from assay.cli.results import show_result

    words = list(overrides or []) + (["monitoring.console=quiet"] if quiet else [])
    result = assay.train(recipe, overrides=words)
    if json_output:
        print_json({**result.summary, "directory": str(result.directory)})
    else:
        show_result(result)
