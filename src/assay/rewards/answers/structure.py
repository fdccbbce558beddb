"""The shape of an answer: lists, tuples, sets, intervals, relations, matrices, names in front of an equals sign.

Splits strings at the top bracket level only; evaluates nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OPENERS, CLOSERS = "([{", ")]}"
RELATION = re.compile(
    r"\\(?:le|ge|lt|gt|neq|approx|notin|in|equiv|sim|ll|gg|subset|subseteq)(?![A-Za-z])|<=|>=|!=|≈|=|<|>"
)
SPELLING = {r"\lt": "<", r"\gt": ">", "<=": r"\le", ">=": r"\ge", "!=": r"\neq"}
AND_OR = re.compile(
    r"\s*,?\s*(?:\band\b|\bor\b|\\text\s*\{\s*(?:and|or)\s*\}|\\(?:wedge|vee|land|lor)(?![A-Za-z])|&)\s*", re.IGNORECASE
)
GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega"
    "|Delta|Gamma|Sigma|Omega"
)
NAME = re.compile(
    rf"(?:[A-Za-z]|\\(?:{GREEK}))'*(?:_\s*(?:\w|\{{[^{{}}]*\}}))?'*(?:\s*\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))?"
    r"|\(\s*[A-Za-z](?:_\w)?(?:\s*,\s*[A-Za-z](?:_\w)?)+\s*\)"
    r"|m?\s*\\angle\s*[A-Z]{1,3}|[A-Z]{2,3}|\\overline\s*\{[A-Z]{2}\}|\|?[A-Z]{2}\|?"
    r"|[A-Za-z][A-Za-z]+(?:\s[A-Za-z]+){0,4}|\\(?:max|min|sum|sin|cos|tan|det|gcd|lcm)\s*(?:[A-Z]|\\?(?:theta|alpha))?"
)
MATRIX = re.compile(r"(.*?)\\begin\{([pbvBV]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?(.*?)\\end\{\2\}", re.DOTALL)
BASE = re.compile(
    r"\(?([0-9A-Za-z]+)\)?\s*_\s*(?:\{?\s*(\d+|two|three|eight|ten|sixteen)\s*\}?)|([0-9A-Za-z]+)\s*\(?\s*(?:in\s+)?base\s*-?\s*(\d+)\s*\)?"
)
BASE_WORDS = {"two": 2, "three": 3, "eight": 8, "ten": 10, "sixteen": 16}


@dataclass(frozen=True)
class Sequence_:
    """Items between brackets: a `tuple` keeps order; a `set`, a `bracket` and a bare `list` do not."""

    kind: str
    items: tuple[str, ...]


@dataclass(frozen=True)
class Interval:
    low: str
    high: str
    low_closed: bool
    high_closed: bool


def split_top(text: str, separator: str) -> list[str]:
    """Split at `separator` (one character) outside every bracket.

    >>> split_top("(1,2),{3,4}", ",")
    ['(1,2)', '{3,4}']
    """
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        if character == "\\" and position + 1 < len(text):
            following = text[position + 1]
            depth += (following == "{") - (following == "}")
            if text.startswith(("\\langle", "\\rangle"), position):
                depth += 1 if following == "l" else -1
            position += 2
            continue
        if character in OPENERS:
            depth += 1
        elif character in CLOSERS:
            depth -= 1
        elif character == separator and depth <= 0:
            parts.append(text[start:position].strip())
            start = position + 1
        position += 1
    return [*parts, text[start:].strip()]


def split_words(text: str) -> list[str] | None:
    """Split at a top-level `and` or `or`; None where there is none."""
    parts, start = [], 0
    for match in AND_OR.finditer(text):
        before = text[: match.start()]
        if depth_of(before) == 0:
            parts.append(text[start : match.start()].strip(" ,"))
            start = match.end()
    return [*parts, text[start:].strip(" ,")] if parts else None


def depth_of(text: str) -> int:
    plain = re.sub(r"\\[{}]", "", text)
    return sum(map(plain.count, "({")) - sum(map(plain.count, ")}"))


def read_list(text: str) -> list[str] | None:
    """The items of a bare list (`1, 2 and 3`, `x=1 or x=2`); None where the text is one item."""
    if not balanced(text):
        return None
    items = [item for part in split_words(text) or [text] for item in split_top(part, ",")]
    if len(items) == 1:
        items = split_top(text, ";")
    return [item for item in items if item] if len(items) > 1 else None


def enclosed(text: str) -> tuple[str, str] | None:
    """(kind, content) where one pair of brackets encloses the whole: set `{}`, tuple `()` or `<>`, bracket `[]`."""
    for kind, opening, closing in (
        ("set", "\\{", "\\}"), ("tuple", "\\langle", "\\rangle"), ("tuple", "(", ")"),
        ("bracket", "[", "]"), ("set", "{", "}"),
    ):  # fmt: skip
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing):
            inner = text[len(opening) : -len(closing)]
            if balanced(inner):
                return kind, inner.strip()
    return None


def balanced(text: str) -> bool:
    """Whether brackets never close below the level at which the text starts, and end at it."""
    depth, position = 0, 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            following = text[position + 1 : position + 2]
            depth += (following == "{") - (following == "}")
            position += 1
        elif character in OPENERS:
            depth += 1
        elif character in CLOSERS:
            depth -= 1
        if depth < 0:
            return False
        position += 1
    return depth == 0


def read_sequence(text: str) -> Sequence_ | None:
    """A bracketed or bare sequence of any length; None for a single bare item.

    >>> read_sequence("(1, 2)"), read_sequence("5")
    (Sequence_(kind='tuple', items=('1', '2')), None)
    """
    if re.fullmatch(r"\\emptyset|\\\{\s*\\\}", text.strip()):
        return Sequence_("set", ())
    found = enclosed(text)
    if found:
        kind, inner = found
        items = split_top(inner, ",") if inner else []
        if len(items) == 1 and kind != "set":
            items = split_top(inner, ";")
        if kind == "set" or len(items) > 1:
            return Sequence_(kind, tuple(items))
        return None
    bare = read_list(text)
    return Sequence_("list", tuple(bare)) if bare else None


def read_interval(text: str) -> Interval | None:
    """`[a,b)`, `(a,b)`, `]a,b[` with exactly two ends."""
    if len(text) < 5 or text[0] not in "([]" or text[-1] not in ")][":
        return None
    ends = split_top(text[1:-1], ",")
    if len(ends) != 2 or not all(ends) or not all(map(balanced, ends)):
        return None
    return Interval(ends[0], ends[1], text[0] == "[", text[-1] == "]")


def relations(text: str) -> tuple[list[str], list[str]]:
    """Operands and operators of a chain at the top level: `a < x \\\\le b` -> ([a, x, b], [<, \\\\le])."""
    operands, operators, start = [], [], 0
    for match in RELATION.finditer(text):
        if depth_of(text[: match.start()]) == 0:
            operands.append(text[start : match.start()].strip())
            operators.append(SPELLING.get(match.group(), match.group()))
            start = match.end()
    return [*operands, text[start:].strip()], operators


def assignment(text: str) -> tuple[str, list[str]] | None:
    """(name, links) of `name = value = value`; None where the first part is no name or another relation occurs."""
    operands, operators = relations(text)
    if operators and set(operators) == {"="} and NAME.fullmatch(operands[0]) and all(operands):
        return " ".join(operands[0].split()), operands[1:]
    return None


def read_matrix(text: str) -> tuple[str, str, list[list[str]]] | None:
    """(factor in front, environment, rows of cells) of a text that is one matrix."""
    match = MATRIX.fullmatch(text)
    if not match:
        return None
    rows = [[cell.strip() for cell in row.split("&")] for row in re.split(r"\\\\", match.group(3)) if row.strip()]
    return match.group(1).strip(), match.group(2), rows


def read_base(text: str) -> tuple[str, int] | None:
    """(digits, base) of `52_8`, `1010 (base 2)`."""
    match = BASE.fullmatch(text)
    if not match or not (match.group(1) or match.group(3))[0].isalnum():
        return None
    digits = (match.group(1) or match.group(3)).upper()
    if not any(c.isdigit() for c in digits):
        return None
    named = match.group(2) or match.group(4)
    return digits, BASE_WORDS.get(named) or int(named)
