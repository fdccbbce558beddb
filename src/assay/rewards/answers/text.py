"""Answers in words: options of a multiple choice, plain text, clock times, a number inside a short phrase."""

from __future__ import annotations

import re
from fractions import Fraction

CHOICE_GOLD = re.compile(r"\(?([A-J])\)?[.):]?|\(([A-J])\)\s+\S.*|([A-J])[.):]\s+\S.*")
CHOICE = re.compile(r"(?:(?:option|choice|answer)\s*)?\(?([A-Ja-j])(?:\)\s*[:.]?\s*|[.:]\s*|\s*$)(.*)", re.IGNORECASE)
MANY_CHOICES = re.compile(r"\(?[A-J]\)?(?:(?:\s*,\s*|\s*and\s*|\s*&\s*|\s*)\(?[A-J]\)?){1,8}")
OTHER_CHOICE = re.compile(r"\b(?:or|and|not)\b|(?<![A-Za-z])\(?[A-J]\)")
CLOCK = re.compile(r"(\d{1,2})\s*:\s*(\d{2})(?:\s*:\s*(\d{2}))?\s*([ap])?\.?\s*(?:m\.?)?", re.IGNORECASE)
RATIO = re.compile(r"[1-9]\d{0,11}(?:\s*:\s*[1-9]\d{0,11})+")
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}")
REMARK = re.compile(r"\s*(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\)|\[([^\[\]]*)\])\s*$")
HEDGE = re.compile(r"\b(?:or|not|either|maybe|perhaps|possibly|else|unless|wrong|incorrect)\b", re.IGNORECASE)
NOT_ONE_VALUE = re.compile(
    r"\b(?:or|not|no|except|unless|if|between|to|least|most|more|less|than|about|around|approximately|nearly|either|neither"
    r"|maybe|perhaps|possibly|any|some|else|in|out|plus|minus|times|over|under|greater|smaller|and|true|false)\b",
    re.IGNORECASE,
)
SYNONYMS = [
    {"no solution", "no solutions", "none", "\\emptyset", "empty set", "the empty set", "\\{\\}",
     "no real solution", "no real solutions"},
    {"dne", "does not exist", "undefined", "doesn't exist"},
    {"\\infty", "infinity", "+\\infty", "inf", "+infinity"},
    {"-\\infty", "-infinity", "negative infinity", "-inf"},
    {"all real numbers", "\\mathbb{r}", "all reals", "(-\\infty,\\infty)"},
]  # fmt: skip
NO_VALUE = {"?", "nan", "\\nan", "n/a", "null", "undefined", "\\text{nan}"}
WORD = re.compile(r"[A-Za-z\u00c0-\uffff]+(?:['’-](?=[A-Za-z\u00c0-\uffff]{2})|[A-Za-z\u00c0-\uffff])+")
FUNCTION_NAMES = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt pi max min gcd lcm det lim inf sup "
    "abs frac "
)
FUNCTIONS = set(FUNCTION_NAMES.split())


def states_choice(text: str) -> str | None:
    """The one option letter that `text` states; None where it states none or several."""
    match = CHOICE.fullmatch(text)
    if match is None or OTHER_CHOICE.match(match.group(2)) or re.search(r"\bor\b\s*\(?[A-J]\b", match.group(2)):
        return None
    return match.group(1).upper()


def same_choice(answer: str, gold: str) -> bool | None:
    """Both as options; None where gold is none. Gold `(B) 12` also accepts its content."""
    match = CHOICE_GOLD.fullmatch(gold)
    if match is not None:
        letter = match.group(1) or match.group(2) or match.group(3)
        stated = states_choice(answer)
        if stated is None and len(gold) > 4:
            return answer == re.sub(r"^\(?[A-J][.):]+\s*", "", gold)
        return stated == letter
    if MANY_CHOICES.fullmatch(gold) and len(gold) > 1:
        letters = re.findall(r"[A-J]", gold)
        if len(set(letters)) == len(letters) and MANY_CHOICES.fullmatch(answer):
            return sorted(re.findall(r"[A-J]", answer)) == sorted(letters)
    return None


def same_time(answer: str, gold: str) -> bool | None:
    """Both as clock times or dates; None where gold is neither."""
    reference = CLOCK.fullmatch(gold)
    if reference is None:
        return answer == gold if DATE.fullmatch(gold) or DATE.fullmatch(answer) else None
    stated = CLOCK.fullmatch(answer)
    if stated is None:
        return None if RATIO.fullmatch(gold) else False
    halves = (stated.group(4) or "").lower(), (reference.group(4) or "").lower()
    minutes = [minutes_of(match) for match in (stated, reference)]
    if (halves[0] and halves[1]) or not any(halves):
        return (
            minutes[0] == minutes[1]
            if any(halves)
            else stated.group(0).replace(" ", "") == reference.group(0).replace(" ", "")
        )
    return minutes[0] == minutes[1] or [int(stated.group(i) or 0) for i in (1, 2, 3)] == [
        int(reference.group(i) or 0) for i in (1, 2, 3)
    ]


