"""Small programming tasks with hidden tests: a function of one line or a few, in words, with two calls as examples.

The reference solutions are ours, so their results are computed in this process; what a model writes never is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

HIDDEN_CASES = 6
EXAMPLES = 2


@dataclass(frozen=True)
class Template:
    """What is asked, with {k} for a drawn number, the expression that solves it, and the kinds of its arguments.

    Kinds: "int" (-9 to 20), "ints" (0 to 7 of them), "word" (0 to 8 letters).
    """

    words: str
    expression: str
    parameters: tuple[tuple[str, str], ...]


NUMBERS, WORD = (("numbers", "ints"),), (("text", "word"),)
TEMPLATES = (
    Template("returns n plus {k}", "n + {k}", (("n", "int"),)),
    Template("returns n times {k}", "n * {k}", (("n", "int"),)),
    Template("returns whether n is divisible by {k}", "n % {k} == 0", (("n", "int"),)),
    Template("returns the larger of a and b, plus {k}", "max(a, b) + {k}", (("a", "int"), ("b", "int"))),
    Template("returns the absolute difference of a and b times {k}", "abs(a - b) * {k}", (("a", "int"), ("b", "int"))),
    Template("returns the sum of the numbers, plus {k}", "sum(numbers) + {k}", NUMBERS),
    Template("returns how many of the numbers are larger than {k}", "sum(x > {k} for x in numbers)", NUMBERS),
    Template("returns the list of the numbers that are at least {k}", "[x for x in numbers if x >= {k}]", NUMBERS),
    Template("returns the list with every number multiplied by {k}", "[x * {k} for x in numbers]", NUMBERS),
    Template("returns the {k} smallest numbers in ascending order (all where there are fewer)",
             "sorted(numbers)[:{k}]", NUMBERS),
    Template("returns the sum of the squares of the numbers, minus {k}", "sum(x * x for x in numbers) - {k}", NUMBERS),
    Template("returns the numbers in reverse order, without the first {k} of the result", "numbers[::-1][{k}:]",
             NUMBERS),
    Template("returns text repeated {k} times", "text * {k}", WORD),
    Template("returns the first {k} characters of text in upper case", "text[:{k}].upper()", WORD),
    Template("returns text without its first {k} characters, reversed", "text[{k}:][::-1]", WORD),
    Template("returns how many different characters text has, plus {k}", "len(set(text)) + {k}", WORD),
)  # fmt: skip


def program_rows(seed: int) -> Iterator[dict[str, Any]]:
    """Different tasks without end, in blocks: rows with prompt, tests (JSON), reference_solution, task, difficulty."""
    rng = np.random.default_rng([seed, 1729])
    numbers = 2
    while True:
        # A new range of numbers once all tasks of the old one are given: the set is small, but not bounded.
        tasks = [(template, k) for template in TEMPLATES for k in range(numbers, numbers + 8)]
        for index in rng.permutation(len(tasks)):
            yield program_row(*tasks[int(index)], rng)
        numbers += 8


def program_row(template: Template, k: int, rng: np.random.Generator) -> dict[str, Any]:
    expression = template.expression.format(k=k)
    names = [name for name, _ in template.parameters]
    solve = eval(f"lambda {', '.join(names)}: {expression}", {"__builtins__": BUILTINS})
    cases = [[draw(kind, rng) for _, kind in template.parameters] for _ in range(EXAMPLES + HIDDEN_CASES)]
    shown = [f"solve({', '.join(map(repr, args))}) == {solve(*args)!r}" for args in cases[:EXAMPLES]]
    signature = f"solve({', '.join(names)})"
    hidden = [{"args": args, "expected": solve(*args)} for args in cases[EXAMPLES:]]
    return {
        "prompt": f"Write a Python function {signature} that {template.words.format(k=k)}.\n"
        f"For example {' and '.join(shown)}.\nAnswer with the function in a ```python block.",
        "tests": json.dumps({"kind": "calls", "entry": "solve", "cases": hidden}),
        "reference_solution": f"def {signature}:\n    return {expression}\n",
        "task": "programs",
        "difficulty": float(len(expression)),
    }


BUILTINS = {"max": max, "abs": abs, "sum": sum, "sorted": sorted, "len": len, "set": set}


def draw(kind: str, rng: np.random.Generator) -> Any:
    if kind == "int":
        return int(rng.integers(-9, 21))
    if kind == "ints":
        return [int(x) for x in rng.integers(-9, 21, rng.integers(0, 8))]
    return "".join(chr(ord("a") + int(x)) for x in rng.integers(0, 26, rng.integers(0, 9)))
