"""Two completions word by word: what they share and where they part."""

from __future__ import annotations

import difflib
import re
from typing import Any

from assay.errors import InputError
from assay.monitoring.imports import RolloutSource

WORDS = re.compile(r"\s+|\w+|[^\w\s]")
# The matcher's time grows with the square of the words; longer texts are compared line by line.
MOST_WORDS = 3000


def diff_texts(left: str, right: str) -> list[tuple[str, str]]:
    """Pieces of both texts in order; a piece is (left, right), equal where they agree, and concatenate to the texts.

    >>> diff_texts("so 4 it is", "so 5 it is")
    [('so ', 'so '), ('4', '5'), (' it is', ' it is')]
    """
    first, second = WORDS.findall(left), WORDS.findall(right)
    if max(len(first), len(second)) > MOST_WORDS:
        first, second = left.splitlines(keepends=True), right.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return [("".join(first[a:b]), "".join(second[c:d])) for _, a, b, c, d in matcher.get_opcodes()]


def diff_completions(source: RolloutSource, left: str, right: str) -> dict[str, Any]:
    """The diff of two completions by their ids "step/group/sample", with what each earned.

    Raises InputError for an id that is none, or that the run does not have.
    """
    rows = [completion_of(source, name) for name in (left, right)]
    pieces = diff_texts(*(row["text"] or "" for row in rows))
    shared = sum(len(one) for one, other in pieces if one == other)
    longest = max(len(row["text"] or "") for row in rows)
    return {
        "left": {"id": left, **facts(rows[0])},
        "right": {"id": right, **facts(rows[1])},
        "pieces": pieces,
        "shared": shared / longest if longest else 1.0,
    }


def facts(row: dict[str, Any]) -> dict[str, Any]:
    reward = row["reward"]
    known = None if reward is None or reward != reward else float(reward)
    return {"reward": known, "correct": row["correct"], "num_tokens": row["num_tokens"], "finish": row["finish"]}


def completion_of(source: RolloutSource, name: str) -> dict[str, Any]:
    try:
        step, group, sample = (int(part) for part in name.split("/"))
    except ValueError:
        raise InputError(f"{name!r} names no completion; ids are step/group/sample, such as 3/0/1") from None
    columns = ("group", "sample", "text", "reward", "correct", "num_tokens", "finish")
    for row in source.read(step, columns) if step in source.steps() else ():
        if (row["group"], row["sample"]) == (group, sample):
            return row
    raise InputError(f"the run has no completion {name}")
