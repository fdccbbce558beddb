"""`assay audit`: does the verifier pay for gold, and for nothing else?"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from assay.cli.common import note, print_json
from assay.cli.grade import parse_options, read_rows
from assay.errors import InputError

SHOWN = 3


def audit(
    source: Annotated[str, typer.Argument(help="A recipe, or with --verifier a JSONL file of rows with gold.")],
    verifier: Annotated[str, typer.Option(help="A built-in name, file.py:function or package.module:function.")] = "",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="An option of the verifier as key=value (value in YAML).")
    ] = None,
    gold: Annotated[str, typer.Option(help="The column that holds the reference answer.")] = "gold",
    tokenizer: Annotated[str, typer.Option(help="Send gold through this tokenizer (path or id) before marking.")] = "",
    limit: Annotated[int, typer.Option(help="Rows whose gold is tried.")] = 1000,
    attack_rows: Annotated[int, typer.Option(help="Rows on which the attacks are tried.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Mark gold in the model's own output format, and texts that deserve nothing; exit 1 where one is paid.

    Exit 1 as well where less than 99 % of the readable golds earn full reward.
    """
    specs, rows, loaded = (
        from_file(source, verifier, parse_options(option or []), gold, limit, tokenizer)
        if verifier
        else from_recipe(source, limit)
    )
    if not rows:
        raise InputError(f"{source} has no rows")
    reports = [run(spec, rows, loaded, attack_rows) for spec in specs]
    if json:
        print_json({"ok": all(report.ok for report in reports), "verifiers": [report.as_dict() for report in reports]})
    else:
        for report in reports:
            show(report)
    if not all(report.ok for report in reports):
        sys.exit(1)


def from_file(
    source: str, verifier: str, options: dict[str, Any], gold: str, limit: int, tokenizer: str
) -> tuple[list[Any], list[dict[str, Any]], Any]:
    from assay.rewards import RewardSpec

    rows = []
    for number, row in read_rows(source):
        if gold != "gold" and gold not in row:
            raise InputError(f"{source} line {number}: no column {gold!r} (the row has {', '.join(row)})")
        rows.append({**row, "gold": row[gold]} if gold in row else row)
        if len(rows) >= limit:
            break
    loaded = None
    if tokenizer:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(tokenizer)
    return [RewardSpec(fn=verifier, options=options)], rows, loaded


def from_recipe(source: str, limit: int) -> tuple[list[Any], list[dict[str, Any]], Any]:
    """The recipe's own reward functions, its prompts' rows and its model's tokenizer."""
    from assay.config.load import load_recipe
    from assay.policy.loading import load_tokenizer
    from assay.prompts.pool import load_prompts

    recipe = load_recipe(source)
    tokenizer = load_tokenizer(recipe.model)
    pool = load_prompts(recipe.data, tokenizer)
    return list(recipe.rewards.functions), [dict(prompt.row) for prompt in pool.train[:limit]], tokenizer


def run(spec: Any, rows: list[dict[str, Any]], tokenizer: Any, attack_rows: int) -> Any:
    from assay.cli.progress import counter
    from assay.rewards.audit import audit as audit_rows

    with counter(f"auditing {spec.name or spec.fn}", len(rows)) as advance:
        return audit_rows(spec, rows, tokenizer, attack_rows, progress=lambda *_: advance())


def show(report: Any) -> None:
    """The table for a person, then the texts that were marked against what they deserve."""
    from rich.console import Console
    from rich.table import Table

    if not report.audited:
        note(f"{report.verifier}: passed over, no answer can test it")
        return
    console = Console(soft_wrap=True)
    judged = report.gold_paid + report.false_negatives
    console.print(f"[bold]{report.verifier}[/bold] over {report.rows} rows")
    console.print(
        f"gold paid {report.gold_paid}/{judged}, unreadable {report.unreadable}, "
        f"not applicable {report.not_applicable}, failures {report.failures}"
    )
    table = Table("attack", "tried", "paid")
    for name, tried in report.tried.items():
        table.add_row(name, str(tried), str(report.paid[name]), style="red" if report.paid[name] else "")
    console.print(table)
    console.print(
        f"latency p50 {1e3 * report.latency_p50:.2f} ms, p95 {1e3 * report.latency_p95:.2f} ms, "
        f"p99 {1e3 * report.latency_p99:.2f} ms"
    )
    shown: dict[str, int] = {}
    for offence in report.offences:
        shown[offence.kind] = shown.get(offence.kind, 0) + 1
        if shown[offence.kind] <= SHOWN:
            console.print(
                f"  {offence.kind} (row {offence.row}, gold {offence.gold[:60]!r}): {offence.text[:160]!r} -> "
                f"{offence.outcome}, reward {offence.reward} {offence.detail}",
                markup=False,
            )
    verdict = "pays for gold and for nothing else" if report.ok else reasons(report)
    note(f"{report.verifier}: {verdict}")


def reasons(report: Any) -> str:
    found = []
    if report.false_positives:
        found.append(f"pays for {report.false_positives} non-answers")
    if not report.pays_for_gold:
        found.append(f"does not pay for {report.false_negatives} of {report.rows} golds")
    if report.failures:
        found.append(f"failed on {report.failures} golds")
    return "; ".join(found)
