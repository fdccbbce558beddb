"""Exact match, regular expressions, multiple choice, numbers with tolerance."""

import pytest

from assay.errors import InputError
from assay.records import Outcome
from assay.rewards.exact import ExactMatch, MultipleChoice, Numeric, Regex


def outcome(verifier, text, gold, **row):
    return verifier.judge(text, gold, row).outcome


RIGHT, WRONG, NONE, ERROR = Outcome.CORRECT, Outcome.WRONG, Outcome.UNPARSABLE, Outcome.ERROR


def test_exact_match():
    assert outcome(ExactMatch(), " Paris\n", "Paris") is RIGHT
    assert outcome(ExactMatch(), "paris", "Paris") is WRONG
    assert outcome(ExactMatch(ignore_case=True), "paris", "Paris") is RIGHT
    assert outcome(ExactMatch(ignore_punctuation=True), "Paris!", "Paris") is RIGHT
    assert outcome(ExactMatch(), "It is Paris", "Paris") is WRONG
    assert outcome(ExactMatch(marked=True), "It is \\boxed{Paris}", "Paris") is RIGHT
    assert outcome(ExactMatch(marked=True), "It is Paris", "Paris") is NONE
    assert outcome(ExactMatch(marked=True), "\\boxed{Rome} or \\boxed{Paris}", "Paris") is NONE
    assert outcome(ExactMatch(), "<think>Rome?</think>Paris", "Paris") is RIGHT
    assert outcome(ExactMatch(), "<think>Paris", "Paris") is NONE
    assert outcome(ExactMatch(), "b", ["a", "b"]) is RIGHT
    assert outcome(ExactMatch(), "", "") is ERROR
    judged = ExactMatch().judge("<think>x</think>  Paris ", "Paris", {})
    assert judged.span == (18, 23)


def test_regex():
    verifier = Regex(r"^Total: (\d+)$")
    assert outcome(verifier, "Total: 3\nTotal: 5", "5") is RIGHT
    assert outcome(verifier, "Total: 5\nTotal: 3", "5") is WRONG
    assert outcome(verifier, "5", "5") is NONE
    assert outcome(verifier, "<think>\nTotal: 5\n</think>\nnothing", "5") is NONE
    assert outcome(Regex(r"please", compare=False), "yes please", None) is RIGHT
    text = "x" * 30_000 + "\nTotal: 5"
    start, end = verifier.judge(text, "5", {}).span
    assert text[start:end] == "5"
    with pytest.raises(InputError, match="pattern"):
        Regex("(")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B", RIGHT), ("(B)", RIGHT), ("b.", RIGHT), ("The answer is B.", RIGHT), ("Answer: **B**", RIGHT),
        ("The correct option is (B)", RIGHT), ("\\boxed{B}", RIGHT), ("\\boxed{\\text{B) 14}}", RIGHT),
        ("B) 14", RIGHT),
        ("<answer>B</answer>", RIGHT), ("Answer: A. No wait.\nAnswer: B", RIGHT), ("<think>A?</think>\nB", RIGHT),
        ("A", WRONG), ("The answer is C", WRONG), ("Answer: B\nAnswer: A", WRONG), ("\\boxed{A}", WRONG),
        ("A or B", NONE), ("\\boxed{A} or \\boxed{B}", NONE), ("The answer is B or C.", NONE),
        ("The answer is not B.", NONE),
        ("", NONE), ("I like option pricing. Because.", NONE), ("<think>The answer is B</think>", NONE),
        ("The answer is a mystery", NONE), ("\\boxed{AB}", NONE), ("A B C D", NONE), ("\\boxed{}", NONE),
    ],
)  # fmt: skip
def test_multiple_choice(text, expected):
    verifier = MultipleChoice()
    assert outcome(verifier, text, "B") is expected
    assert outcome(verifier, text, 1, choices=["13", "14", "15", "16"]) is expected
    assert outcome(verifier, text, "14", choices=["13", "14", "15", "16"]) is expected
    assert outcome(verifier, text, "(B)") is expected


def test_multiple_choice_gold():
    verifier = MultipleChoice()
    for gold in (None, "", "maybe", 7, True):
        judged = verifier.judge("A", gold, {"choices": ["x", "y"]})
        assert judged.outcome is ERROR
        assert judged.detail.startswith("gold unreadable")
    assert outcome(verifier, "\\boxed{y}", 1, choices=["x", "y"]) is RIGHT


def test_numbers_with_tolerance_and_units():
    assert outcome(Numeric(), "\\boxed{9.81}", "9.81") is RIGHT
    assert outcome(Numeric(), "\\boxed{9.8}", "9.81") is WRONG
    assert outcome(Numeric(absolute=0.01), "\\boxed{9.8}", "9.81") is RIGHT
    assert outcome(Numeric(absolute=0.01), "\\boxed{9.79}", "9.81") is WRONG
    assert outcome(Numeric(relative=0.01), "\\boxed{101}", 100) is RIGHT
    assert outcome(Numeric(relative=0.01), "\\boxed{101.001}", 100) is WRONG
    assert outcome(Numeric(), "\\boxed{150 cm}", "1.5 m") is RIGHT
    assert outcome(Numeric(), "\\boxed{150 kg}", "1.5 m") is WRONG
    assert outcome(Numeric(), "\\boxed{36\\text{ km/h}}", "10 m/s") is RIGHT
    assert outcome(Numeric(), "\\boxed{1.5}", "1.5 m") is RIGHT
    assert outcome(Numeric(), "\\boxed{v = 1.5}", "1.5 m") is RIGHT
    assert outcome(Numeric(), "\\boxed{many}", "1.5 m") is NONE
    assert outcome(Numeric(absolute=1e9), "1.5", "1.5") is NONE
    assert outcome(Numeric(), "\\boxed{1}", "many") is ERROR
    with pytest.raises(InputError, match="negative"):
        Numeric(absolute=-1)
