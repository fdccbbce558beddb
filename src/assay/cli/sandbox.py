"""`assay sandbox`: what this host enforces on untrusted programs, tried for real; `assay sandbox run`: one program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import note, print_json
from assay.errors import InputError

if TYPE_CHECKING:
    from assay.sandbox import Isolation, RunResult, Sandbox

app = typer.Typer(add_completion=False, help="What this host enforces on untrusted programs, tried for real.")
SHOWN = 4000


@app.callback(invoke_without_command=True)
def sandbox(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="One JSON object: level, mechanisms, probes, missing.")] = False,
) -> None:
    """Try every promise of the sandbox from where a program would stand. Exit status 1 below level restricted."""
    if context.invoked_subcommand is not None:
        return
    from assay.sandbox import Level, witness

    with open_sandbox(require="limits-only", allow_unsafe=True, workers=1) as box:
        isolation = box.isolation
    if json:
        print_json(witness.report(isolation))
    else:
        show(isolation)
    raise typer.Exit(int(isolation.level < Level.RESTRICTED))


def open_sandbox(**options: Any) -> Sandbox:
    from assay.sandbox import InfraError, Sandbox, SandboxOptions

    try:
        return Sandbox(SandboxOptions(**options))
    except (ValueError, InfraError) as error:
        raise InputError(str(error)) from error


def show(isolation: Isolation) -> None:
    from rich.console import Console
    from rich.table import Table

    from assay.sandbox import Level

    console = Console()
    table = Table("promise", "from level", "here", box=None, pad_edge=False)
    for probe in isolation.probes:
        due = probe.needed_for <= isolation.level
        here = "held" if probe.held else ("NOT HELD" if due else "not held")
        table.add_row(probe.promise, probe.needed_for.label, f"[{'green' if probe.held else 'red'}]{here}[/]")
    console.print(table)
    level = f"level {isolation.level.label}: {'; '.join(isolation.mechanisms)}"
    console.print(level, highlight=False, soft_wrap=True)
    for reason in isolation.missing:
        console.print(f"would raise it: {reason}", highlight=False, markup=False, soft_wrap=True)
    if isolation.level < Level.RESTRICTED:
        console.print("Below restricted: programs are not run unless `require` and `allow_unsafe` say so.")


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A Python program.")],
    stdin: Annotated[Path | None, typer.Option(help="A file to give it as standard input.")] = None,
    cpu: Annotated[int, typer.Option(help="CPU seconds.")] = 5,
    wall: Annotated[float, typer.Option(help="Wall-clock seconds.")] = 8.0,
    memory: Annotated[int, typer.Option(help="Memory in MiB.")] = 512,
    processes: Annotated[int, typer.Option(help="Child processes it may have.")] = 0,
    preload: Annotated[list[str] | None, typer.Option(help="A package to load before it, such as numpy.")] = None,
    require: Annotated[str, typer.Option(help="Lowest level to accept.")] = "restricted",
    allow_unsafe: Annotated[bool, typer.Option(help="Accept a level below restricted.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Run one program in the sandbox; show what it printed, how it ended, what it used. Exit 1 if it failed."""
    from assay.sandbox import Limits

    for path in filter(None, (file, stdin)):
        if not path.is_file():
            raise InputError(f"sandbox run: the file {path} does not exist")
    try:
        limits = Limits(cpu_seconds=cpu, wall_seconds=wall, memory_mb=memory, processes=processes)
    except ValueError as error:
        raise InputError(str(error)) from error
    source = file.read_text(encoding="utf-8")
    options = {"require": require, "allow_unsafe": allow_unsafe, "preload": tuple(preload or ()), "workers": 1}
    with open_sandbox(**options) as box:
        result = box.run(source, stdin.read_bytes() if stdin else b"", limits=limits)
    report(result, json)
    raise typer.Exit(int(not result.ok))


def report(result: RunResult, json: bool) -> None:
    from dataclasses import asdict

    stdout, stderr = (data.decode(errors="replace") for data in (result.stdout, result.stderr))
    if json:
        facts = {**asdict(result), "stdout": stdout, "stderr": stderr, "level": result.level.label, "ok": result.ok}
        print_json(facts)
        return
    print(harmless(stdout[:SHOWN]), end="" if stdout.endswith("\n") else "\n")
    if stderr:
        note(harmless(stderr[-SHOWN:]).rstrip())
    how = f"exit status {result.exit_code}" if result.exit_code is not None else f"signal {result.signal}"
    usage = result.usage
    note(
        f"{result.ended} ({how}), {usage.cpu_s:.3f} s CPU, {usage.wall_s:.3f} s wall, {usage.max_rss_mb:.0f} MiB,"
        f" level {result.level.label}{': ' + result.detail if result.detail else ''}"
    )


def harmless(text: str) -> str:
    """Text without control sequences that could write to the terminal what the program likes."""
    return "".join(ch if ch.isprintable() or ch in "\n\t" else repr(ch)[1:-1] for ch in text)
