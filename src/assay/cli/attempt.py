"""`assay try`: what the model said before training, and what it says now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import print_json
from assay.errors import InputError

if TYPE_CHECKING:
    from assay.api.session import Session
    from assay.records import Group, Prompt


def attempt(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Your own prompt instead of held-out ones.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", help="How many held-out prompts to show.")] = 3,
    which: Annotated[
        str | None, typer.Option(help="best or last; by default best, or last where none was picked.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer prompts with the base model and with the trained one, side by side."""
    from assay.api.models import load_trained, trained_model
    from assay.api.session import Session
    from assay.config.load import load_recipe

    source = trained_model(run, which)
    with Session(load_recipe(run)) as session:
        prompts = [own_prompt(session, prompt)] if prompt else session.pool.heldout[:count]
        if not prompts:
            raise InputError(f"{run} holds no prompts out; give one with --prompt")
        before = answers(session, prompts, temperature, judged=prompt is None)
        load_trained(session, source)
        after = answers(session, prompts, temperature, judged=prompt is None)
    pairs = [
        {"prompt": question(old), "gold": old.prompt.row.get("gold"), "before": answer(old), "after": answer(new)}
        for old, new in zip(before, after, strict=True)
    ]
    if as_json:
        print_json({"model": str(source), "answers": pairs})
    else:
        show(pairs)


def own_prompt(session: Session, text: str) -> Prompt:
    """A prompt of the user's through the run's chat template and system prompt."""
    from assay.prompts.render import Renderer

    data = session.config.data
    return Renderer(data, session.tokenizer).prompt(text, {}, "own", data.sources[0])


def answers(session: Session, prompts: Sequence[Prompt], temperature: float, judged: bool) -> list[Group]:
    from assay.rollouts.protocol import Sampling

    groups = session.sample(prompts, Sampling(session.config.rollout.max_completion_length, temperature), 1)
    if judged:
        session.scorer.score(groups)
    return groups


def question(group: Group) -> str:
    """What was asked last."""
    content = group.prompt.content
    return content if isinstance(content, str) else str(content[-1]["content"])


def answer(group: Group) -> dict[str, Any]:
    completion = group.completions[0]
    return {
        "text": completion.text,
        "correct": completion.correct,
        "reward": completion.reward,
        "finish": completion.finish,
    }


def show(pairs: Sequence[dict[str, Any]]) -> None:
    """One table a prompt."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for pair in pairs:
        table = Table(show_header=False, expand=True, padding=(0, 1))
        table.add_column(style="bold", width=8)
        table.add_column(overflow="fold")
        table.add_row("prompt", Text(pair["prompt"]))
        if pair["gold"] is not None:
            table.add_row("gold", Text(str(pair["gold"])))
        for name in ("before", "after"):
            said = pair[name]
            verdict = {True: "correct", False: "wrong", None: ""}[said["correct"]]
            colour = {True: "green", False: "red", None: ""}[said["correct"]]
            table.add_row(name, Text.assemble(said["text"], "\n" if verdict else "", (verdict, colour)))
        console.print(table)
