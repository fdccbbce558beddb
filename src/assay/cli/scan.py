"""`assay scan`: signs of tampering in programs."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.common import note, print_json
from assay.errors import InputError


def scan(
    file: Annotated[Path, typer.Argument(help="JSONL with a program in `code`, or a completion that holds one.")],
    column: Annotated[str, typer.Option(help="The column to read; default code, else completion.")] = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON object: programs, flagged, counts, findings.")] = False,
) -> None:
    """Point at programs that try to be paid without solving the task. Exit status 1 if any is flagged."""
    from dataclasses import asdict

    from assay.rewards.tampering import KINDS, detect_hacks

    rows = read_rows(file)
    findings: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for number, row in rows:
        for sign in detect_hacks(program_of(row, column, file, number)):
            findings.append({"row": number, **asdict(sign)})
            counts[sign.kind] = counts.get(sign.kind, 0) + 1
    flagged = len({finding["row"] for finding in findings})
    if json:
        print_json({"programs": len(rows), "flagged": flagged, "counts": counts, "findings": findings})
    else:
        for finding in findings:
            where = f"{file}:{finding['row']}, line {finding['line']}"
            print(f"{where}: {finding['kind']} ({finding['severity']}): {finding['evidence']}")
        for kind, count in sorted(counts.items(), key=lambda item: -item[1]):
            note(f"{count:5}  {kind}: {KINDS[kind]}")
        note(f"{flagged} of {len(rows)} programs flagged")
    raise typer.Exit(int(flagged > 0))


def read_rows(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """(line number, row) of every line that is not blank. Raises InputError."""
    if not file.is_file():
        raise InputError(f"scan: the file {file} does not exist")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = jsonlib.loads(line)
        except ValueError as error:
            raise InputError(f"scan: {file} line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"scan: {file} line {number} is {type(row).__name__}; give an object with `code`")
        rows.append((number, row))
    return rows


def program_of(row: dict[str, Any], column: str, file: Path, number: int) -> str:
    """The program of a row: `code` as it stands, or what a completion's last fenced block holds."""
    from assay.rewards.code import extract_program
    from assay.rewards.verifier import completion_text

    name = column or ("code" if "code" in row else "completion")
    if name not in row:
        raise InputError(f"scan: {file} line {number} has no {name!r} (it has {', '.join(row) or 'nothing'})")
    if name == "code":
        return str(row[name])
    found = extract_program(completion_text(row[name]))
    return found[0] if found else ""
