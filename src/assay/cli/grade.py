"""`assay grade`: mark completions in a JSONL file, without any model."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.common import note
from assay.errors import InputError

WINDOW = 64


def grade(
    file: Annotated[
        str, typer.Argument(help="Rows of JSON with `completion`, gold and anything else; - is standard input.")
    ],
    verifier: Annotated[str, typer.Option(help="A built-in name, file.py:function or package.module:function.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="An option of the verifier as key=value (value in YAML).")
    ] = None,
    gold: Annotated[str, typer.Option(help="The column that holds the reference answer.")] = "gold",
    workers: Annotated[int, typer.Option(help="Rows marked at once; 0 is the number of cores.")] = 0,
    timeout: Annotated[float, typer.Option(help="Wall-clock seconds for one row.")] = 30.0,
) -> None:
    """Mark each row: the row comes back with outcome, reward, extracted, span and detail, in the order of the input.

    One JSON object a line on standard output as rows finish; a summary on standard error.
    """
    from assay.rewards import RewardOptions, RewardSpec, Scorer

    spec = RewardSpec(fn=verifier, options=parse_options(option or []))
    options = RewardOptions(workers=workers, sample_timeout_s=timeout, on_error="skip")
    counts: Counter[str] = Counter()
    total = paid = 0.0
    started = time.monotonic()
    with Scorer([spec], options) as scorer:
        for row in graded(scorer, read_rows(file), gold):
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
            counts[row["outcome"]] += 1
            if row["reward"] is not None:
                total, paid = total + row["reward"], paid + 1
    summarise(counts, total / paid if paid else None, time.monotonic() - started)


def graded(scorer: Any, rows: Iterator[tuple[int, dict[str, Any]]], gold: str) -> Iterator[dict[str, Any]]:
    """Rows with their judgements, in order, with at most WINDOW rows per worker in flight."""
    from assay.cli.progress import counter

    in_flight: deque[tuple[dict[str, Any], Any, Any]] = deque()
    limit = WINDOW * scorer.threads.size
    with counter("grading") as advance:
        for number, row in rows:
            in_flight.append(submit(scorer, number, row, gold))
            if len(in_flight) >= limit:
                yield collect(scorer, *in_flight.popleft())
                advance()
        while in_flight:
            yield collect(scorer, *in_flight.popleft())
            advance()


def submit(scorer: Any, number: int, row: dict[str, Any], gold: str) -> tuple[dict[str, Any], Any, Any]:
    from assay.rewards.rows import group_of_row

    if "completion" not in row:
        raise InputError(f"line {number}: no `completion` (the row has {', '.join(row) or 'nothing'})")
    verifier = scorer.functions[0].verifier
    if gold != "gold" and gold not in row:
        raise InputError(f"line {number}: no column {gold!r} (the row has {', '.join(row)})")
    columns = row if gold == "gold" else {**row, "gold": row[gold]}
    if verifier is not None and verifier.needs_gold and verifier.gold_column not in columns:
        raise InputError(
            f"line {number}: no `{verifier.gold_column}` (the row has {', '.join(row)}); name the column with --gold"
        )
    group = group_of_row(columns, row["completion"])
    return row, group, scorer.submit(group)


def collect(scorer: Any, row: dict[str, Any], group: Any, future: Any) -> dict[str, Any]:
    future.result()
    scorer.finish([group])
    judgement = group.completions[0].judgements[scorer.names[0]]
    return {
        **row,
        "outcome": str(judgement.outcome),
        "reward": judgement.reward,
        "extracted": judgement.extracted,
        "span": judgement.span,
        "detail": judgement.detail,
    }


def read_rows(file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of a JSONL file. Raises InputError naming the line that is not an object."""
    if file != "-" and not Path(file).is_file():
        raise InputError(f"the file {file} does not exist; give rows of JSON, one a line, or - for standard input")
    stream = sys.stdin if file == "-" else Path(file).open(encoding="utf-8")  # noqa: SIM115 - closed below
    with stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{file} line {number}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise InputError(f"{file} line {number}: {type(row).__name__}, not a JSON object")
            yield number, row


def parse_options(pairs: list[str]) -> dict[str, Any]:
    import yaml

    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--option {pair!r}: use key=value")
        options[key] = yaml.safe_load(value)
    return options


def summarise(counts: Counter[str], mean: float | None, seconds: float) -> None:
    rows = sum(counts.values())
    shares = ", ".join(f"{count} {outcome} ({count / rows:.1%})" for outcome, count in counts.most_common())
    note(f"{rows} rows in {seconds:.1f} s ({rows / max(seconds, 1e-9):.0f}/s): {shares or 'nothing'}")
    if mean is not None:
        note(f"mean reward {mean:.4f}")
