"""Small procedural tasks with one short right answer: arithmetic, comparison, sorting, counting, multiple choice.

Each generator yields the question, the gold answer as text, and a difficulty number (larger is harder).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.errors import InputError

Item = tuple[str, str, float]


def addition(rng: np.random.Generator, digits: int = 1, terms: int = 2) -> Item:
    """`terms` numbers of at most `digits` digits.

    >>> addition(np.random.default_rng(0))
    ('What is 8 + 6?', '14', 2.0)
    """
    numbers = operands(rng, digits, terms)
    return f"What is {' + '.join(map(str, numbers))}?", str(sum(numbers)), float(digits * terms)


def subtraction(rng: np.random.Generator, digits: int = 1) -> Item:
    """The larger of two numbers minus the smaller."""
    small, large = sorted(operands(rng, digits, 2))
    return f"What is {large} - {small}?", str(large - small), 2.0 * digits


def multiplication(rng: np.random.Generator, digits: int = 1) -> Item:
    left, right = operands(rng, digits, 2)
    return f"What is {left} * {right}?", str(left * right), 3.0 * digits


def larger(rng: np.random.Generator, digits: int = 2, count: int = 2) -> Item:
    """The largest of `count` different numbers."""
    if count < 2 or count > 10**digits:
        raise InputError(
            f"data.options.count is {count}; {digits}-digit numbers allow 2 to {10**digits} different ones"
        )
    numbers = [int(number) for number in rng.choice(10**digits, size=count, replace=False)]
    listed = f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
    return f"Which is larger: {listed}?", str(max(numbers)), float(digits * count)


def sort_letters(rng: np.random.Generator, length: int = 4) -> Item:
    """Different letters in alphabetical order, separated by spaces."""
    if not 2 <= length <= 26:
        raise InputError(f"data.options.length is {length}; the alphabet allows 2 to 26 different letters")
    letters = [chr(ord("a") + int(index)) for index in rng.choice(26, size=length, replace=False)]
    return f"Sort these letters alphabetically: {' '.join(letters)}", " ".join(sorted(letters)), float(length)


def count_letter(rng: np.random.Generator, length: int = 6) -> Item:
    """How often one letter stands in a random string of three different ones."""
    letters = [chr(ord("a") + int(index)) for index in rng.choice(26, size=3, replace=False)]
    text = "".join(letters[int(index)] for index in rng.integers(3, size=length))
    return f"How many times does {letters[0]} appear in {text}?", str(text.count(letters[0])), float(length)


def multiple_choice(rng: np.random.Generator, digits: int = 1, choices: int = 4) -> Item:
    """A sum with lettered answers of which one is right; the gold is its letter."""
    if not 2 <= choices <= 8:
        raise InputError(f"data.options.choices is {choices}; it must lie between 2 and 8")
    left, right = operands(rng, digits, 2)
    offsets = rng.choice([-4, -3, -2, -1, 1, 2, 3, 4], size=choices - 1, replace=False)
    answers = [left + right, *(left + right + int(offset) for offset in offsets)]
    order = rng.permutation(choices)
    lines = [f"{chr(ord('A') + place)}) {answers[int(index)]}" for place, index in enumerate(order)]
    gold = chr(ord("A") + int(np.flatnonzero(order == 0)[0]))
    question = f"What is {left} + {right}?\n" + "\n".join(lines) + "\nAnswer with one letter."
    return question, gold, 2.0 * digits


def operands(rng: np.random.Generator, digits: int, count: int) -> list[int]:
    if not 1 <= digits <= 18:
        raise InputError(f"data.options.digits is {digits}; it must lie between 1 and 18")
    return [int(number) for number in rng.integers(10**digits, size=count)]


SMALL_TASKS: dict[str, Any] = {
    "addition": addition,
    "subtraction": subtraction,
    "multiplication": multiplication,
    "larger": larger,
    "sort_letters": sort_letters,
    "count_letter": count_letter,
    "multiple_choice": multiple_choice,
}
