"""Getting an expression ready for the LaTeX parser: Python spelling, bare function names, roots, degrees."""

from __future__ import annotations

import re

from assay.rewards.answers.text import FUNCTIONS, WORD
from assay.rewards.answers.units import read_unit

BARE_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|pi|inf)(?![A-Za-z])"
)
ROOT = re.compile(r"\\?(?<![A-Za-z])sqrt\s*\(")
UNBRACED_ROOT = re.compile(r"\\sqrt\s*(\d|[A-Za-z])(?![A-Za-z{])")
DEGREES = re.compile(r"(\d+(?:\.\d+)?|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}|[A-Za-z])\s*\^\s*\\circ")
TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
UNIT_WORDS = re.compile(r"[A-Za-z]{2,}(?:[ /][A-Za-z]+)*(?:\s?\^\{?[23]\}?)?|[A-Za-z]\^\{?[23]\}?|[A-Za-z]/[A-Za-z]+")


def is_expression(text: str) -> bool:
    """Whether the text could be mathematics: it holds no words beyond function names and a unit.

    >>> is_expression("2x+1"), is_expression("any number"), is_expression("\\\\sin x")
    (True, False, True)
    """
    text = strip_unit(text)
    stripped = re.sub(r"\\[A-Za-z]+", " ", text)
    stripped = re.sub(r"[@#~`\"?]|__", " words ", stripped)
    words = [word for word in WORD.findall(stripped) if word.lower() not in FUNCTIONS and not product(word)]
    return bool(text) and not words


def product(word: str) -> bool:
    """Up to three letters are a product of variables (`abc`); longer runs are a word."""
    return word.isascii() and word.isalpha() and len(word) <= 3


def strip_unit(text: str) -> str:
    """`2\\pi square cm` -> `2\\pi`: a known unit of up to three words after a space at the end."""
    pieces = text.split(" ")
    for size in (3, 2, 1):
        head, tail = " ".join(pieces[:-size]).strip(), " ".join(pieces[-size:])
        if not head or head[-1] in "+-*/^=(," or not UNIT_WORDS.fullmatch(tail):
            continue
        unit = read_unit(tail)
        if unit is not None and (unit.dimension or unit.name in ("unit", "square unit", "cubic unit")):
            return head
    return text


def prepare(text: str) -> str:
    """The spelling that the LaTeX parser reads."""
    text = strip_unit(text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = round_roots(text)
    text = UNBRACED_ROOT.sub(r"\\sqrt{\1}", text)
    text = BARE_FUNCTION.sub(lambda match: "\\infty " if match.group(1) == "inf" else f"\\{match.group(1)} ", text)
    text = re.sub(r"(?<=[\d)}])\s*j(?![A-Za-z])", " i", text)
    text = re.sub(r"(?<=[\w)}])\s*\*\s*(?=[\w\\({])", r" \\cdot ", text)
    if TRIGONOMETRY.search(text):
        text = DEGREES.sub(r"{(\\frac{\1 \\cdot \\pi}{180})}", text)
    text = re.sub(r"\^\s*\\circ", "", text)
    text = re.sub(r"(\d)\s*%", r"\\frac{\1}{100}", text) if text.endswith("%") and text[:-1].isdigit() else text
    return mixed_numbers(text)


def mixed_numbers(text: str) -> str:
    """`2\\frac{1}{3}` as a sum, wherever both parts are plain digits."""
    return re.sub(r"(?<![\w^_{.}])(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}", r"(\1+\\frac{\2}{\3})", text)


def round_roots(text: str) -> str:
    """`sqrt(2)` and `\\sqrt(2)` with braces."""
    while match := ROOT.search(text):
        depth = 0
        for position in range(match.end() - 1, len(text)):
            depth += (text[position] == "(") - (text[position] == ")")
            if depth == 0:
                text = f"{text[: match.start()]}\\sqrt{{{text[match.end() : position]}}}{text[position + 1 :]}"
                break
        else:
            return text
    return text
