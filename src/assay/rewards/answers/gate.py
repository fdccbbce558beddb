"""What is too costly to hand to computer algebra, decided from the text alone; equal spellings never get here."""

from __future__ import annotations

import re

MAX_LENGTH, MAX_DEPTH, MAX_COMMANDS = 600, 40, 120
BIG_EXPONENT = re.compile(r"\^\s*\{?\s*[+-]?\s*\d{6,}")
BIG_FACTORIAL = re.compile(r"\d{5,}\s*\}?\)?\s*!|!\s*!")
BIG_BINOMIAL = re.compile(r"\\d?t?binom\s*(?:\{[^{}]*(?:\d{4,}|\^)[^{}]*\}|\{[^{}]*\}\s*\{[^{}]*(?:\d{4,}|\^)[^{}]*\})")
UNBOUNDED = re.compile(
    r"\\(?:int|iint|oint|sum|prod|lim|partial|mod|bmod|pmod|gcd|lcm|begin|forall|exists|zeta|Gamma)(?![A-Za-z])|\bmod\b|\d\s*[eE]\s*[+-]?\d{4,}"
)


def too_costly(text: str) -> str:
    """Why `text` is not evaluated, or the empty string.

    >>> too_costly("9^{9^{9}}"), too_costly("x^2+1")
    ('a tower of powers', '')
    """
    if len(text) > MAX_LENGTH:
        return f"longer than {MAX_LENGTH} characters"
    if nesting(text) > MAX_DEPTH or text.count("\\") > MAX_COMMANDS:
        return "nested too deeply"
    if has_tower(text):
        return "a tower of powers"
    if BIG_EXPONENT.search(text) or BIG_FACTORIAL.search(text) or BIG_BINOMIAL.search(text):
        return "a number too big to write out"
    if match := UNBOUNDED.search(text):
        return f"{match.group().strip()} is not evaluated"
    return ""


def nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth -= 1
    return deepest


def has_tower(text: str) -> bool:
    """Whether an exponent contains a power of numbers or a factorial: the exponent's own text up to where it ends."""
    for match in re.finditer(r"\^\s*", text):
        exponent = argument(text, match.end())
        after = text[match.end() + len(exponent) :].lstrip()
        if after.startswith("^") or "!" in exponent:
            return True
        if "^" in exponent and re.search(r"\d\s*[)}]*\s*\^|\^\s*\{?\s*\d{2,}", exponent):
            return True
    return False


def argument(text: str, start: int) -> str:
    """One braced or parenthesised group, or one token."""
    if start >= len(text):
        return ""
    if text[start] not in "{(":
        token = re.compile(r"-?\d+|\\?[A-Za-z]+|.").match(text, start)
        return token.group() if token else ""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in "{(") - (text[position] in "})")
        if depth == 0:
            return text[start : position + 1]
    return text[start:]
