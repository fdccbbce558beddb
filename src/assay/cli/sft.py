"""`assay sft`: supervised fine-tuning before or between stages of reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.common import note, print_json


def sft(
    recipe: Annotated[str, typer.Argument(help="A YAML recipe: its model, data (how prompts are put together), sft.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Keys to change, such as sft.epochs=1 model.path=FOLDER.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(help="File with prompts and answers, instead of the recipe's own data.")
    ] = None,
    from_rollouts: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Imitate the stored completions of this run; repeatable.")
    ] = None,
    correct_only: Annotated[
        bool, typer.Option("--correct-only/--all", help="Of a run's completions only the correct ones.")
    ] = True,
    per_prompt: Annotated[int, typer.Option(help="Different completions of a prompt to keep, the latest first.")] = 4,
    output: Annotated[Path | None, typer.Option(help="The run directory; by default runs/NAME-sft.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Imitate answers: a cold start, or rejection sampling from a run's own rollouts. The loss counts answers only.

    The result is a plain model folder: `assay train RECIPE name=NAME-2 model.path=runs/NAME-sft/model`. The same
    command again goes on where it stopped.
    """
    from assay.api.sft import fine_tune

    def progress(step: int, metrics: Mapping[str, float]) -> None:
        if step == 1 or step % 20 == 0:
            note(f"update {step}: loss {metrics['sft/loss']:.4f}")

    try:
        result = fine_tune(
            recipe,
            overrides=overrides or [],
            rows=rows,
            from_rollouts=from_rollouts or [],
            correct_only=correct_only,
            per_prompt=per_prompt,
            output=output,
            on_log=progress,
        )
    except KeyboardInterrupt:
        note("stopped with a checkpoint; run the same command to go on")
        raise typer.Exit(130) from None
    if as_json:
        print_json({**result.summary, "directory": str(result.directory), "model": str(result.model)})
        return
    found = result.summary
    print(
        f"{found['rows']} answers, {found['updates']} updates in {found['seconds']:.0f} s: loss "
        f"{found['loss_first']:.3f} -> {found['loss_last']:.3f}\nmodel: {result.model}"
    )
