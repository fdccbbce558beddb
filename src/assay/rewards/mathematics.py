"""Mathematical answers: find the marked one, compare it exactly, and only then ask computer algebra in a worker."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Mapping
from typing import Any

from assay.records import Judgement
from assay.rewards.answers.compare import Comparison, GoldUnreadable
from assay.rewards.answers.extract import Found, NoAnswer, find_answer
from assay.rewards.answers.normalise import MAX_ANSWER, normalise
from assay.rewards.answers.numbers import PLAIN
from assay.rewards.gsm8k import gsm8k_gold
from assay.rewards.verifier import Verifier, correct, failed, unparsable, wrong
from assay.rewards.workers import JobFailed, LimitReached, Limits, WorkerLost, WorkerPool

NO_GOLD = {"", "n/a", "na", "null", "nan", "?", "-", "tbd", "unknown"}
PROSE = re.compile(r"[^\W\d_]{2,}")
MAX_GOLD_WORDS = 15
ALGEBRA = "assay.rewards.answers.symbolic:handle"
DOLLARS = re.compile(r"^\s*(?:\$\$(.*)\$\$|\$(.*[^\\])\$|\\\((.*)\\\)|\\\[(.*)\\\])\s*$", re.DOTALL)


class OutOfBounds(Exception):
    """Computer algebra on the answer used up its CPU time or memory."""


class Math(Verifier):
    """1.0 where the marked final answer equals gold as mathematics, else 0.0.

    `require_think` asks for a closed reasoning block. `symbolic_s` and `memory_mb` bound one symbolic comparison;
    `workers` (0 = number of cores) bounds how many run at once. Rules: docs/verifiers.md.
    """

    def __init__(
        self,
        gold_column: str = "gold",
        require_think: bool = False,
        symbolic_s: float = 2.0,
        memory_mb: int = 2048,
        workers: int = 0,
    ):
        self.gold_column, self.require_think = gold_column, require_think
        self.limits, self.workers = Limits(cpu_s=symbolic_s, wall_s=30 * symbolic_s, memory_mb=memory_mb), workers
        self.set_up()

    def set_up(self) -> None:
        self.pool: WorkerPool | None = None
        self.lock = threading.Lock()
        self.ask = functools.lru_cache(maxsize=16384)(self.ask_worker)
        self.read_gold = functools.lru_cache(maxsize=4096)(read_gold)

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        try:
            reference = self.read_gold(str(gold) if gold is not None else "")
        except GoldUnreadable as error:
            return failed(f"gold unreadable: {error}")
        try:
            found = find_answer(text, self.require_think)
        except NoAnswer as error:
            return unparsable(str(error))
        told: dict[str, Any] = {"extracted": found.text[:MAX_ANSWER], "span": found.span}
        try:
            return self.mark(found, reference, told)
        except GoldUnreadable as error:
            return failed(f"gold unreadable: {error}", **told)
        except OutOfBounds as error:
            return wrong(f"comparing it reached {error}", **told)
        except (WorkerLost, JobFailed) as error:
            return failed(f"computer algebra: {error}", **told)
        except RecursionError:
            return wrong("nested too deeply", **told)

    def mark(self, found: Found, reference: str, told: dict[str, Any]) -> Judgement:
        if found.text == reference and not found.alternatives:
            return correct(**told)
        if len(found.text) > MAX_ANSWER or len(reference) > MAX_ANSWER:
            same = found.text.strip("$ ") == reference.strip("$ ")
            return correct(**told) if same else wrong(f"longer than {MAX_ANSWER} characters: compared as text", **told)
        comparison = Comparison(self.algebra)
        answer = normalise(found.text)
        if not answer:
            return unparsable("empty", **told)
        if found.alternatives:
            return self.mark_several(found, answer, reference, comparison, told)
        if plain_equal(answer, reference) or comparison.equal(answer, reference):
            return correct(**told)
        detail = "; ".join(dict.fromkeys(comparison.notes))
        return unparsable(detail, **told) if comparison.unreadable else wrong(detail, **told)

    def mark_several(
        self, found: Found, answer: str, reference: str, comparison: Comparison, told: dict[str, Any]
    ) -> Judgement:
        """Boxes side by side: the same answer several times, one list, or several answers, which are none."""
        others = [normalise(other) for other in found.alternatives]
        if all(comparison.equal(other, reference) for other in (answer, *others)):
            return correct(**told)
        if found.join == "list" and comparison.equal(", ".join([*reversed(others), answer]), reference):
            return correct(**told)
        if found.join == "list" or all(agree(comparison, other, answer) for other in others):
            return wrong("", **told)
        return unparsable("several different answers", **told)

    def algebra(self, message: dict[str, Any]) -> dict[str, Any]:
        return self.ask(tuple(sorted(message.items())))

    def start(self) -> None:
        self.worker_pool().warm_up()

    def worker_pool(self) -> WorkerPool:
        with self.lock:
            if self.pool is None:
                self.pool = WorkerPool(ALGEBRA, self.workers, self.limits)
            return self.pool

    def ask_worker(self, message: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
        try:
            return self.worker_pool().call(dict(message))
        except LimitReached as error:
            raise OutOfBounds(str(error)) from error

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        try:
            return f"The answer is \\boxed{{{read_gold(str(gold), raw=True)}}}."
        except GoldUnreadable:
            return f"The answer is \\boxed{{{gold}}}."

    def close(self) -> None:
        with self.lock:
            pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("pool", "lock", "ask", "read_gold")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.set_up()


def agree(comparison: Comparison, one: str, other: str) -> bool:
    """Whether two answers of a completion are the same; what cannot be read is another answer."""
    try:
        return comparison.equal(one, other)
    except GoldUnreadable:
        return False


def plain_equal(answer: str, gold: str) -> bool:
    """Two plain decimals or integers, the commonest case by far, without building fractions."""
    if not (PLAIN.fullmatch(answer) and PLAIN.fullmatch(gold)):
        return False
    one, other = (text.replace(",", "").lstrip("+") for text in (answer, gold))
    if "." in one or "." in other:
        one, other = (text.rstrip("0").rstrip(".") if "." in text else text for text in (one, other))
    return canonical(one) == canonical(other)


def canonical(digits: str) -> str:
    sign, rest = ("-", digits[1:]) if digits[:1] == "-" else ("", digits)
    rest = rest.lstrip("0")
    if not rest or rest.startswith("."):
        rest = "0" + rest
    return rest if rest == "0" else sign + rest


def read_gold(gold: str, raw: bool = False) -> str:
    """Gold without its packaging (rationale, dollars, box), normalised unless `raw`. Raises GoldUnreadable."""
    text = gold.strip()
    if "####" in text or "<<" in text:
        text = gsm8k_gold(text)
    if match := DOLLARS.match(text):
        inner = next(group for group in match.groups() if group is not None)
        text = inner.strip() if "$" not in inner.replace("\\$", "") else text
    if "\\boxed" in text or "\\fbox" in text:
        try:
            text = find_answer(text).text
        except NoAnswer as error:
            raise GoldUnreadable(str(error)) from error
    if text.strip().lower() in NO_GOLD:
        raise GoldUnreadable(f"empty ({gold[:20]!r})")
    if len(PROSE.findall(re.sub(r"\\[A-Za-z]+", " ", text[:MAX_ANSWER]))) > MAX_GOLD_WORDS:
        raise GoldUnreadable(f"a text of many words, not an answer: {text[:60]!r}")
    reference = text if len(text) > MAX_ANSWER else normalise(text)
    if not reference:
        raise GoldUnreadable(f"nothing is left of {gold[:40]!r} after normalising")
    return text if raw else reference


class Gsm8k(Math):
    """`Math` for GSM8K rows: gold may be the raw rationale, and answers end in `#### n`, a box or an answer tag."""

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        try:
            return f"I add it all up.\n#### {gsm8k_gold(gold)}"
        except GoldUnreadable:
            return f"I add it all up.\n#### {gold}"
