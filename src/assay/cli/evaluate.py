"""`assay eval`: held-out accuracy of a base model, or of a run before and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import print_json
from assay.errors import InputError

if TYPE_CHECKING:
    from assay.evaluation.heldout import HeldoutResult


def evaluate(
    source: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe (its base model) or a run directory.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Keys to change, such as eval.prompts=500.")] = None,
    samples: Annotated[int, typer.Option(help="Sampled answers a prompt; 0 answers greedily, once.")] = 0,
    which: Annotated[
        str | None, typer.Option(help="best or last; by default best, or last where none was picked.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure on held-out prompts, with 95% intervals; for a run also the paired change against the base model."""
    from assay.api.models import load_trained, trained_model
    from assay.api.session import Session
    from assay.config.load import load_recipe
    from assay.evaluation.heldout import compare
    from assay.evaluation.heldout import evaluate as measure
    from assay.rollouts.protocol import Sampling

    model = trained_model(source, which) if source.is_dir() else None
    config = load_recipe(source, overrides or [])
    length = config.eval.max_completion_length or config.rollout.max_completion_length
    sampling = Sampling(length, config.eval.temperature, config.eval.top_p) if samples else Sampling(length, 0.0)
    with Session(config) as session:
        prompts = session.pool.heldout[: config.eval.prompts]
        if not prompts:
            raise InputError(f"{source} holds no prompts out; set data.heldout_size, or heldout_split")
        results = {"base": measure(session.sample, session.heldout_scorer, prompts, sampling, max(samples, 1))}
        if model is not None:
            load_trained(session, model)
            results["trained"] = measure(session.sample, session.heldout_scorer, prompts, sampling, max(samples, 1))
    found: dict[str, Any] = {
        "prompts": len(prompts),
        "samples": samples,
        **{name: figures(r) for name, r in results.items()},
    }
    change = compare(results["base"], results["trained"]) if model is not None else None
    if change is not None:
        found["change"] = {"value": change.value, "low": change.interval.low, "high": change.interval.high}
    if as_json:
        print_json(found)
    else:
        show(found)


def figures(result: HeldoutResult) -> dict[str, Any]:
    interval = result.interval
    return {
        "accuracy": result.accuracy,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        **result.metrics,
    }


def show(found: dict[str, Any]) -> None:
    kind = f"{found['samples']} samples each" if found["samples"] else "greedy"
    print(f"{found['prompts']} held-out prompts, {kind}; 95% intervals")
    for name in ("base", "trained", "change"):
        if name not in found:
            continue
        figure = found[name]
        value = figure.get("accuracy", figure.get("value"))
        if value is None:
            print(f"  {name:<8} nothing was judged")
            continue
        sign = "+" if name == "change" else ""
        print(f"  {name:<8} {value:{sign}.3f}  [{figure['low']:{sign}.3f}, {figure['high']:{sign}.3f}]")