def same_ratio(answer: str, gold: str) -> bool | None:
    """Both as ratios, in lowest terms; `3:4` is also the fraction. None where gold has no colon of its own."""
    if ":" not in gold or any(bracket in gold for bracket in "({["):
        return None
    terms = [[Fraction(term) for term in text.split(":")] for text in (answer, gold) if RATIO.fullmatch(text)]
    if not RATIO.fullmatch(gold):
        return None if any(map(str.isalpha, gold.replace("\\ldots", ""))) else answer == gold
    if len(terms) == 2:
        same_length = len(terms[0]) == len(terms[1])
        return same_length and all(a * terms[1][0] == b * terms[0][0] for a, b in zip(*terms))
    number = re.fullmatch(r"(\d+)/(\d+)|\\frac\{(\d+)\}\{(\d+)\}", answer)
    if number is None or len(terms[0]) != 2:
        return False
    top, bottom = (int(part) for part in number.groups() if part)
    return bool(bottom) and Fraction(top, bottom) == terms[0][0] / terms[0][1]


def minutes_of(match: re.Match[str]) -> int:
    hour = int(match.group(1))
    half = (match.group(4) or "").lower()
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return hour * 3600 + int(match.group(2)) * 60 + int(match.group(3) or 0)


def drop_remark(text: str) -> str | None:
    """Without a closing remark in parentheses that holds words; None where the remark takes the answer back."""
    match = REMARK.search(text)
    if match is None or match.start() == 0:
        return text
    remark = match.group(1) or match.group(2) or ""
    words = [word for word in WORD.findall(remark) if word.lower() not in FUNCTIONS]
    if not words and not re.fullmatch(r"\s*[元个年月日人]\s*", remark):
        return text
    return None if HEDGE.search(remark) else text[: match.start()].strip(" ,;:")


def number_in_prose(text: str) -> str | None:
    """`There are 42 ways` -> `42`: a short plain phrase with exactly one number and nothing that bends it."""
    if len(text) > 80 or "\\" in text or re.search(r"[=<>^_|{}]", text):
        return None
    numbers = re.findall(r"(?<![\w.])[-$€£]?\d+(?:,\d{3})*(?:\.\d+)?%?(?![\w])", text)
    rest = re.sub(r"[-$€£]?\d+(?:,\d{3})*(?:\.\d+)?%?", " ", text)
    if len(numbers) != 1 or re.search(r"\d", rest) or NOT_ONE_VALUE.search(rest):
        return None
    words = WORD.findall(rest)
    return numbers[0] if 1 <= len(words) <= 8 and re.fullmatch(r"[\w\s.,'’!:-]*", rest) else None


def is_words(text: str) -> bool:
    """Plain words: no mathematics beyond a lone letter or digit next to them."""
    bare = re.sub(r"\\(?:text\w*|mathrm)\s*\{([^{}]*)\}", r"\1", text)
    if "\\" in bare or re.search(r"[=<>^_|{}+*/]", bare):
        return False
    return any(word.lower() not in FUNCTIONS for word in WORD.findall(bare))


def plain(text: str) -> str:
    text = re.sub(r"[\"“”]", "", text).strip(" .,;:!?'").casefold()
    text = re.sub(r"^(?:the|a|an)\s+", "", text)
    return re.sub(r"[\s\-]+", " ", text)


def synonyms(answer: str, gold: str) -> bool:
    """Two names of the same: no solution and the empty set, DNE and does not exist, inf and infinity."""
    one, other = plain(answer), plain(gold)
    return any(one in group and other in group for group in SYNONYMS)


def same_text(answer: str, gold: str) -> bool | None:
    """Both as words, case and punctuation aside; None where gold is no text."""
    one, other = plain(answer), plain(gold)
    if not is_words(gold):
        return None
    if one == other:
        return True
    if re.fullmatch(r"[a-z]{2,3}", gold) and not is_words(answer):
        return None  # `ab` may be a product of variables
    clause = re.match(r"([^,.;:]+)[,.;:]\s+\S", answer)
    return clause is not None and plain(clause.group(1)) == other and not HEDGE.search(answer[clause.end(1) :])
