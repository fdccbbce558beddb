"""reasoning-gym's procedural tasks (extra `reasoning-gym`): rows to prompt with, and its own scorers as a verifier.

Several of its scorers `eval` the answer. They run in a killable worker process that may not write files, and answers
that could call or reach into anything are refused before they get there.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from assay.errors import InputError
from assay.records import Judgement
from assay.rewards.answers.extract import NoAnswer, find_answer
from assay.rewards.exact import whole_text
from assay.rewards.verifier import Verifier, correct, failed, unparsable, wrong
from assay.rewards.workers import JobFailed, LimitReached, Limits, WorkerLost, WorkerPool

MAX_ANSWER = 20_000
ORIGIN = "reasoning_gym"
SAFE_NAMES = "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt Abs abs Rational Integer Float "
SAFE_CALLS = set(SAFE_NAMES.split())
EVALUATING_TASKS = (
    "string_insertion spiral_matrix number_sorting binary_matrix n_queens simple_integration "
    "intermediate_integration polynomial_multiplication puzzle24 countdown "
)
EVALUATING = set(EVALUATING_TASKS.split())
UNSAFE = re.compile(r"__|\blambda\b|\bfor\b|\bimport\b|[A-Za-z_)\]'\"]\s*\.\s*[A-Za-z_]|[`@$\\;{}]|[fF][rR]?['\"]|:=")
CALL = re.compile(r"([A-Za-z_]\w*)\s*\(|[)\]'\"]\s*\(")


def gym() -> Any:
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise InputError("reasoning-gym is not installed; install it: pip install reasoning-gym") from error
    return reasoning_gym


def dataset_names() -> list[str]:
    """Every task that reasoning-gym offers, `composite` (a mixture of others) aside."""
    gym()
    from reasoning_gym.factory import DATASETS

    return sorted(name for name in DATASETS if name != "composite")


def gym_rows(name: str, size: int, seed: int = 0, **config: Any) -> list[dict[str, Any]]:
    """`size` rows of one task: prompt, gold, task, and the whole entry that its scorer needs, as a column of text.

    `config` goes to the task's own configuration. Rows are made in a process with a fixed hash seed: several tasks
    iterate over sets, and would otherwise give other rows in every process. Raises InputError for an unknown task or
    configuration.
    """
    gym()
    if name not in dataset_names():
        raise InputError(f"reasoning-gym has no task {name!r}; it has {', '.join(dataset_names())}")
    pool = WorkerPool("assay.rewards.gym_worker:generate", 1, Limits(cpu_s=3600, wall_s=7200, memory_mb=0))
    try:
        reply = pool.call({"name": name, "size": size, "seed": seed, "config": config})
    except JobFailed as error:
        raise InputError(f"reasoning-gym task {name!r} refuses {config}: {error}") from error
    finally:
        pool.close()
    return [row_of(name, entry) for entry in reply["entries"]]


def row_of(name: str, packed: Any) -> dict[str, Any]:
    entry = unpack(packed)
    gold = "" if entry["answer"] is None else str(entry["answer"])
    column = json.dumps({"name": name, "entry": packed}, ensure_ascii=False)
    return {"prompt": entry["question"], "gold": gold, "task": name, ORIGIN: column}


def pack(value: Any) -> Any:
    """A value as JSON that keeps tuples, sets, fractions and keys that are no strings.

    >>> unpack(json.loads(json.dumps(pack({1: (2, {3}, Fraction(1, 3))})))) == {1: (2, {3}, Fraction(1, 3))}
    True
    """
    if isinstance(value, Fraction):
        return {"fraction": [str(value)]}
    if isinstance(value, (tuple, set, frozenset)):
        return {type(value).__name__: [pack(item) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [pack(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if isinstance(value, dict):
        ((kind, items),) = value.items()
        if kind == "fraction":
            return Fraction(items[0])
        if kind == "dict":
            return {unpack(key): unpack(item) for key, item in items}
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](unpack(item) for item in items)
    return value


class ReasoningGym(Verifier):
    """Correct where the task's own scorer gives full marks to the tagged or boxed answer.

    `partial` pays the scorer's partial credit; many of its scorers give some to any text that contains the answer, so
    the default pays none. `marked: false` takes the whole completion as the answer. Rows come from `gym_rows`.
    """

    needs_gold = False

    def __init__(self, partial: bool = False, marked: bool = True, score_s: float = 5.0, workers: int = 0):
        self.partial, self.marked = partial, marked
        self.limits, self.workers = Limits(cpu_s=score_s, wall_s=20 * score_s, memory_mb=4096), workers
        self.pool: WorkerPool | None = None
        self.lock = threading.Lock()

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        origin = origin_of(row)
        if origin is None:
            return failed(
                f"gold unreadable: the row has neither {ORIGIN!r} nor `entry`; take reasoning-gym as the source"
            )
        try:
            found = find_answer(text) if self.marked else whole_text(text)
        except NoAnswer as error:
            return unparsable(str(error))
        told: dict[str, Any] = {"extracted": found.text[:MAX_ANSWER], "span": found.span}
        if found.alternatives and any(other.strip() != found.text.strip() for other in found.alternatives):
            return unparsable("several different answers", **told)
        if len(found.text) > MAX_ANSWER:
            return wrong(f"longer than {MAX_ANSWER} characters", **told)
        if json.loads(origin)["name"] in EVALUATING and not is_safe(found.text):
            return unparsable("holds more than numbers, operators and known functions", **told)
        try:
            score = self.workers_pool().call({"origin": origin, "answer": found.text})["score"]
        except (LimitReached, JobFailed) as error:
            return wrong(f"the scorer could not take it: {error}"[:300], **told)
        except WorkerLost as error:
            return failed(str(error), **told)
        if score >= 1.0:
            return correct(**told)
        return wrong(f"score {score:g}", reward=score if self.partial else 0.0, **told)

    def workers_pool(self) -> WorkerPool:
        with self.lock:
            if self.pool is None:
                gym()
                self.pool = WorkerPool("assay.rewards.gym_worker:handle", self.workers, self.limits)
            return self.pool

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        return f"<answer>{gold}</answer>" if self.marked else str(gold)

    def close(self) -> None:
        with self.lock:
            pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("pool", "lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.pool, self.lock = None, threading.Lock()


def origin_of(row: Mapping[str, Any]) -> str | None:
    """The task and its entry as text: the column that `gym_rows` made, or the entry itself beside its task's name."""
    if ORIGIN in row:
        return str(row[ORIGIN])
    entry = row.get("entry")
    if not isinstance(entry, Mapping):
        return None
    name = entry.get("metadata", {}).get("source_dataset") or row.get("task")
    return json.dumps({"name": name, "entry": pack(entry)}, default=str)


def is_safe(answer: str) -> bool:
    """Whether evaluating `answer` could only compute: no attribute, no call but of known functions, no comprehension.

    >>> is_safe("94*4 - 61 - 6"), is_safe("['_', 'Q']"), is_safe("open('x','w')"), is_safe("().__class__")
    (True, True, False, False)
    """
    return not UNSAFE.search(answer) and all(
        match.group(1) in SAFE_CALLS or is_product(match) for match in CALL.finditer(answer)
    )


def is_product(match: re.Match[str]) -> bool:
    """`x(y+1)`: a single letter in front of a parenthesis is a factor, and calling a symbol only raises."""
    return match.group(1) is not None and len(match.group(1)) == 1
