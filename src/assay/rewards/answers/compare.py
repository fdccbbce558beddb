"""Whether an answer says what gold says: decided by gold's kind, exactly, and only last by computer algebra."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from assay.rewards.answers.expression import is_expression, prepare
from assay.rewards.answers.gate import too_costly
from assay.rewards.answers.intervals import read_intervals, same_intervals
from assay.rewards.answers.items import assignments, expand, items_of, plus_minus, squeeze
from assay.rewards.answers.matrices import determinant, grid
from assay.rewards.answers.normalise import normalise
from assay.rewards.answers.numbers import Number, read_number, read_words, same_number
from assay.rewards.answers.structure import (
    Sequence_,
    assignment,
    enclosed,
    read_base,
    read_list,
    read_sequence,
    relations,
)
from assay.rewards.answers.text import (
    drop_remark,
    number_in_prose,
    same_choice,
    same_ratio,
    same_text,
    same_time,
    synonyms,
)

Algebra = Callable[[dict[str, Any]], dict[str, Any]]
MAX_ITEMS = 64
IN = re.compile(r"(\d{1,9}) (?:in|out of) (\d{1,9})")
LEAD = re.compile(
    r"(?:the\s+)?(?:(?:final|correct|right)\s+)?(?:answer|result|value|option|choice)\s*(?:is|=|:)\s*:?\s*|\\approx\s*|(?:approximately|about|exactly|ans(?:wer)?\s*:)\s+",
    re.IGNORECASE,
)


class GoldUnreadable(ValueError):
    """The reference answer cannot be read; says why."""


class Comparison:
    """One comparison of a normalised answer with a normalised gold; `notes` collects why it could not be made."""

    def __init__(self, algebra: Algebra):
        self.algebra = algebra
        self.notes: list[str] = []
        self.unreadable = False

    def equal(self, answer: str, gold: str, nested: bool = False) -> bool:
        """Whether both say the same. Raises GoldUnreadable."""
        if squeeze(answer) == squeeze(gold):
            return True
        if not answer or not gold:
            return False
        if not nested:
            answer = LEAD.sub("", answer, count=1) if LEAD.match(answer) else answer
            choice = same_choice(answer, gold)
            if choice is not None:
                return choice
        if synonyms(answer, gold):
            return True
        number = read_number(gold)
        if number is not None:
            return self.equals_number(answer, gold, number, nested)
        for compare in (
            self.by_time, self.by_base, self.by_matrix, self.by_assignment, self.by_what_follows, self.by_structure,
            self.by_words,
        ):  # fmt: skip
            decided = compare(answer, gold, nested)
            if decided is not None:
                return decided
        return self.by_algebra(answer, gold, nested)

    # Gold is one number

    def equals_number(self, answer: str, gold: str, number: Number, nested: bool) -> bool:
        read = read_number(answer, loose=not nested)
        if read is not None:
            return same_number(read, number) or (not nested and rounds_to(read, number))
        if (counted := IN.fullmatch(answer)) and int(counted.group(2)):
            return Fraction(int(counted.group(1)), int(counted.group(2))) == number.value
        if (determined := determinant(answer)) is not None:
            return determined == number.value
        if base := read_base(answer):
            return number.unit is None and (base[0] == gold or base_value(*base) == number.value)
        if set(relations(answer)[1]) & {"=", r"\approx"}:
            return self.links_equal(answer, gold, nested)
        if enclosed_once := enclosed(answer):
            kind, inner = enclosed_once
            if kind in ("set", "tuple") and not read_list(inner) and inner:
                return self.equals_number(inner, gold, number, nested)
            return False
        if has_structure(answer):
            return False
        if (clock := same_time(answer, gold)) is not None:
            return clock
        if number.unit is not None and number.unit.name == "degree" and "\\pi" in answer:
            return self.by_algebra(answer, radians(number.value), nested)
        shorter = drop_remark(answer)
        if shorter is None:
            return False
        if shorter != answer:
            return self.equals_number(shorter, gold, number, nested)
        if (words := read_words(answer)) is not None:
            return words == number.value
        if (prose := number_in_prose(answer)) is not None:
            return self.equals_number(prose, gold, number, True)
        if not is_expression(answer):
            self.notes.append("words where gold is a number")
            return False
        return self.by_algebra(answer, gold, nested)

    def links_equal(self, answer: str, gold: str, nested: bool) -> bool:
        """`x = 2 + 3 = 5`, `7/3 \\approx 2.33`: after a name, every exact link must equal gold."""
        operands, operators = relations(answer)
        if not set(operators) <= {"=", r"\approx"} or not all(operands):
            return False
        named = assignment(answer.split("\\approx")[0].strip()) if "=" in operators else None
        links = [operands[0]]
        for operator, operand in zip(operators, operands[1:]):
            if operator != "=":
                break  # what follows is an approximation of what was said
            links.append(operand)
        if named is not None and not read_number(links[0]):
            links = links[1:]
        return bool(links) and all(self.equal(normalise(link), gold, nested) for link in links)

    # Gold is something else

    def by_time(self, answer: str, gold: str, nested: bool) -> bool | None:
        decided = same_time(answer, gold)
        return same_ratio(answer, gold) if decided is None else decided

    def by_base(self, answer: str, gold: str, nested: bool) -> bool | None:
        reference = read_base(gold)
        if reference is None:
            return None
        stated = read_base(answer)
        if stated is not None:
            return stated == reference
        number = read_number(answer)
        digits = re.fullmatch(r"[0-9A-Za-z]+", answer)
        return bool(digits and answer.upper() == reference[0]) or (
            number is not None and number.unit is None and number.value == base_value(*reference)
        )

    def by_matrix(self, answer: str, gold: str, nested: bool) -> bool | None:
        sides = [grid(text) for text in (answer, gold)]
        if sides[1] is None and sides[0] is None:
            return None
        if sides[0] is None or sides[1] is None:
            other, rows = (answer, sides[1]) if sides[0] is None else (gold, sides[0])
            sequence = read_sequence(other)
            flat = (
                [row[0] for row in rows or []]
                if all(len(row) == 1 for row in rows or [])
                else (rows or [[]])[0]
                if len(rows or []) == 1
                else None
            )
            if sequence is None or flat is None or sequence.kind == "set":
                return False
            return len(flat) == len(sequence.items) and all(map(self.inner, sequence.items, flat))
        if [len(row) for row in sides[0]] != [len(row) for row in sides[1]]:
            return False
        return all(self.inner(a, g) for rows in zip(*sides) for a, g in zip(*rows))

    def by_assignment(self, answer: str, gold: str, nested: bool) -> bool | None:
        """Gold is `x = 5`, `a = 3, b = 5`, or an equation."""
        if several := assignments(gold):
            return self.equals_assignments(answer, several)
        named = assignment(gold)
        if named is not None:
            return self.equals_named(answer, gold, *named, nested=nested)
        operands, operators = relations(gold)
        if operators == ["="]:
            return self.equation(answer, gold)
        if operators and set(operators) & {
            r"\in",
            r"\notin",
            r"\subset",
            r"\subseteq",
            r"\equiv",
            r"\sim",
            r"\ll",
            r"\gg",
        }:
            return self.same_relation(answer, operands, operators) if read_intervals(gold) is None else None
        if r"\approx" in operators:
            return self.equal(answer, operands[0], nested)
        return None

    def equals_named(self, answer: str, gold: str, name: str, links: list[str], nested: bool) -> bool:
        stated = assignment(answer)
        value = links[-1]
        if stated is None and "=" not in answer:
            return not has_inequality(answer) and self.equal(answer, value, nested)
        variables = re.search(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", value) is not None
        if stated is not None and squeeze(stated[0]) == squeeze(name):
            return bool(all(self.equal(normalise(link), value, nested) for link in stated[1]))
        if stated is not None and "(" in name and "(" in stated[0]:
            return False
        return variables and self.equation(answer, gold)

    def equation(self, answer: str, gold: str) -> bool:
        """Two equations with the same solutions, up to a constant factor."""
        if relations(answer)[1] != ["="]:
            return False
        sides = [relations(text)[0] for text in (answer, gold)]
        if any(re.search(r"[A-Za-z]\s*\(\s*[A-Za-z]", operands[0]) for operands in sides):
            return squeeze(sides[0][0]) == squeeze(sides[1][0]) and self.equal(sides[0][1], sides[1][1], nested=True)
        return self.ask(answer, gold, "equation", {})

    def same_relation(self, answer: str, operands: list[str], operators: list[str]) -> bool:
        stated = relations(answer)
        return stated[1] == operators and len(stated[0]) == len(operands) and all(map(self.inner, stated[0], operands))

    def equals_assignments(self, answer: str, gold: list[tuple[str, str]]) -> bool:
        stated = assignments(answer)
        names = [name for name, _ in gold]
        if len(set(names)) == 1 or stated is None:
            kind = "list" if len(set(names)) == 1 else "tuple"
            values = Sequence_(kind, tuple(value for _, value in gold))
            if stated is not None and {name for name, _ in stated} != set(names):
                return False
            return self.same_sequence(expand(items_of(answer)), expand(values))
        if sorted(name for name, _ in stated) != sorted(names) or len(set(names)) < len(names):
            return False
        reference = dict(gold)
        return all(self.inner(value, reference[name]) for name, value in stated)

    def by_what_follows(self, answer: str, gold: str, nested: bool) -> bool | None:
        """Gold has no name in front: the answer's name, or its closing approximation, is taken away."""
        _operands, operators = relations(answer)
        if r"\approx" in operators and not relations(gold)[1]:
            return self.links_equal(answer, gold, nested)
        stated = assignment(answer)
        if stated is None or assignment(gold) is not None or relations(gold)[1] or read_list(answer):
            return None
        return all(self.equal(normalise(link), gold, nested) for link in stated[1])

    def by_structure(self, answer: str, gold: str, nested: bool) -> bool | None:
        """Gold is a set, tuple, list or interval, or answers with one where gold has none."""
        reference = expand(items_of(gold))
        intervals = read_intervals(gold)
        if reference is None and intervals is None:
            return False if has_structure(answer) and not plus_minus(gold) else None
        stated = expand(items_of(answer))
        if reference is not None and (stated is not None or len(reference.items) == 1):
            if stated is None and reference.kind == "set" and not has_structure(answer):
                return self.inner(answer, reference.items[0])
            if self.same_sequence(stated, reference):
                return True
        if intervals is None:
            return False
        found = read_intervals(answer)
        return found is not None and same_intervals(found, intervals, self.inner)

    def same_sequence(self, stated: Sequence_ | None, gold: Sequence_ | None) -> bool:
        if stated is None or gold is None or len(stated.items) != len(gold.items) or len(gold.items) > MAX_ITEMS:
            return False
        if "tuple" in (stated.kind, gold.kind):
            if {"set", "bracket"} & {stated.kind, gold.kind}:
                return False  # an unordered set, or the closed interval
            return all(map(self.inner, stated.items, gold.items))
        left = list(gold.items)
        for item in stated.items:
            found = next((candidate for candidate in left if self.inner(item, candidate)), None)
            if found is None:
                return False
            left.remove(found)
        return True

    def by_words(self, answer: str, gold: str, nested: bool) -> bool | None:
        return same_text(answer, gold)

    # Computer algebra

    def inner(self, answer: str, gold: str) -> bool:
        return self.equal(normalise(answer), normalise(gold), nested=True)

    def by_algebra(self, answer: str, gold: str, nested: bool) -> bool:
        if has_structure(answer):
            return False
        shorter = drop_remark(answer)
        if shorter is None:
            return False
        if shorter != answer:
            return self.equal(shorter, gold, nested)
        stated = read_number(answer)
        if stated is not None and stated.unit is not None and stated.unit.name == "degree" and "\\pi" in gold:
            answer = radians(stated.value)
        if not is_expression(answer):
            self.notes.append("words where gold is an expression")
            return False
        places = {} if nested else {"answer_places": places_of(answer), "gold_places": places_of(gold)}
        return self.ask(answer, gold, "value", places)

    def ask(self, answer: str, gold: str, mode: str, places: dict[str, int | None]) -> bool:
        if reason := too_costly(answer) or too_costly(gold):
            self.notes.append(f"not evaluated: {reason}")
            return False
        reply = self.algebra({"answer": spelled(answer), "gold": spelled(gold), "mode": mode, **places})
        if reply.get("unparsed") == "gold":
            raise GoldUnreadable(f"no expression that can be compared: {gold[:80]!r}")
        if reply.get("unparsed"):
            self.unreadable = True
            self.notes.append("not an expression")
        return bool(reply.get("same"))


