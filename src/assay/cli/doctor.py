"""`assay doctor RUN`: what is wrong with this run, why, and which key to change."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import InputError

if TYPE_CHECKING:
    from assay.monitoring.doctor import Answer, Diagnosis, Finding


def doctor(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory, or one log: metrics.jsonl, "
            "trainer_state.json, a wandb CSV or JSONL export, verl's JSONL.",
        ),
    ],
    symptom: Annotated[str, typer.Option(help="Start from what you see: reward-flat or length-grows.")] = "",
    facts: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A configuration value that a "
            "foreign log lacks, such as num_generations=8 or max_completion_length=1024.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    all_rules: Annotated[bool, typer.Option("--all", help="Also list the rules that are clear.")] = False,
) -> None:
    """Say what is wrong with a run, live or finished: causes before symptoms, each with its evidence and the key to
    change. A rule that cannot be checked says what it needs. Exit status 1 if there is a warning or an error."""
    from assay.monitoring.doctor import diagnose, walk
    from assay.monitoring.sources import open_run

    diagnosis = diagnose(open_run(path, parse_facts(facts or [])), now=time.time())
    answers = walk(symptom, diagnosis) if symptom else []
    if as_json:
        payload = diagnosis.to_json()
        if symptom:
            payload["symptom"] = {"name": symptom, "answers": [vars(answer) for answer in answers]}
        json.dump(payload, sys.stdout, indent=2)
        print()
    else:
        show(diagnosis, answers, all_rules)
    if diagnosis.alarming:
        raise typer.Exit(1)


def parse_facts(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE pairs; the value is read as YAML, so 8 is a number.

    >>> parse_facts(["num_generations=8", "loss_type=grpo"])
    {'num_generations': 8, 'loss_type': 'grpo'}
    """
    import yaml

    facts: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair!r} should look like num_generations=8")
        facts[key] = yaml.safe_load(value)
    return facts


def show(diagnosis: Diagnosis, answers: list[Answer], all_rules: bool) -> None:
    """The text form, on stdout."""
    from rich.console import Console
    from rich.markup import escape

    from assay.monitoring.doctor import verdict

    console = Console(highlight=False, soft_wrap=False)
    console.print(f"[bold]{escape(verdict(diagnosis))}[/]")
    console.print(f"[dim]{escape(diagnosis.run)} ({diagnosis.source}, {diagnosis.steps} steps)[/]")
    for warning in diagnosis.warnings:
        console.print(f"[yellow]{escape(warning)}[/]")
    marks = {"problem": "[red]✖[/]", "clear": "[green]✔[/]", "unknown": "[yellow]?[/]"}
    for number, answer in enumerate(answers, 1):
        console.print(f"\n{marks[answer.status]} {number}. {escape(answer.question)}\n     {escape(answer.detail)}")
    for finding in diagnosis.findings:
        console.print(f"\n{describe(finding)}")
    console.print()
    if all_rules:
        console.print("clear: " + ", ".join(f"{rule.id} ({escape(rule.title)})" for rule in diagnosis.clear))
    else:
        console.print(f"clear: {' '.join(rule.id for rule in diagnosis.clear) or 'none'}")
    for label, rules in (("too early", diagnosis.too_early), ("not checkable", diagnosis.not_checkable)):
        needs: dict[str, list[str]] = {}
        for rule in rules:
            needs.setdefault(rule.needs, []).append(rule.id)
        for need, names in needs.items():
            console.print(f"[dim]{label}: {' '.join(names)}: {escape(need)}[/]")
    console.print("[dim]`loss` is not judged: it carries no information about learning in policy-gradient training.[/]")


def describe(finding: Finding) -> str:
    """One finding as rich markup."""
    from rich.markup import escape

    colour = {"error": "red", "warning": "yellow", "info": "blue"}[finding.severity]
    lines = [f"[{colour}]{finding.severity}[/] [bold]{finding.id}[/] {escape(finding.title)}"]
    if finding.explained_by:
        lines[0] += f" [dim](explained by {finding.explained_by})[/]"
    window = f" [dim](steps {finding.window[0]} to {finding.window[1]})[/]" if finding.window else ""
    lines.append(f"  seen: {escape(finding.evidence)}{window}")
    lines.append(f"  do:   {escape(finding.fix)}" + (f" [dim]({finding.key})[/]" if finding.key else ""))
    if finding.rollouts:
        lines.append(f"  open: {' '.join(finding.rollouts)} [dim](step/group/sample in `assay view`)[/]")
    return "\n".join(lines)
