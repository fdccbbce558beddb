"""Small tasks against a reader that solves them from the question alone."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.prompts.tasks import TASKS, task_rows
from assay.prompts.tasks.small import SMALL_TASKS


def solve(name, question):
    numbers = [int(number) for number in re.findall(r"-?\d+", question.replace(" - ", " minus "))]
    if name == "addition":
        return str(sum(numbers))
    if name == "subtraction":
        return str(numbers[0] - numbers[1])
    if name == "multiplication":
        return str(numbers[0] * numbers[1])
    if name == "larger":
        return str(max(numbers))
    if name == "sort_letters":
        return " ".join(sorted(question.split(": ")[1].split()))
    if name == "count_letter":
        letter, text = re.fullmatch(r"How many times does (.) appear in (\w+)\?", question).groups()
        return str(sum(character == letter for character in text))
    left, right = re.match(r"What is (\d+) \+ (\d+)", question).groups()
    answers = dict(re.findall(r"([A-H])\) (-?\d+)", question))
    (letter,) = [key for key, value in answers.items() if int(value) == int(left) + int(right)]
    assert len(set(answers.values())) == len(answers)
    return letter


@pytest.mark.parametrize("name", SMALL_TASKS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_gold_is_right(name, seed):
    question, gold, difficulty = SMALL_TASKS[name](np.random.default_rng(seed))
    assert gold == solve(name, question)
    assert difficulty > 0


@pytest.mark.parametrize("name", TASKS[1:])
def test_no_question_twice_and_none_in_both_parts(name):
    train, held = task_rows(name, {}, 40, 10, seed=0)
    questions = [row["prompt"] for row in train + held]
    assert len(set(questions)) == len(questions) == 50
    assert task_rows(name, {}, 40, 10, seed=0) == (train, held)
    assert task_rows(name, {}, 40, 10, seed=1) != (train, held)


def test_a_small_world_ends_instead_of_hanging():
    """One-digit addition has 100 questions: a fifth is held out, the rest trains."""
    train, held = task_rows("addition", {"digits": 1}, 512, 128, seed=0)
    assert (len(train), len(held)) == (80, 20)


def test_right_choice_is_spread_over_the_letters():
    train, _ = task_rows("multiple_choice", {}, 400, 0, seed=0)
    counts = [sum(row["gold"] == letter for row in train) for letter in "ABCD"]
    assert min(counts) > 70  # each expected 100, sd 8.7


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("additon", {}, "did you mean addition"),
        ("addition", {"digit": 2}, "do not fit the task addition"),
        ("addition", {"digits": 0}, "digits"),
        ("larger", {"count": 101}, "count"),
        ("sort_letters", {"length": 27}, "length"),
        ("multiple_choice", {"choices": 9}, "choices"),
        ("email_json", {"shots": 3}, "shots"),
        ("email_json", {"shot": 1}, "do not fit"),
    ],
)
def test_bad_options_are_named(name, options, says):
    with pytest.raises(InputError, match=says):
        task_rows(name, options, 5, 1, seed=0)