def base_value(digits: str, base: int) -> int | None:
    try:
        return int(digits, base) if 2 <= base <= 36 else None
    except ValueError:
        return None


def spelled(text: str) -> str:
    """What the parser reads: an exact fraction where the text is a number, however it is written."""
    number = read_number(text)
    if number is None or number.unit is not None:
        return prepare(text)
    value = number.value
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def radians(degrees: Fraction) -> str:
    return rf"\frac{{{degrees.numerator} \cdot \pi}}{{{180 * degrees.denominator}}}"


def places_of(text: str) -> int | None:
    number = read_number(text)
    return number.places if number else None


def rounds_to(answer: Number, gold: Number) -> bool:
    """One side is a decimal with enough digits, the other the exact fraction that no decimal can write."""
    for decimal, exact, needed, slack in ((answer, gold, 6, Fraction(1)), (gold, answer, 3, Fraction(1, 2))):
        if decimal.places is None or exact.places is not None or terminates(exact.value):
            continue
        unit = Fraction(1, 10**decimal.places)
        if len(str(abs(decimal.value // unit))) >= needed and abs(decimal.value - exact.value) <= unit * slack:
            return True
    return False


def terminates(value: Fraction) -> bool:
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def has_inequality(text: str) -> bool:
    return any(operator != "=" for operator in relations(text)[1])


def has_structure(text: str) -> bool:
    """A list, interval, relation, alternative or plus-minus: never one value."""
    if re.search(r"\\pm|\\mp|\\ldots|\\cup|\\setminus|\\mathbb|\\emptyset|\bor\b|\\lor|\\vee", text):
        return True
    if relations(text)[1]:
        return True
    sequence = read_sequence(text)
    return sequence is not None
