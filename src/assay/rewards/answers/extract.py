"""Where a completion says its final answer. Linear in the length of the text; never the last number in it.

The rule, in this order: what stands before the last `</think>` is set aside (a `<think>` that never closes means no
answer); then the last `<answer>...</answer>`, the last closed `\\boxed{}` or `\\fbox{}`, or the last `####` line that
starts like an answer. Later markers that are empty or never close mean that there is no answer. Boxes that stand
side by side (only a few characters between them) are one statement: joined by `and` or a comma they are a list, joined
by `=` they must agree, and otherwise two different ones are two answers, which is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
BRACES = re.compile(r"\\{1,2}(?:boxed|fbox)(?![A-Za-z])\s*\{|\\[\\{}]|[{}]")
TAG = re.compile(r"<answer>|</answer>", re.IGNORECASE)
HASH_LINE = re.compile(r"^[ \t]*#{4}(?!#)[ \t]*(.*)$", re.MULTILINE)
STARTS_LIKE_ANSWER = re.compile(
    r"[*_`$\\(\[{+\-−–.,€£¥₹]*\\?[$*]*(?:\d|\\(?:d?frac|sqrt|pi|text|boxed)|[A-J][.)*]*\s*$|[½¼¾√π∞])"
)
FAKE_TURN = re.compile(r"\n[ \t]*(?:user|human)[ \t]*:|<\|im_start\|>|<\|start_header_id\|>", re.IGNORECASE)
MARKER = re.compile(r"\\boxed|\\fbox|####|</answer>")
NEGATED_BEFORE = re.compile(
    r"(?:\bnot|n['’]t|\bnever|\bcannot|\bexcept|\bother than|\brather than|\binstead of|\bunlike|\bwrong answer is)"
    r"(?:\s+(?:be|equal|equals|equal to|simply|exactly|really|actually|the answer))*[\s:$*({\[\\]*$",
    re.IGNORECASE,
)
NEGATED_AFTER = re.compile(
    r"[\s$).,;:*\\\]]*(?:(?:is|was|would be)\s+(?:wrong|incorrect|false|not\b(?! only))|isn['’]t\b|\(wrong\))",
    re.IGNORECASE,
)
RETRACTED = re.compile(
    r"\b(?:wait|no,|actually|correct(?:ing|ion|ed)|mistake|wrong|recheck|re-check|instead|oops|sorry|revis)",
    re.IGNORECASE,
)
OFFERS_MORE = re.compile(
    r"\b(?:alternatively|could (?:also|well|equally) be|might (?:also )?be|may also be|or (?:maybe|perhaps|possibly)"
    r"|another (?:possible|plausible) answer|not sure|on the other hand|either way)\b",
    re.IGNORECASE,
)
ALTERNATIVE_AFTER = re.compile(
    r"[\s$)\].,*\\]*\b(?:or|and/or)\b(?:\s+(?:maybe|perhaps|possibly))?\s*\\?\$?\\?\(?\s*([-−]?[\d.,/]*\d%?)",
    re.IGNORECASE,
)
MINUS_OUTSIDE = re.compile(r"[$(=]\s?[-−]\Z")
SIDE_BY_SIDE = 30
LOOK_AROUND = 60


@dataclass(frozen=True)
class Found:
    """An answer as written: its text, its character span in the completion, and what marked it (tag, box or hash).

    `alternatives` holds further answers that the same statement offers; `join` says how (`list`, `equal`, `or`).
    """

    text: str
    span: tuple[int, int]
    marker: str
    alternatives: tuple[str, ...] = ()
    join: str = ""


class NoAnswer(Exception):
    """Why no final answer was found; becomes the detail of an `unparsable` judgement."""


def find_answer(text: str, require_think: bool = False) -> Found:
    """The final answer of a completion. Raises NoAnswer."""
    start, end = visible_part(text, require_think)
    if (answer := in_tag(text, start, end)) is not None:
        start, end = answer
        boxed = in_box(text, start, end)
        return boxed or whole(text, start, end, "tag")
    if (boxed := in_box(text, start, end)) is not None:
        return boxed
    if (hashed := in_hash(text, start, end)) is not None:
        return hashed
    raise NoAnswer("no answer was marked (\\boxed{}, #### or <answer>)")


def visible_part(text: str, require_think: bool) -> tuple[int, int]:
    """The range after any reasoning and before any dialogue turn that the model made up."""
    close = text.rfind("</think>")
    start = close + len("</think>") if close >= 0 else 0
    if text.find("<think>", start) >= 0:
        raise NoAnswer("the <think> block never closes")
    if require_think and close < 0:
        raise NoAnswer("the reasoning never closed with </think>")
    if not text[start:].strip():
        raise NoAnswer("empty")
    turn = FAKE_TURN.search(text, start + 1)
    return start, turn.start() if turn and MARKER.search(text, start, turn.start()) else len(text)


def whole(text: str, start: int, end: int, marker: str) -> Found:
    inner = text[start:end]
    if not inner.strip():
        raise NoAnswer(f"the {marker} is empty")
    start, end = start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
    return Found(text[start:end], (start, end), marker)


def in_tag(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The content of the last <answer> tag; NoAnswer where it never closes."""
    opened, content = None, None
    for match in TAG.finditer(text, start, end):
        if match.group().lower() == "<answer>":
            opened = match.end()
        elif opened is not None:
            content, opened = (opened, match.start()), None
    if opened is not None:
        raise NoAnswer("the last <answer> never closes")
    return content


