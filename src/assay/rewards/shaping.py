"""Small terms beside correctness: format, length, repetition, language. All are scores without a verdict, but `cosine`.

Functions over token counts take TRL's `completion_ids`; instances are picklable and may be handed to TRL.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from assay.errors import InputError
from assay.records import Judgement, Outcome
from assay.rewards.answers.extract import NoAnswer, find_answer
from assay.rewards.verifier import Verifier, completion_text, is_column

PLACEHOLDERS = {"answer", "your answer", "final answer", "the answer", "answer here"}
TokenIds = Sequence[Sequence[int]]


class Format(Verifier):
    """`reward` where the completion has the asked-for shape, else 0: a small bonus that saturates.

    `style`: `think` (one reasoning block, closed, and something after it), `box` (a closed non-empty box), `think_box`
    (both), `answer_tag` (a closed `<answer>`), `think_answer` (both). A missing opening `<think>` counts as prefilled
    by the chat template.
    """

    gives_verdicts = False
    needs_gold = False

    def __init__(
        self,
        style: Literal["think", "box", "think_box", "answer_tag", "think_answer"] = "think_box",
        reward: float = 0.1,
    ):
        if style not in ("think", "box", "think_box", "answer_tag", "think_answer"):
            raise InputError(
                f"rewards: format: style is {style!r}; use think, box, think_box, answer_tag or think_answer"
            )
        self.style, self.reward = style, reward

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        missing = self.missing(text)
        return Judgement(Outcome.SCORED, 0.0 if missing else self.reward, detail=missing)

    def missing(self, text: str) -> str:
        """What the shape lacks, or the empty string."""
        if self.style.startswith("think") and (lack := missing_think(text)):
            return lack
        if self.style in ("box", "think_box", "answer_tag", "think_answer"):
            try:
                found = find_answer(text)
            except NoAnswer as error:
                return str(error)
            if not any(map(str.isalnum, found.text)) or found.text.strip(" .").lower() in PLACEHOLDERS:
                return "a placeholder instead of an answer"
            wanted = "box" if self.style.endswith("box") else "tag"
            has_tag = wanted == "tag" and "</answer>" in text
            return "" if found.marker == wanted or has_tag else f"the answer is not in a {wanted}"
        return ""

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        think = "<think>\nStep by step.\n</think>\n" if self.style.startswith("think") else ""
        body = {
            "think": f"{gold}",
            "answer_tag": f"<answer>{gold}</answer>",
            "think_answer": f"<answer>{gold}</answer>",
        }
        return think + body.get(self.style, f"\\boxed{{{gold}}}")


def missing_think(text: str) -> str:
    """What is wrong with the reasoning block; a first `<think>` may be missing, as templates prefill it."""
    if text.count("</think>") != 1:
        return "not exactly one </think>"
    reasoning, _, after = text.partition("</think>")
    opened = reasoning.count("<think>")
    if opened > 1 or (opened == 1 and not reasoning.lstrip().startswith("<think>")) or "<think>" in after:
        return "<think> is not the beginning"
    if not reasoning.replace("<think>", "").strip():
        return "empty reasoning"
    return "" if after.strip() else "nothing after </think>"


class Overlong:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13): 0 up to max_length - cache, then linear to -1."""

    auditable = False

    def __init__(self, max_length: int, cache: int):
        if not 0 <= cache <= max_length:
            raise InputError(f"rewards: overlong: cache is {cache}; use 0 to max_length ({max_length})")
        self.max_length, self.cache, self.__name__ = max_length, cache, "overlong"

    def __call__(self, *, completion_ids: TokenIds, **_: Any) -> list[float]:
        return [self.punishment(length) for length in lengths(self.__name__, completion_ids)]

    def punishment(self, length: int) -> float:
        free = self.max_length - self.cache
        if length <= free:
            return 0.0
        return (free - length) / self.cache if length <= self.max_length else -1.0


class LengthCost:
    """`-per_token` for every token past `budget`, at most `max_cost` in all."""

    auditable = False

    def __init__(self, budget: int, per_token: float = 0.001, max_cost: float = 1.0):
        if budget < 0 or per_token < 0 or max_cost < 0:
            raise InputError("rewards: length_cost: budget, per_token and max_cost must not be negative")
        self.budget, self.per_token, self.max_cost, self.__name__ = budget, per_token, max_cost, "length_cost"

    def __call__(self, *, completion_ids: TokenIds, **_: Any) -> list[float]:
        return [
            -min(self.max_cost, self.per_token * max(0, length - self.budget)) + 0.0
            for length in lengths(self.__name__, completion_ids)
        ]


