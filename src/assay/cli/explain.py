"""`assay explain`: what an objective does to completions of given lengths and rewards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError

if TYPE_CHECKING:
    from assay.objectives.explain import Explanation


def explain(
    fields: Annotated[
        list[str] | None, typer.Argument(help="Fields of the objective: scale_rewards=none beta=0")
    ] = None,
    preset: Annotated[str, typer.Option(help="A published method; --list names them.")] = "grpo",
    dialect: Annotated[str | None, typer.Option(help="Compute it as this framework does: trl, verl, ...")] = None,
    lengths: Annotated[str, typer.Option(help="Tokens of each completion: 10,100")] = "",
    rewards: Annotated[
        list[str] | None, typer.Option(help="Reward of each completion: 1,0 (none: no reward). Repeat: one a function.")
    ] = None,
    advantages: Annotated[str | None, typer.Option(help="In place of rewards: 1,-1")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight of each reward function: 1,0.5")] = None,
    group_size: Annotated[int | None, typer.Option(help="Completions a prompt; default: all are one group.")] = None,
    max_completion_length: Annotated[int | None, typer.Option(help="dr_grpo's constant; default: the longest.")] = None,
    truncated: Annotated[str | None, typer.Option(help="Which completions hit the limit: 0,1")] = None,
    ratios: Annotated[
        str | None, typer.Option(help="Policy/old probability of each completion's tokens: 1,1.35")
    ] = None,
    list_presets: Annotated[bool, typer.Option("--list", help="Name the presets and their sources.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Print advantages, per-token weights and gradients, and what each axis of the objective contributes.

    Shows length bias and difficulty bias: `assay explain --preset grpo --lengths 10,100 --rewards 1,0`.
    """
    from assay.objectives import explain as mathematics
    from assay.objectives.presets import preset as named

    if list_presets:
        return _print_presets(as_json)
    try:
        spec = named(preset, dialect=dialect, **_overrides(fields or []))
        explanation = mathematics.explain(
            spec,
            _numbers("--lengths", lengths, int),
            rewards=[_rewards(column) for column in rewards] if rewards else None,
            advantages=None if advantages is None else _numbers("--advantages", advantages, float),
            weights=None if weights is None else _numbers("--weights", weights, float),
            group_size=group_size,
            max_completion_length=max_completion_length,
            truncated=None if truncated is None else [x == 1 for x in _numbers("--truncated", truncated, int)],
            ratios=None if ratios is None else _numbers("--ratios", ratios, float),
        )
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error
    if as_json:
        print(json.dumps({"preset": preset, "dialect": dialect, **vars(explanation)}))
    else:
        _print_tables(preset, explanation)


def _numbers(option: str, text: str, kind: Any) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r}: expected numbers separated by commas, such as 10,100") from None


def _rewards(text: str) -> list[float | None]:
    parts = [part.strip() for part in text.split(",")]
    return [None if part.lower() == "none" else _numbers("--rewards", part, float)[0] for part in parts]


def _overrides(fields: list[str]) -> dict[str, Any]:
    import yaml

    pairs = [field.partition("=") for field in fields]
    for name, equals, _ in pairs:
        if not equals:
            raise InputError(f"{name!r}: a field is given as name=value, such as scale_rewards=none")
    return {name.removeprefix("objective."): yaml.safe_load(value) for name, _, value in pairs}


def _print_presets(as_json: bool) -> None:
    from assay.objectives.presets import DIALECTS, PRESETS

    if as_json:
        presets = {name: {"source": row.source, "fields": row.fields} for name, row in PRESETS.items()}
        print(json.dumps({"presets": presets, "dialects": list(DIALECTS)}))
        return
    width = max(map(len, PRESETS))
    for name, row in PRESETS.items():
        print(f"{name:<{width}}  {row.source}")
    print(f"\ndialects: {', '.join(DIALECTS)}")


def _print_tables(preset: str, explanation: Explanation) -> None:
    from rich.console import Console
    from rich.table import Table

    e, moved = explanation, any(ratio != 1 for ratio in explanation.ratios)
    columns: dict[str, list[str]] = {
        "tokens": [str(length) for length in e.lengths],
        "reward": ["-" if reward is None else f"{reward:g}" for reward in e.rewards],
        "centred": [f"{x:+.4f}" for x in e.centred],
        "advantage": [f"{x:+.4f}" for x in e.advantages],
        "weight": [f"{x:.4g}" for x in e.aggregation_weights],
        "product": [f"{x:+.4g}" for x in e.token_weights],
        "x tokens": [f"{x * n:+.4g}" for x, n in zip(e.token_weights, e.lengths, strict=True)],
    }
    if moved:
        columns["ratio"] = [f"{x:g}" for x in e.ratios]
    columns["gradient"] = [f"{x:+.4g}" for x in e.gradients]
    if any(e.no_signal):
        columns["signal"] = ["none" if gone else "yes" for gone in e.no_signal]
    table = Table(title=preset, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    Console(width=max(100, Console().width)).print(table)
    width = max(map(len, e.axes))
    for axis, choice in e.axes.items():
        print(f"{axis:<{width}}  {choice}")