def boxes(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(start of the command, start and end of the content) of every closed outermost box; one pass with a stack.

    Raises NoAnswer where the last box never closes.
    """
    stack: list[tuple[int, int] | None] = []
    closed: list[tuple[int, int, int]] = []
    open_boxes = 0
    last_opened = -1
    for match in BRACES.finditer(text, start, end):
        token = match.group()
        if token == "{" or (token[-1] == "{" and len(token) > 2):
            is_box = len(token) > 1
            stack.append((match.start(), match.end()) if is_box else None)
            open_boxes += is_box
            last_opened = match.start() if is_box else last_opened
        elif token == "}" and stack:
            entry = stack.pop()
            if entry is not None:
                open_boxes -= 1
                while closed and closed[-1][0] > entry[0]:
                    closed.pop()  # a box inside this one
                closed.append((entry[0], entry[1], match.start()))
    if last_opened >= 0 and not (closed and closed[-1][2] > last_opened):
        raise NoAnswer("the last box never closes")
    return iter(closed)


def in_box(text: str, start: int, end: int) -> Found | None:
    """The last box, with the boxes that stand side by side with it."""
    if BOX.search(text, start, end) is None:
        return None
    found = list(boxes(text, start, end))
    if not found:
        return braceless(text, start, end)
    command, inner, close = found[-1]
    inner, close = unnest(text, inner, close)
    answer = whole(text, inner, close, "box")
    if MINUS_OUTSIDE.search(text[max(start, command - 4) : command]):
        answer = replace(answer, text=f"-({answer.text})")
    check_wording(text, start, command, close + 1, end)
    return beside(text, found, answer)


def unnest(text: str, start: int, end: int) -> tuple[int, int]:
    """A box that holds only a box is that box."""
    while True:
        match = BOX.match(text, start, end)
        if not (match and text.startswith("{", match.end()) and text[:end].rstrip().endswith("}")):
            return start, end
        nested = list(boxes(text, start, end))
        if len(nested) != 1 or text[nested[0][2] + 1 : end].strip():
            return start, end
        _, start, end = nested[0]


def braceless(text: str, start: int, end: int) -> Found | None:
    """TeX's `\\boxed 5`: the next token alone."""
    last = max(BOX.finditer(text, start, end), key=lambda match: match.start(), default=None)
    if last is None or last.end() >= end or last.end() == last.start() + len(last.group().rstrip()):
        return None
    token = re.compile(r"[A-Za-z0-9](?![A-Za-z0-9])").match(text, last.end(), end)
    return Found(token.group(), token.span(), "box") if token else None


def check_wording(text: str, start: int, command: int, after: int, end: int) -> None:
    """Raises NoAnswer where the words around the box deny it or offer something else as well."""
    before = text[max(start, command - LOOK_AROUND) : command]
    following = text[after : min(end, after + LOOK_AROUND)]
    if NEGATED_BEFORE.search(before) or NEGATED_AFTER.match(following):
        raise NoAnswer("the boxed value is denied")
    if OFFERS_MORE.search(following.split("\n")[0]):
        raise NoAnswer("another answer is offered after the box")


def beside(text: str, found: list[tuple[int, int, int]], answer: Found) -> Found:
    """Join the last box with those side by side; a hedge before it makes the statement ambiguous."""
    others: list[str] = []
    joins: set[str] = set()
    for earlier, later in zip(reversed(found[:-1]), reversed(found[1:])):
        between = text[earlier[2] + 1 : later[0]]
        if OFFERS_MORE.search(between[-200:]) and not RETRACTED.search(between):
            joins.add("or")
            others.append(text[earlier[1] : earlier[2]])
            break
        words = re.sub(r"[\s$*_\\().,;:\[\]]+", " ", between).strip().lower()
        if len(words) > SIDE_BY_SIDE or RETRACTED.search(between) or ("\n\n" in between and len(words) > 0):
            break
        joins.add(
            "equal" if words in ("=", "approx", "equivalently") else "list" if words in ("and", "", "&") else "or"
        )
        others.append(text[earlier[1] : earlier[2]])
    tail = ALTERNATIVE_AFTER.match(text, found[-1][2] + 1)
    if tail:
        return Found(answer.text, answer.span, "box", (*others, tail.group(1)), "or")
    if not others:
        return answer
    join = "or" if "or" in joins else "list" if "list" in joins else "equal"
    return Found(answer.text, answer.span, "box", tuple(others), join)


def in_hash(text: str, start: int, end: int) -> Found | None:
    """The last #### line that starts like an answer; an empty last one means that there is no answer.

    An earlier one that stands side by side with it, not retracted in between, is another answer of the same statement.
    """
    lines: list[Found] = []
    for match in HASH_LINE.finditer(text, start, end):
        content = match.group(1).strip()
        begin = match.start(1) + len(match.group(1)) - len(match.group(1).lstrip())
        if not content:
            lines = []
        elif STARTS_LIKE_ANSWER.match(content):
            lines.append(Found(content, (begin, begin + len(content)), "hash"))
    if not lines:
        return None
    others: list[str] = []
    for earlier, later in zip(reversed(lines[:-1]), reversed(lines[1:])):
        between = text[earlier.span[1] : later.span[0]].strip().rstrip("#").strip()
        if len(between) > SIDE_BY_SIDE or RETRACTED.search(between):
            break
        others.append(earlier.text)
    return replace(lines[-1], alternatives=tuple(others), join="or" if others else "")
