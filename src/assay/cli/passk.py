"""`assay passk RECIPE|RUN`: unbiased pass@k and pass^k with bootstrap bands, base against trained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import note, print_json, wide_console
from assay.cli.progress import counter
from assay.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from assay.config.schema import RunConfig
    from assay.evaluation.passk import Curve
    from assay.evaluation.passk_report import PassReport
    from assay.records import Group, Prompt


def passk(
    source: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe (its base model) or a run directory.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Keys to change, such as data.heldout_size=500.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Samples a problem; at least twice the largest k.")] = 64,
    k: Annotated[
        list[int] | None, typer.Option("--k", help="Repeat for several; by default powers of two up to n.")
    ] = None,
    problems: Annotated[int, typer.Option(help="Held-out problems; the bands narrow with their square root.")] = 100,
    model: Annotated[str | None, typer.Option(help="base, trained or both; by default both of a run.")] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; low ones spoil pass@k at large k.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus of the sampler.")] = 1.0,
    max_completion_length: Annotated[int | None, typer.Option(help="Cut-off; by default the recipe's.")] = None,
    shard: Annotated[
        str, typer.Option(help="i/N: sample only every N-th file, from the i-th; N machines share a folder.")
    ] = "0/1",
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    against: Annotated[
        Path | None, typer.Option(help="Samples of another model, such as OTHER/passk/trained, in place of the base.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of samples and results; by default RUN/passk.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Sample, mark and estimate. Run the same command again after an interruption: it goes on where it was."""
    from assay.config.load import load_recipe
    from assay.evaluation.passk_report import report, write_report
    from assay.evaluation.passk_sampling import tally

    config = load_recipe(source, overrides or [])
    folder = output or (source / "passk" if source.is_dir() else Path("passk") / source.stem)
    tokens = max_completion_length or config.eval.max_completion_length or config.rollout.max_completion_length
    sampling = {"max_tokens": tokens, "temperature": temperature, "top_p": top_p}
    if temperature <= 0 and n > 1:
        raise InputError("--temperature 0 writes the same answer n times; pass@k needs one above 0")
    names, part = models(model or ("trained" if against and source.is_dir() else None), source), parse_shard(shard)
    fill(config, names, source, folder, (problems, n, seed), part, sampling)
    if part[1] > 1:
        note(f"shard {shard} is sampled; when all are, the same command without --shard reports")
        return
    others = {} if against is None else {str(against): tally(against, n)}
    tallies = {**others, **{name: tally(folder / name, n) for name in names}}
    found = report(tallies, k or None)
    write_report(found, tallies, folder, f"{source.name}: {found.problems} problems, {found.n} samples each")
    if as_json:
        print_json({**found.as_dict(), "output": str(folder)})
    else:
        show(found, folder)


def models(asked: str | None, source: Path) -> Sequence[str]:
    """Which models to sample, the base first."""
    choices = {"base": ["base"], "trained": ["trained"], "both": ["base", "trained"]}
    asked = asked or ("both" if source.is_dir() else "base")
    if asked not in choices:
        raise InputError(f"--model is {asked!r}; it can be base, trained or both")
    if asked != "base" and not source.is_dir():
        raise InputError(f"--model {asked} needs a run directory; {source} is a recipe")
    return choices[asked]


def parse_shard(text: str) -> tuple[int, int]:
    """(index, count) of "i/N".

    >>> parse_shard("2/8")
    (2, 8)
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise InputError(f"--shard is {text!r}; give i/N with i from 0 to N-1, such as 0/4")
    return int(index), int(count)


def fill(
    config: RunConfig,
    names: Sequence[str],
    source: Path,
    folder: Path,
    size: tuple[int, int, int],
    shard: tuple[int, int],
    sampling: Mapping[str, Any],
) -> None:
    """Sample what the shard still lacks of each model; `size` is (problems, samples a problem, seed)."""
    from assay.api.models import load_trained, trained_model
    from assay.api.session import Session
    from assay.config.load import plain
    from assay.evaluation.passk_sampling import sample_all, units
    from assay.rollouts.protocol import Sampling

    problems, n, seed = size
    with Session(config) as session:
        prompts = session.pool.heldout[:problems]
        if not prompts:
            raise InputError(f"{source} holds no prompts out; set data.heldout_size, or heldout_split")

        def draw(chosen: Sequence[Prompt], count: int, stream: int) -> list[Group]:
            return session.sample(chosen, Sampling(**sampling), count, stream + 1)  # 0 would mean the recipe's seed

        for name in names:
            marks = config.eval.rewards or config.rewards
            settings = {"weights": config.model.path, **sampling, "rewards": plain(marks)}
            if name == "trained":
                weights = trained_model(source)
                load_trained(session, weights)
                settings["weights"] = fingerprint(weights)
            with counter(f"sampling {name}", len(units(len(prompts), n)[shard[0] :: shard[1]])) as tick:
                sample_all(
                    draw, session.heldout_scorer, prompts, n, folder / name,
                    seed=seed, shard=shard, settings=settings, tick=tick,
                )  # fmt: skip


def fingerprint(folder: Path) -> str:
    """Identity of a model folder's weights: samples of another checkpoint must not be counted with this one's."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return f"{folder.name} {digest.hexdigest()[:16]}"


def show(found: PassReport, folder: Path) -> None:
    """Tables by k, warnings, and where the files lie."""
    console = wide_console()
    console.print(f"{found.problems} problems, {found.n} samples each", highlight=False)
    console.print(table("pass@k", found.pass_at_k, found.change))
    console.print(table("pass^k", found.pass_hat_k))
    for warning in found.warnings:
        console.print(f"note: {warning}", style="yellow", highlight=False, markup=False)
    console.print(f"files: {folder}/passk.json, passk.svg, passhatk.svg, problems.parquet", highlight=False)


def table(name: str, curves: Mapping[str, Curve], change: Curve | None = None) -> Table:
    """The curves with their bands by k, and the paired change; * marks a change whose band excludes 0."""
    from rich.table import Table

    rows = Table(name, *curves, *([] if change is None else ["change (paired)"]))
    for k in next(iter(curves.values())).ks:
        cells = [banded(*curve.at(k)) for curve in curves.values()]
        if change is not None:
            value, interval = change.at(k)
            cells.append(banded(value, interval, sign="+") + ("" if 0 in interval else " *"))
        rows.add_row(str(k), *cells)
    return rows


def banded(value: float, interval: Any, sign: str = "") -> str:
    return f"{value:{sign}.3f} \\{interval}"
