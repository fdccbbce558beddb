"""Answers that need no mathematics: exact text, a regular expression, one option of several, a rounded number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from assay.errors import InputError
from assay.records import Judgement
from assay.rewards.answers.extract import Found, NoAnswer, find_answer, visible_part
from assay.rewards.answers.normalise import MAX_ANSWER, normalise
from assay.rewards.answers.numbers import Number, read_number
from assay.rewards.answers.text import states_choice
from assay.rewards.answers.units import agree
from assay.rewards.verifier import Verifier, correct, failed, unparsable, wrong

MAX_SEARCHED = 20_000
STATED = re.compile(
    r"(?:final\s+answer|correct\s+answer|correct\s+option|answer|option|choice)\s*(?:is|:|=)\s*:?\s*[*_$({\[\\]*"
    r"(?:text(?:bf)?\{)?\(?([A-Za-z])(?=[)\]}.,:;*_$\s]|$)",
    re.IGNORECASE,
)
NEGATED = re.compile(r"\b(?:not|n't|never)\s*$", re.IGNORECASE)


def visible(text: str) -> tuple[str, int]:
    """The text after any reasoning, with its offset. Raises NoAnswer where the reasoning never closes."""
    start, end = visible_part(text, require_think=False)
    return text[start:end], start


class ExactMatch(Verifier):
    """1.0 where the whole completion (or, with `marked`, its boxed, tagged or #### answer) is gold to the letter.

    Surrounding white space is ignored; `ignore_case` and `ignore_punctuation` relax more.
    """

    def __init__(
        self,
        gold_column: str = "gold",
        marked: bool = False,
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
    ):
        self.gold_column, self.marked = gold_column, marked
        self.ignore_case, self.ignore_punctuation = ignore_case, ignore_punctuation

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        references = [self.plain(str(item)) for item in (gold if isinstance(gold, (list, tuple)) else [gold])]
        if gold is None or not any(references):
            return failed("gold unreadable: empty")
        try:
            found = find_answer(text) if self.marked else whole_text(text)
        except NoAnswer as error:
            return unparsable(str(error))
        told: dict[str, Any] = {"extracted": found.text[:MAX_ANSWER], "span": found.span}
        if found.alternatives and any(self.plain(other) != self.plain(found.text) for other in found.alternatives):
            return unparsable("several different answers", **told)
        return correct(**told) if self.plain(found.text) in references else wrong(**told)

    def plain(self, text: str) -> str:
        text = " ".join(text.split())
        text = re.sub(r"[^\w\s]", "", text).strip() if self.ignore_punctuation else text
        return text.casefold() if self.ignore_case else text

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        gold = gold[0] if isinstance(gold, (list, tuple)) and gold else gold
        return f"The answer is \\boxed{{{gold}}}." if self.marked else str(gold)


def whole_text(text: str) -> Found:
    shown, offset = visible(text)
    start = len(shown) - len(shown.lstrip())
    return Found(shown.strip(), (offset + start, offset + start + len(shown.strip())), "text")


class Regex(Verifier):
    """The last match of `pattern` after any reasoning; its group 1 (or the whole match) must equal gold.

    With `compare: false` a match alone is correct and gold is not needed. Only the last 20,000 characters are searched.
    """

    def __init__(self, pattern: str, gold_column: str = "gold", compare: bool = True, ignore_case: bool = False):
        try:
            self.pattern = re.compile(pattern, re.MULTILINE | (re.IGNORECASE if ignore_case else 0))
        except re.error as error:
            raise InputError(f"rewards: regex: pattern {pattern!r}: {error}") from error
        self.gold_column, self.compare, self.ignore_case = gold_column, compare, ignore_case
        self.needs_gold = self.checks_answer = compare

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        if self.compare and (gold is None or not str(gold).strip()):
            return failed("gold unreadable: empty")
        try:
            shown, offset = visible(text)
        except NoAnswer as error:
            return unparsable(str(error))
        skipped = max(0, len(shown) - MAX_SEARCHED)
        match = None
        for match in self.pattern.finditer(shown[skipped:]):  # noqa: B007 - the last one counts
            pass
        if match is None:
            return unparsable("the pattern does not match")
        group = 1 if self.pattern.groups and match.group(1) is not None else 0
        found = match.group(group)
        start, end = (position + offset + skipped for position in match.span(group))
        told: dict[str, Any] = {"extracted": found[:MAX_ANSWER], "span": (start, end)}
        one, other = found.strip(), str(gold).strip()
        same = one.casefold() == other.casefold() if self.ignore_case else one == other
        return correct(**told) if not self.compare or same else wrong(**told)


class MultipleChoice(Verifier):
    """The option letter in the box, the answer tag, or the last `answer is B`; or a completion that is only a letter.

    Gold is a letter, an index into the row's `choices` column, or the text of one choice.
    """

    def __init__(self, gold_column: str = "gold", choices_column: str = "choices", letters: str = "ABCDEFGHIJ"):
        self.gold_column, self.choices_column, self.letters = gold_column, choices_column, letters.upper()

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        reference = self.gold_letter(gold, row)
        if reference is None:
            return failed(f"gold unreadable: {str(gold)[:40]!r} is no option letter, index or text of a choice")
        try:
            letter, span = self.stated(text, row)
        except NoAnswer as error:
            return unparsable(str(error))
        told: dict[str, Any] = {"extracted": letter, "span": span}
        return correct(**told) if letter == reference else wrong(**told)

    def gold_letter(self, gold: Any, row: Mapping[str, Any]) -> str | None:
        choices = self.choices(row)
        if isinstance(gold, bool) or gold is None:
            return None
        if isinstance(gold, int) or (str(gold).strip().isdigit() and choices and str(gold).strip() not in choices):
            index = int(gold)
            return self.letters[index] if 0 <= index < (len(choices) or len(self.letters)) else None
        text = str(gold).strip()
        if (letter := states_choice(normalise(text))) and letter in self.letters:
            return letter
        return self.letters[choices.index(text)] if text in choices else None

    def choices(self, row: Mapping[str, Any]) -> list[str]:
        choices = row.get(self.choices_column) or []
        if isinstance(choices, Mapping):
            choices = choices.get("text") or list(choices.values())
        return [str(choice).strip() for choice in choices] if isinstance(choices, Sequence) else []

    def stated(self, text: str, row: Mapping[str, Any]) -> tuple[str, tuple[int, int]]:
        """The letter that the completion settles on. Raises NoAnswer."""
        try:
            found = find_answer(text)
        except NoAnswer as error:
            if "marked" not in str(error):
                raise
            return self.in_words(text)
        answers = {self.letter_of(part, row) for part in (found.text, *found.alternatives)}
        if len(answers) != 1 or None in answers:
            raise NoAnswer("several options" if len(answers) > 1 else f"no option letter in {found.text[:40]!r}")
        return str(answers.pop()), found.span

    def letter_of(self, answer: str, row: Mapping[str, Any]) -> str | None:
        letter = states_choice(normalise(answer[:MAX_ANSWER]))
        choices = self.choices(row)
        if letter is None and answer.strip() in choices:
            return self.letters[choices.index(answer.strip())]
        return letter if letter and letter in self.letters else None

    def in_words(self, text: str) -> tuple[str, tuple[int, int]]:
        shown, offset = visible(text)
        alone = shown.strip()
        if (letter := states_choice(normalise(alone[:200]))) and len(alone) <= 200 and letter in self.letters:
            start = shown.find(alone) + offset
            return letter, (start, start + len(alone))
        skipped = max(0, len(shown) - MAX_SEARCHED)
        stated = [
            match
            for match in STATED.finditer(shown, skipped)
            if match.group(1).upper() in self.letters and match.group(1) != "a"
        ]
        if not stated:
            raise NoAnswer("no option is stated")
        last = stated[-1]
        if NEGATED.search(shown[: last.start(1)][-12:]):
            raise NoAnswer("the option is denied")
        rest = shown[last.end(1) : last.end(1) + 40]
        if re.match(r"[)\]}.*_$]*\s*(?:,|or|and|/)\s*\(?[A-J]\b", rest):
            raise NoAnswer("several options")
        return last.group(1).upper(), (last.start(1) + offset, last.end(1) + offset)

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        return f"The answer is \\boxed{{{self.gold_letter(gold, row) or gold}}}."


class Numeric(Verifier):
    """The marked answer is a number within `absolute` or `relative` tolerance of gold, after converting its unit.

    An answer without a unit is taken to be in gold's; a different kind of unit is wrong.
    """

    def __init__(self, gold_column: str = "gold", absolute: float = 0.0, relative: float = 0.0):
        if absolute < 0 or relative < 0:
            raise InputError(
                f"rewards: numeric: tolerances must not be negative (absolute {absolute}, relative {relative})"
            )
        self.gold_column = gold_column
        self.absolute, self.relative = Fraction(str(absolute)), Fraction(str(relative))

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        reference = read_number(normalise(str(gold)[:MAX_ANSWER])) if gold is not None else None
        if reference is None:
            return failed(f"gold unreadable: {str(gold)[:40]!r} is no number")
        try:
            found = find_answer(text)
        except NoAnswer as error:
            return unparsable(str(error))
        told: dict[str, Any] = {"extracted": found.text[:MAX_ANSWER], "span": found.span}
        numbers = [self.number(part) for part in (found.text, *found.alternatives)]
        if any(number is None for number in numbers):
            return unparsable("not a number", **told)
        return correct(**told) if all(self.near(number, reference) for number in numbers if number) else wrong(**told)

    @staticmethod
    def number(text: str) -> Number | None:
        answer = normalise(text[:MAX_ANSWER])
        head, equals, tail = answer.rpartition("=")
        return read_number(
            tail.strip() if equals and re.fullmatch(r"\s*\\?[A-Za-z_{}0-9]+\s*", head) else answer, loose=True
        )

    def near(self, answer: Number, gold: Number) -> bool:
        factor = agree(answer.unit, gold.unit)
        if factor is None:
            return False
        slack = max(self.absolute, self.relative * abs(gold.value))
        return abs(answer.value * factor - gold.value) <= slack

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        return f"The answer is \\boxed{{{gold}}}."
