"""`assay filter RECIPE`: pass rates of a dataset under a model, and a dataset of the prompts that can teach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import note, print_json
from assay.errors import InputError

if TYPE_CHECKING:
    from assay.config.schema import RunConfig
    from assay.prompts import FilterOptions, Store
    from assay.records import Group, Prompt


def filter_prompts(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe; its model, data and rewards are used.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Keys to change, such as data.train_size=1000.")] = None,
    output: Annotated[Path, typer.Option(help="Rows to train on, .jsonl or .parquet; others lie beside it.")] = Path(
        "filtered.jsonl"
    ),
    samples: Annotated[int, typer.Option(help="Completions a prompt; 8 to 16 tell easy from hard.")] = 8,
    retests: Annotated[int, typer.Option(help="Further looks at prompts that were all right or all wrong.")] = 1,
    low: Annotated[float, typer.Option(help="Keep prompts above this pass rate.")] = 0.0,
    high: Annotated[float, typer.Option(help="Keep prompts below this pass rate.")] = 1.0,
    give_up: Annotated[
        float, typer.Option(help="Never-solved prompts stay unless surely below this pass rate.")
    ] = 0.05,
    generations: Annotated[
        list[int] | None, typer.Option(help="Group sizes to forecast for; repeat for several. Default 4, 8, 16, 32.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Sample every training prompt, keep what may teach. After an interruption the same command goes on."""
    from assay.config.load import load_recipe
    from assay.prompts import FilterOptions, apply_filter

    if output.suffix not in WRITERS:
        raise InputError(f"--output {str(output)!r} has an unknown kind; writable are {', '.join(WRITERS)}")
    options = FilterOptions(samples=samples, retests=retests, low=low, high=high, give_up=give_up)
    config = load_recipe(recipe, overrides or [])
    prompts, store = measure(config, options, seed, beside(output, ".counts.jsonl"))
    found = apply_filter(prompts, store, options, generations or (4, 8, 16, 32))
    WRITERS[output.suffix](output, found.kept)
    aside = beside(output, f".aside{output.suffix}")
    WRITERS[output.suffix](aside, found.aside)
    summary = {**found.summary, "output": str(output), "aside": str(aside), "counts": str(store.path)}
    if as_json:
        print_json(summary)
    else:
        show(summary)
    if not found.kept:
        note("no prompt is left to train on: check the verifier, or take easier or harder data")
        raise typer.Exit(1)


def measure(config: RunConfig, options: FilterOptions, seed: int, counts: Path) -> tuple[list[Prompt], Store]:
    """Every training prompt's counts, sampled now or found in `counts`."""
    from assay.api.session import Session
    from assay.prompts import Store, estimate
    from assay.rollouts.protocol import Sampling

    sampling = Sampling(config.rollout.max_completion_length, config.rollout.temperature)
    counts.parent.mkdir(parents=True, exist_ok=True)
    store = Store(counts, identity(config, options, seed))
    with Session(config) as session:
        scorer = session.scorer  # built before the model is loaded: a wrong reward is found at once
        prompts = session.pool.train

        def sample(chosen: Sequence[Prompt], k: int, look: int) -> list[Group]:
            groups = session.sample(chosen, sampling, k, seed + 1 + look)
            scorer.score(groups)
            return groups

        follow(estimate(prompts, sample, store, options))
    return prompts, store


def identity(config: RunConfig, options: FilterOptions, seed: int) -> dict[str, Any]:
    """What counts depend on beside the prompt itself; a file with another identity is not continued."""
    return {
        "model": str(config.model.path),
        "rewards": [str(function.fn) for function in config.rewards.functions],
        "max_completion_length": config.rollout.max_completion_length,
        "temperature": config.rollout.temperature,
        "samples": options.samples,
        "seed": seed,
    }


def follow(progress: Any) -> None:
    """Run to the end, with a bar on standard error if that is a terminal."""
    import sys

    if not sys.stderr.isatty():
        for _ in progress:
            continue
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("sampling")
        for done, total in progress:
            bar.update(task, completed=done, total=total)


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import json

    text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
    except (pyarrow.ArrowException, TypeError) as error:
        raise InputError(
            f"the rows do not fit into a parquet table ({error}); give --output a name in .jsonl"
        ) from error


WRITERS = {".jsonl": write_jsonl, ".parquet": write_parquet}


def beside(output: Path, ending: str) -> Path:
    return output.with_name(output.stem + ending)


def show(summary: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary["reasons"].items())
    console.print(f"{summary['kept']} of {summary['prompts']} prompts kept ({reasons})", highlight=False)
    if summary["unjudged_completions"]:
        console.print(
            f"{summary['unjudged_completions']} completions could not be judged and count nowhere", highlight=False
        )
    table = Table("G", "mixed groups before", "after", title="forecast, 1 - p^G - (1-p)^G on average")
    for count, rates in summary["mixed"].items():
        table.add_row(
            count, *(f"{rates[name]:.2f}" if rates[name] is not None else "-" for name in ("before", "after"))
        )
    console.print(table)
    console.print(f"files: {summary['output']}, {summary['aside']}, {summary['counts']}", highlight=False)
