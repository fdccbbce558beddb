"""Rows of a dataset: which column holds what, and what a row says."""

from __future__ import annotations

import difflib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.errors import InputError
from assay.prompts.options import SourceOptions
from assay.prompts.render import check_messages
from assay.records import Messages

USUAL = {
    "prompt": ("prompt", "messages", "question", "problem", "instruction", "query", "input"),
    "gold": ("gold", "answer", "solution", "target", "label", "ground_truth", "output"),
    "task": ("task",),
    "difficulty": ("difficulty",),
    "media": ("media", "image", "images", "audio", "video"),
}
LEFT_OUT = "none"


@dataclass(frozen=True)
class Columns:
    """The column that plays each part; None where the rows have none."""

    prompt: str | None
    gold: str | None
    task: str | None
    difficulty: str | None
    media: str | None


def find_columns(names: Sequence[str], source: SourceOptions, where: str) -> Columns:
    """Columns named by `data.fields`, else found under their usual names.

    Raises InputError for a named column that is not there, and when there is neither a prompt column nor a template.
    """
    found: dict[str, str | None] = {}
    for part, usual in USUAL.items():
        wanted = getattr(source.fields, part)
        if part == "media" and wanted == LEFT_OUT:
            found[part] = None
            continue
        if wanted is not None and wanted not in names:
            close = difflib.get_close_matches(wanted, names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}"
            raise InputError(f"data.fields.{part} is {wanted!r}, but {where} has no such column; {hint}")
        found[part] = wanted or next((name for name in usual if name in names), None)
    if source.template:
        check_placeholders(source.template, names, where)
    elif found["prompt"] is None:
        raise InputError(
            f"{where} has columns {', '.join(names)}, none of them a prompt by its usual name; "
            "set data.fields.prompt, or data.template with {column} placeholders"
        )
    return Columns(**found)


def check_placeholders(template: str, names: Sequence[str], where: str) -> None:
    try:
        wanted = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise InputError(
            f"data.template is not a valid template: {error}; write {{{{ and }}}} for plain braces"
        ) from error
    for name in wanted:
        if name not in names:
            raise InputError(f"data.template names {{{name}}}, but {where} has columns {', '.join(names)}")


def question_of(row: Mapping[str, Any], columns: Columns, source: SourceOptions, where: str) -> str | Messages | None:
    """What is asked, as text or messages; None where the row has nothing to ask."""
    if source.template:
        return source.template.format(**row)
    value = row.get(columns.prompt or "")
    if value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, list) and not value):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return check_messages(value, where)
    raise InputError(
        f"{where}: column {columns.prompt!r} holds a {type(value).__name__}; a prompt is text or a list of messages"
    )


def as_text(question: str | Messages) -> str:
    """The last user turn: what makes this prompt different from its neighbours."""
    if isinstance(question, str):
        return question
    turns = [message["content"] for message in question if message["role"] == "user"] or [question[-1]["content"]]
    last = turns[-1]
    return last if isinstance(last, str) else " ".join(str(part.get("text", "")) for part in last)