class Cosine:
    """Correctness scaled by length along a cosine (arXiv 2502.03373): short and right best, short and wrong worst.

    `verifier` is any built-in or own verifier that gives verdicts. Lengths are in tokens, cut at `max_length`.
    """

    def __init__(
        self,
        max_length: int,
        verifier: str = "math",
        options: Mapping[str, Any] | None = None,
        min_value_wrong: float = -1.0,
        max_value_wrong: float = -0.5,
        min_value_correct: float = 0.5,
        max_value_correct: float = 1.0,
    ):
        from assay.rewards.registry import load_reward

        inner = load_reward({"fn": verifier, "options": options or {}}).verifier
        if inner is None or not inner.gives_verdicts:
            raise InputError(f"rewards: cosine: {verifier!r} gives no verdicts; name a verifier such as math")
        if max_length <= 0:
            raise InputError(f"rewards: cosine: max_length is {max_length}; use the completion limit in tokens")
        self.verifier, self.max_length, self.__name__ = inner, max_length, "cosine"
        self.right, self.wrong = (min_value_correct, max_value_correct), (max_value_wrong, min_value_wrong)

    def __call__(self, *, completions: Sequence[Any], completion_ids: TokenIds, **columns: Any) -> list[Judgement]:
        judged = []
        for index, length in enumerate(lengths(self.__name__, completion_ids)):
            row = {name: value[index] for name, value in columns.items() if is_column(value, len(completions))}
            found = self.verifier.judge(completion_text(completions[index]), self.verifier.gold_of(row), row)
            if found.reward is not None:
                low, high = self.right if found.outcome is Outcome.CORRECT else self.wrong
                progress = min(length / self.max_length, 1.0)
                reward = low + (high - low) / 2 * (1 + math.cos(math.pi * progress))
                found = Judgement(found.outcome, reward, found.extracted, found.span, found.detail)
            judged.append(found)
        return judged

    def close(self) -> None:
        self.verifier.close()


class Repetition:
    """`max_penalty` times the share of repeated token n-grams (arXiv 2502.03373): 0 without repetition."""

    auditable = False

    def __init__(self, ngram_size: int = 3, max_penalty: float = -1.0):
        if max_penalty > 0 or ngram_size < 1:
            raise InputError(
                f"rewards: repetition: max_penalty is {max_penalty} (at most 0), ngram_size {ngram_size} (at least 1)"
            )
        self.ngram_size, self.max_penalty, self.__name__ = ngram_size, max_penalty, "repetition"

    def __call__(self, *, completion_ids: TokenIds, **_: Any) -> list[float]:
        return [self.penalty(list(ids)) + 0.0 for ids in completion_ids]

    def penalty(self, ids: list[int]) -> float:
        total = len(ids) - self.ngram_size + 1
        if total <= 0:
            return 0.0
        distinct = len({tuple(ids[i : i + self.ngram_size]) for i in range(total)})
        return (1 - distinct / total) * self.max_penalty


class Language(Verifier):
    """`reward` times the share of words written in `script` (DeepSeek-R1's language consistency, arXiv 2501.12948).

    Counts letters outside LaTeX, code fences and links by Unicode script, a Han or kana character as one word. It
    tells scripts apart, not languages that share one: French passes as `latin`.
    """

    auditable = False
    gives_verdicts = False
    needs_gold = False

    def __init__(self, script: str = "latin", reward: float = 1.0):
        if script not in SCRIPTS:
            raise InputError(f"rewards: language: script is {script!r}; use one of {', '.join(SCRIPTS)}")
        self.script, self.reward = script, reward

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        counts = Counter(script_of(word) for word in words(text))
        total = sum(counts.values())
        share = sum(counts[name] for name in SCRIPTS[self.script]) / total if total else 0.0
        return Judgement(Outcome.SCORED, share * self.reward)

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        return f"The answer is {gold}."


SCRIPTS = {
    "latin": ("LATIN",), "han": ("CJK",), "japanese": ("CJK", "HIRAGANA", "KATAKANA"), "hangul": ("HANGUL",),
    "cyrillic": ("CYRILLIC",), "greek": ("GREEK",), "arabic": ("ARABIC",), "hebrew": ("HEBREW",),
    "devanagari": ("DEVANAGARI",), "thai": ("THAI",),
}  # fmt: skip
NOT_PROSE = re.compile(r"```.*?```|\$[^$]*\$|\\\[.*?\\\]|\\\(.*?\\\)|\\[A-Za-z]+|https?://\S+|</?\w+>", re.DOTALL)
WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\d_\u3040-\u30ff\u3400-\u9fff]{2,}")


def words(text: str) -> list[str]:
    return WORDS.findall(NOT_PROSE.sub(" ", text))


def script_of(word: str) -> str:
    return unicodedata.name(word[0], "OTHER").split(" ")[0]


def lengths(name: str, completion_ids: TokenIds | None) -> list[int]:
    if completion_ids is None or not all(map(len, completion_ids)):
        raise InputError(f"reward {name!r} counts tokens: rows need their completion_ids")
    return [len(ids) for ids in completion_ids]
