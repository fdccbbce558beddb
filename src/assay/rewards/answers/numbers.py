"""Exact numbers as people write them: no floats, no rounding, no evaluation.

Reads integers, grouped digits, decimals, repeating decimals, fractions, mixed numbers, scientific notation, percent,
currency, scale words, ordinals, number words and units into a `Number` over `fractions.Fraction`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from assay.rewards.answers.units import Unit, agree, read_unit

MAX_DIGITS = 1000
MAX_EXPONENT = 400

PLAIN = re.compile(r"([+-]?)(\d+|\d{1,3}(?:,\d{3})+)(?:\.(\d*))?")
SPACED = re.compile(r"[+-]?\d{1,3}(?:[ ']\d{3})+(?:\.\d+)?")
LOOSE_GROUPS = re.compile(r"[+-]?\d{1,3}(?:,\s?\d{3})+(?:\.\d+)?|[+-]?\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?")
DECIMAL_COMMA = re.compile(r"([+-]?\d+),(\d{1,2}|\d{4,})")
DOT_FIRST = re.compile(r"([+-]?)\.(\d+)")
DIGITS = r"[+-]?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
FRACTION = re.compile(
    rf"([+-]?)\s*\\frac\s*\{{\s*({DIGITS})\s*\}}\s*\{{\s*({DIGITS})\s*\}}|({DIGITS})\s*/\s*({DIGITS})"
)
MIXED = re.compile(r"([+-]?)\s*(\d+)(?:\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|\s+(?:and\s+)?(\d+)\s*/\s*(\d+))")
SCIENTIFIC = re.compile(
    rf"(?:({DIGITS})\s*(?:\\times|\\cdot|\*|x)\s*)?([+-]?)10\s*\^\s*(?:\{{\s*([+-]?\s*\d+)\s*\}}|([+-]?\d+)|\(\s*([+-]?\d+)\s*\))"
    rf"|({DIGITS})\s*[eE]\s*([+-]?\d+)"
)
REPEATING = re.compile(
    r"([+-]?)(\d*)\.(\d*)(?:\\overline\s*\{\s*(\d+)\s*\}|\\bar\s*\{\s*(\d+)\s*\}|\((\d+)\)|((?:\\dot\s*\{?\s*\d\s*\}?\s*\d*?)+))(?:\\ldots)?"
)
ORDINAL = re.compile(r"(\d+)\s*(?:st|nd|rd|th|\^\s*\{?\s*(?:st|nd|rd|th)\s*\}?)")
SCALE = {
    "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "k": 10**3, "万": 10**4, "亿": 10**8,
}  # fmt: skip
CURRENCY = re.compile(r"([+-]?)\s*(?:US|A|C)?([$€£¥₹])\s*([+-]?)\s*(.+)")
WITH_SUFFIX = re.compile(
    rf"([+-]?\s*\d+\s*\\frac\s*\{{\s*\d+\s*\}}\s*\{{\s*\d+\s*\}}|[+-]?\s*\\frac\s*\{{[\d.,]*\}}\s*\{{[\d.,]*\}}"
    rf"|{DIGITS}\s*\\(?:times|cdot)\s*10\s*\^\s*(?:\{{\s*[+-]?\d+\s*\}}|[+-]?\d+)|{DIGITS}[eE][+-]?\d+"
    rf"|[+-]?\d{{1,3}}(?: \d{{3}})+|[+-]?\d+\s+\d+/\d+|{DIGITS}\s*/\s*\d+|{DIGITS})"
    r"(\s*)([^\d\s.].*)"
)
PERCENT = re.compile(r"(.+?)\s*(?:%|\bpercent\b|\bper cent\b|\bpct\b)")


@dataclass(frozen=True)
class Number:
    """An exact value with how it was written: unit, percent sign, and decimal places (None where it is no decimal)."""

    value: Fraction
    unit: Unit | None = None
    percent: bool = False
    places: int | None = None


def read_number(text: str, loose: bool = False) -> Number | None:
    """The number that is the whole of a normalised `text`, None where it is anything else.

    `loose` also reads grouping that could be a list (`32, 349`, `12,34,567`) and a decimal comma (`3,14`); callers use
    it only where gold is one number.

    >>> read_number("1,234.50").value, read_number("4,2"), read_number("2 1/3").value
    (Fraction(2469, 2), None, Fraction(7, 3))
    >>> read_number("5 million").value, read_number("50%").value
    (Fraction(5000000, 1), Fraction(1, 2))
    """
    if not text or len(text) > MAX_DIGITS or not any(c.isdigit() for c in text):
        return None
    text = unparenthesise(text)
    bare = read_bare(text, loose)
    if bare is not None:
        return bare
    if (match := CURRENCY.fullmatch(text)) and (inner := read_number(match.group(4), loose)):
        sign = -1 if "-" in (match.group(1), match.group(3)) else 1
        return replace(
            inner,
            value=sign * inner.value,
            unit=inner.unit if inner.unit and inner.unit.dimension else read_unit(match.group(2)),
        )
    if (match := PERCENT.fullmatch(text)) and (inner := read_bare(match.group(1), loose)):
        return Number(inner.value / 100, percent=True, places=None if inner.places is None else inner.places + 2)
    return read_suffixed(text)


def unparenthesise(text: str) -> str:
    """Without parentheses around a single number: `(5)` is 5, `-(5)` is -5."""
    match = re.fullmatch(r"([+-]?)\(+\s*([^()]*?)\s*\)+", text)
    if match and text.count("(") == text.count(")") and "," not in match.group(2):
        return match.group(1) + match.group(2) if not (match.group(1) and match.group(2)[:1] in "+-") else text
    return text


def read_bare(text: str, loose: bool = False) -> Number | None:
    """A number without unit, currency or percent."""
    if match := PLAIN.fullmatch(text):
        digits = match.group(2).replace(",", "")
        decimals = match.group(3)
        value = Fraction(int(digits + (decimals or "")), 10 ** len(decimals or ""))
        return Number(-value if match.group(1) == "-" else value, places=len(decimals) if decimals else None)
    if match := DOT_FIRST.fullmatch(text):
        value = Fraction(int(match.group(2)), 10 ** len(match.group(2)))
        return Number(-value if match.group(1) == "-" else value, places=len(match.group(2)))
    if SPACED.fullmatch(text) or (loose and LOOSE_GROUPS.fullmatch(text)):
        return read_bare(re.sub(r"[ ',]", "", text))
    if loose and (match := DECIMAL_COMMA.fullmatch(text)):
        return read_bare(f"{match.group(1)}.{match.group(2)}")
    for pattern, reader in COMPOUND:
        if match := pattern.fullmatch(text):
            value_or_none = reader(match)
            return None if value_or_none is None else Number(value_or_none)
    return None


def part(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", ""))


def fraction(match: re.Match[str]) -> Fraction | None:
    numerator, denominator = part(match.group(2) or match.group(4)), part(match.group(3) or match.group(5))
    if denominator == 0:
        return None
    return (-1 if match.group(1) == "-" else 1) * numerator / denominator


def mixed(match: re.Match[str]) -> Fraction | None:
    numerator, denominator = int(match.group(3) or match.group(5)), int(match.group(4) or match.group(6))
    if denominator == 0:
        return None
    return (-1 if match.group(1) == "-" else 1) * (int(match.group(2)) + Fraction(numerator, denominator))


def scientific(match: re.Match[str]) -> Fraction | None:
    exponent = int((match.group(3) or match.group(4) or match.group(5) or match.group(7)).replace(" ", ""))
    if abs(exponent) > MAX_EXPONENT:
        return None
    mantissa = part(match.group(1) or match.group(6) or "1")
    return (-1 if match.group(2) == "-" else 1) * mantissa * Fraction(10) ** exponent


def repeating(match: re.Match[str]) -> Fraction | None:
    whole, start = match.group(2) or "0", match.group(3)
    cycle = match.group(4) or match.group(5) or match.group(6) or re.sub(r"\D", "", match.group(7))
    value = Fraction(int(whole + start), 10 ** len(start))
    value += Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(start))
    return -value if match.group(1) == "-" else value


COMPOUND = (
    (FRACTION, fraction),
    (MIXED, mixed),
    (SCIENTIFIC, scientific),
    (REPEATING, repeating),
    (ORDINAL, lambda match: Fraction(int(match.group(1)))),
)


def read_suffixed(text: str) -> Number | None:
    """A number and what it counts or is measured in: `72 apples`, `5 cm^2`, `2.5 billion dollars`, `45^\\circ`."""
    match = WITH_SUFFIX.fullmatch(text)
    if match is None:
        return None
    inner = read_bare(match.group(1).strip())
    space, suffix = match.group(2), match.group(3).strip()
    if inner is None:
        return None
    head, _, rest = suffix.partition(" ")
    if head.lower() in SCALE and (space or len(head) > 1):
        inner, suffix = Number(inner.value * SCALE[head.lower()]), rest.strip()
        if not suffix:
            return inner
        space = " "
    attached = re.match(r"[A-Za-z]+", suffix)
    if not space and attached and len(attached.group()) == 1:
        return None  # `3m` is three times m
    unit = read_unit(suffix)
    return None if unit is None else replace(inner, unit=unit)


def same_number(answer: Number, gold: Number) -> bool:
    """Equal exactly, units agreeing; a percent sign on one side only is overlooked where the number exceeds 1."""
    factor = agree(answer.unit, gold.unit)
    if factor is None:
        return False
    if answer.value * factor == gold.value:
        return True
    if answer.percent != gold.percent:
        scaled = answer.value * 100 if answer.percent else answer.value
        reference = gold.value * 100 if gold.percent else gold.value
        return abs(reference) > 1 and scaled == reference
    return float_noise(answer, gold)


def float_noise(answer: Number, gold: Number) -> bool:
    """0.30000000000000004 for 0.3: a binary double printed in full, 16 or more significant digits."""
    if answer.places is None or answer.places < 15 or gold.value == 0:
        return False
    return abs(answer.value / gold.value - 1) < Fraction(4, 10**16)


ONES_NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen "
)
ONES = dict(zip(ONES_NAMES.split(), range(20)))
TENS = dict(zip(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], range(20, 100, 10)))
CHINESE = dict(zip("零一二三四五六七八九", range(10))) | {"两": 2}
CHINESE_SCALE = {"十": 10, "百": 100, "千": 1000}
ROMAN = re.compile(r"(?=[MDCLXVI]{2})M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")
ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def read_words(text: str) -> Fraction | None:
    """A whole number in English or Chinese words, or a Roman numeral of two letters or more.

    >>> read_words("one hundred and forty-two"), read_words("四十二"), read_words("XIV")
    (Fraction(142, 1), Fraction(42, 1), Fraction(14, 1))
    """
    if len(text) > 80:
        return None
    if ROMAN.fullmatch(text):
        values = [ROMAN_VALUES[letter] for letter in text]
        return Fraction(sum(-v if v < max(values[i:], default=0) else v for i, v in enumerate(values)))
    if text and all(character in CHINESE or character in CHINESE_SCALE for character in text):
        return chinese(text)
    words = text.lower().replace("-", " ").split()
    total = group = 0
    if not words:
        return None
    for word in words:
        if word in ONES or word in TENS:
            group += ONES.get(word, 0) + TENS.get(word, 0)
        elif word == "hundred" and group:
            group *= 100
        elif word in ("thousand", "million", "billion") and group:
            total, group = total + group * SCALE[word], 0
        elif word != "and":
            return None
    return Fraction(total + group) if words[-1] != "and" and words[0] != "and" else None


def chinese(text: str) -> Fraction | None:
    total = digit = 0
    for character in text:
        if character in CHINESE:
            if digit:
                return None
            digit = CHINESE[character]
        else:
            total += (digit or 1) * CHINESE_SCALE[character]
            digit = 0
    return Fraction(total + digit)
