"""Sets of reals as unions of intervals, from interval notation, inequalities, set builders and set differences."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from assay.rewards.answers.numbers import read_number
from assay.rewards.answers.structure import NAME, Interval, enclosed, read_interval, relations, split_top, split_words

MINUS_INFINITY, INFINITY = "-\\infty", "\\infty"
REALS = Interval(MINUS_INFINITY, INFINITY, False, False)
BUILDER = re.compile(r"(?:\w+|\w+\s*\\in\s*\\mathbb\{R\})\s*(?:\\mid|\\vert|\||:)\s*(.+)")


def read_intervals(text: str) -> list[Interval] | None:
    """The intervals whose union `text` names, None where it names none.

    >>> [(i.low, i.high) for i in read_intervals("x<-1 or x>1")]
    [('-\\\\infty', '-1'), ('1', '\\\\infty')]
    """
    text = text.strip()
    parts = [part.strip() for part in re.split(r"\\cup(?![A-Za-z])", text)]
    if len(parts) > 1:
        found = [read_intervals(part) for part in parts]
        return None if None in found else [interval for part in found for interval in part or ()]
    if text in (r"\mathbb{R}", "all real numbers", "all reals"):
        return [REALS]
    if match := re.fullmatch(r"(.+?)\s*(?:\\setminus|\\backslash|-)\s*(\\\{.*\\\})", text):
        return without(match.group(1), match.group(2))
    if interval := read_interval(text):
        return [interval]
    found_set = enclosed(text)
    if found_set and found_set[0] == "set":
        if match := BUILDER.fullmatch(found_set[1]):
            return read_intervals(match.group(1))
        items = split_top(found_set[1], ",")
        return [Interval(item, item, True, True) for item in items] if all(items) else None
    return from_inequalities(text)


def without(whole: str, removed: str) -> list[Interval] | None:
    """The reals without finitely many numbers."""
    points = enclosed(removed)
    if read_intervals(whole) != [REALS] or points is None:
        return None
    return around(split_top(points[1], ","))


def around(points: list[str]) -> list[Interval] | None:
    numbers = [read_number(point) for point in points]
    if len(points) > 1:
        if not all(numbers):
            return None
        points = [point for _, point in sorted(zip([n.value for n in numbers if n], points))]
    ends = [MINUS_INFINITY, *points, INFINITY]
    return [Interval(low, high, False, False) for low, high in itertools.pairwise(ends)]


def from_inequalities(text: str) -> list[Interval] | None:
    parts = split_words(text) or split_top(text, ",")
    if len(parts) > 1:
        found = [from_inequalities(part) for part in parts]
        if None in found:
            return None
        whole = [interval for part in found for interval in part or ()]
        return meet(whole) if len(whole) == 2 and not re.search(r"\bor\b|\\lor|\\vee", text) else whole
    operands, operators = relations(text)
    if len(operators) == 1 and operators[0] == r"\in" and NAME.fullmatch(operands[0]):
        return read_intervals(operands[1])
    if not operators or not all(operators_ in ("<", ">", r"\le", r"\ge", r"\neq") for operators_ in operators):
        return None
    if len(operators) == 2:
        return double(operands, operators)
    return single(operands, operators[0]) if len(operators) == 1 else None


def meet(two: list[Interval]) -> list[Interval]:
    """`x > 1 and x < 3`: one bounded below, the other above, become one interval; otherwise a union."""
    lower = [interval for interval in two if interval.high == INFINITY]
    upper = [interval for interval in two if interval.low == MINUS_INFINITY]
    if len(lower) == 1 and len(upper) == 1 and lower[0] is not upper[0]:
        low, high = read_number(lower[0].low), read_number(upper[0].high)
        if low and high and low.value < high.value:
            return [Interval(lower[0].low, upper[0].high, lower[0].low_closed, upper[0].high_closed)]
    return two


def double(operands: list[str], operators: list[str]) -> list[Interval] | None:
    """`a < x \\le b` and `b > x > a`."""
    if not NAME.fullmatch(operands[1]):
        return None
    if all(operator in ("<", r"\le") for operator in operators):
        return [Interval(operands[0], operands[2], operators[0] == r"\le", operators[1] == r"\le")]
    if all(operator in (">", r"\ge") for operator in operators):
        return [Interval(operands[2], operands[0], operators[1] == r"\ge", operators[0] == r"\ge")]
    return None


def single(operands: list[str], operator: str) -> list[Interval] | None:
    left, right = operands
    if NAME.fullmatch(right) and not NAME.fullmatch(left):
        left, right = right, left
        operator = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}.get(operator, operator)
    absolute = re.fullmatch(r"\|\s*([A-Za-z])\s*\|", left)
    closed = operator in (r"\le", r"\ge")
    if absolute and operator in ("<", r"\le"):
        return [Interval(f"-{right}", right, closed, closed)]
    if absolute and operator in (">", r"\ge"):
        return [Interval(MINUS_INFINITY, f"-{right}", False, closed), Interval(right, INFINITY, closed, False)]
    if not NAME.fullmatch(left):
        return None
    if operator in ("<", r"\le"):
        return [Interval(MINUS_INFINITY, right, False, closed)]
    if operator in (">", r"\ge"):
        return [Interval(right, INFINITY, closed, False)]
    return around([right])


def same_intervals(one: list[Interval], other: list[Interval], same: Callable[[str, str], bool]) -> bool:
    """Equal as unordered unions, ends compared by `same`."""
    left = list(other)
    for interval in one:
        for candidate in left:
            if (
                interval.low_closed == candidate.low_closed
                and interval.high_closed == candidate.high_closed
                and same_end(interval.low, candidate.low, same)
                and same_end(interval.high, candidate.high, same)
            ):
                left.remove(candidate)
                break
        else:
            return False
    return not left


def same_end(one: str, other: str, same: Callable[[str, str], bool]) -> bool:
    one, other = (
        re.sub(r"^\+\s*", "", end.strip()).replace("inf", "\\infty")
        if "\\" not in end
        else re.sub(r"^\+\s*", "", end.strip())
        for end in (one, other)
    )
    if "\\infty" in one or "\\infty" in other:
        return one.replace(" ", "") == other.replace(" ", "")
    return same(one, other)
