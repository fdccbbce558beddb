"""Built-in procedural tasks: rows by name, seed and split, from nothing but phrases and random numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.prompts.tasks.email import email_rows, email_schema
from assay.prompts.tasks.programs import program_rows
from assay.prompts.tasks.small import SMALL_TASKS

__all__ = ["TASKS", "email_rows", "email_schema", "task_rows"]

TASKS = ("email_json", *SMALL_TASKS, "programs")
MOST_REPEATS = 200


def task_rows(
    name: str, options: Mapping[str, Any], train_size: int, heldout_size: int, seed: int
) -> tuple[list, list]:
    """Training and held-out rows of a built-in task; a row has prompt, task and gold (or tests).

    None is in both lists. A task that has fewer different questions than were asked for gives what it has, held-out
    rows first and at most a fifth of all.
    """
    if name not in TASKS:
        close = difflib.get_close_matches(str(name), TASKS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"built in are {', '.join(TASKS)}"
        raise InputError(f"data.name {name!r} is not a built-in task; {hint}")
    try:
        if name == "email_json":
            return (
                list(email_rows(train_size, seed, heldout=False, **options)),
                list(email_rows(heldout_size, seed, heldout=True, **options)),
            )
        if name == "programs":
            rows = list(islice(program_rows(seed, **options), train_size + heldout_size))
            return rows[heldout_size:], rows[:heldout_size]
        rows = list(islice(small_rows(name, options, seed), train_size + heldout_size))
    except TypeError as error:
        raise InputError(f"data.options {dict(options)} do not fit the task {name}: {error}") from error
    held = min(heldout_size, len(rows) // 5) if len(rows) < train_size + heldout_size else heldout_size
    return rows[held : held + train_size], rows[:held]


def small_rows(name: str, options: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Different questions of a small task without end, or until new ones have become too rare to wait for."""
    seen: set[str] = set()
    rng = np.random.default_rng([seed, TASKS.index(name)])
    repeats = 0
    while repeats < MOST_REPEATS:
        question, gold, difficulty = SMALL_TASKS[name](rng, **options)
        if question in seen:
            repeats += 1
            continue
        repeats = 0
        seen.add(question)
        yield {"prompt": question, "gold": gold, "task": name, "difficulty": difficulty}
