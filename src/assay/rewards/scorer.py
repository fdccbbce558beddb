"""Marks groups as they finish: every function over every completion, concurrently, with limits; nothing is guessed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from assay.errors import InputError
from assay.records import Group, Judgement, Outcome
from assay.rewards.combine import check_primary, settle_completion
from assay.rewards.contract import (
    Logged,
    RewardError,
    Sample,
    accepted,
    arguments,
    check_extra,
    check_rewards,
    samples_of,
)
from assay.rewards.isolated import Isolated
from assay.rewards.metrics import report_failures, round_metrics
from assay.rewards.options import RewardOptions
from assay.rewards.registry import RewardFunction, load_rewards
from assay.rewards.threads import LoopThread, ThreadPool, TimeLimit, settle
from assay.rewards.watch import flag_group
from assay.rewards.workers import HandlerBroken


@dataclass
class Marks:
    """What one function said of some completions, in their order."""

    judgements: list[Judgement]
    logged: list[tuple[int, Logged]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass
class Pending:
    """A submitted group: the functions' marks as they come in, and the future that its submitter waits for."""

    group: Group
    parts: list[tuple[RewardFunction, Future[Marks]]]
    done: Future[Group] = field(default_factory=Future)
    started: float = field(default_factory=time.monotonic)


class Scorer:
    """Reward functions over groups.

    `submit` marks one group in the background and returns a future of it, so that scoring overlaps the generation of
    other groups; `finish` waits, runs the functions that want the whole round, and returns its metrics; `score` does
    both. Judgements, `reward`, `correct`, and in `tags` logged columns and `flags` (see `watch`) are written into the
    completions. Results do not depend on the number of workers or on the order in which groups finish.

    Raises RewardError (an InputError) where a function breaks the contract or, under `on_error: raise`, raises; the
    scorer stays usable and groups that were not marked are untouched.
    """

    def __init__(self, specs: Sequence[Any] | None = None, options: RewardOptions | None = None):
        self.options = options or RewardOptions()
        self.functions: list[RewardFunction] = load_rewards(self.options.functions if specs is None else specs)
        check_primary(self.functions, self.options)
        for function in self.functions:
            if function.verifier is not None:
                function.verifier.start()
        self.threads = ThreadPool(self.options.workers or os.cpu_count() or 1)
        self.loop = LoopThread() if any(function.is_async for function in self.functions) else None
        self.pending: dict[int, Pending] = {}
        self.marks: dict[int, list[tuple[RewardFunction, Marks]]] = {}
        self.lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        return [function.name for function in self.functions]

    @property
    def weights(self) -> list[float]:
        return [function.spec.weight for function in self.functions]

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Weights by name from now on, such as those of a schedule; functions that are not named keep theirs."""
        self.functions = [
            replace(function, spec=replace(function.spec, weight=weights.get(function.name, function.spec.weight)))
            for function in self.functions
        ]

    def submit(self, group: Group, trainer_state: Any = None) -> Future[Group]:
        """Start marking a group; the future gives it back with the judgements of all functions but `batch` ones."""
        parts = [
            (function, self.mark_group(function, group, trainer_state))
            for function in self.functions
            if not function.spec.batch
        ]
        pending = Pending(group, parts)
        with self.lock:
            self.pending[id(group)] = pending
        after_all([part for _, part in parts], lambda: self.complete(pending), pending.done)
        return pending.done

    def score(self, groups: Sequence[Group], trainer_state: Any = None) -> dict[str, float]:
        """Mark all groups and return the round's metrics."""
        for group in groups:
            self.submit(group, trainer_state)
        return self.finish(groups, trainer_state)

    def finish(self, groups: Sequence[Group], trainer_state: Any = None) -> dict[str, float]:
        """Wait for submitted `groups`, run the whole-round functions over them, and return the round's metrics."""
        try:
            with self.lock:
                waiting = [self.pending[id(group)] for group in groups if id(group) in self.pending]
            wait([pending.done for pending in waiting], timeout=self.time_left(waiting))
            for pending in waiting:
                self.give_up(pending)
                pending.done.result()
            self.mark_round(groups, trainer_state)
            marks = [self.marks.get(id(group), []) for group in groups]
            report_failures(groups)
            return round_metrics(groups, self.functions, marks)
        finally:
            with self.lock:
                for group in groups:
                    self.pending.pop(id(group), None)
                    self.marks.pop(id(group), None)

    def close(self) -> None:
        """Stop worker processes, threads and connections."""
        self.threads.close()
        if self.loop is not None:
            self.loop.close()
        for function in self.functions:
            closing = getattr(function.fn, "close", None)
            if callable(closing):
                closing()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # One function over one group

    def mark_group(self, function: RewardFunction, group: Group, state: Any) -> Future[Marks]:
        samples = samples_of([group])
        tasks = function.spec.tasks
        if tasks and group.prompt.row.get("task", group.prompt.task) not in tasks:
            return ready(Marks([Judgement(Outcome.NOT_APPLICABLE, detail="a row of another task")] * len(samples)))
        if function.verifier is not None:
            return self.gather([self.run(function, [sample], state) for sample in samples])
        return self.run(function, samples, state)

    def run(self, function: RewardFunction, samples: Sequence[Sample], state: Any, attempt: int = 0) -> Future[Marks]:
        """Call `function` on `samples`; what fails is retried completion by completion: only the culprit pays."""
        out: Future[Marks] = Future()
        limit = self.limit_of(function, samples)
        if isinstance(function.fn, Isolated):
            limit = 3 * limit + 60.0  # the worker is killed at its own limit; starting it and one retry come on top

        def call() -> Marks:
            started = time.monotonic()
            marks = self.call(function, samples, state)
            marks.seconds = [(time.monotonic() - started) / max(1, len(samples))] * len(samples)
            return marks

        if function.is_async:
            assert self.loop is not None
            inner = self.loop.submit(lambda: self.call_async(function, samples, state), limit)
        else:
            inner = self.threads.submit(call, limit)

        def finished(inner: Future[Marks]) -> None:
            try:
                error = None if inner.cancelled() else inner.exception()
                if inner.cancelled():
                    settle(out, Marks([Judgement(Outcome.TIMEOUT, detail="the round's limit")] * len(samples)), None)
                elif error is None:
                    settle(out, inner.result(), None)
                elif len(samples) > 1 and not function.spec.batch and not isinstance(error, RewardError):
                    chain(self.gather([self.run(function, [s], state, attempt + 1) for s in samples]), out)
                elif attempt == 0 and not isinstance(error, RewardError | TimeLimit):
                    chain(self.run(function, samples, state, attempt + 1), out)
                else:
                    settle(out, self.judge_failure(function, samples, error), None)
            except BaseException as raised:  # noqa: BLE001 - a callback's exception would vanish
                settle(out, None, raised)

        inner.add_done_callback(finished)
        return out

    def limit_of(self, function: RewardFunction, samples: Sequence[Sample]) -> float:
        """Seconds for one call: the round's for whole-round functions, else the sample's for each completion."""
        return self.options.round_timeout_s if function.spec.batch else self.options.sample_timeout_s * len(samples)

    def call(self, function: RewardFunction, samples: Sequence[Sample], state: Any) -> Marks:
        if function.verifier is not None:
            judgements = [judge(function.verifier, sample) for sample in samples]
            flags = [function.verifier.flags(judgement) for judgement in judgements]
            return Marks(judgements, [(0, Logged({"flags": flags}))] if None not in flags else [])
        logged = Logged()
        if isinstance(function.fn, Isolated):
            function.fn.limit(self.limit_of(function, samples))
        returned = function.fn(**accepted(function.fn, arguments(samples, state, logged)))
        return checked(function, returned, samples, logged)

    async def call_async(self, function: RewardFunction, samples: Sequence[Sample], state: Any) -> Marks:
        logged = Logged()
        started = time.monotonic()
        returned = await function.fn(**accepted(function.fn, arguments(samples, state, logged)))
        marks = checked(function, returned, samples, logged)
        marks.seconds = [(time.monotonic() - started) / max(1, len(samples))] * len(samples)
        return marks

    def judge_failure(self, function: RewardFunction, samples: Sequence[Sample], error: BaseException) -> Marks:
        """The outcome of a call that failed for good; raises where the run should end."""
        if isinstance(error, TimeLimit):
            return Marks([Judgement(Outcome.TIMEOUT, detail=str(error))] * len(samples))
        if isinstance(error, InputError) and not isinstance(error, RewardError):
            raise error  # a dataset or an option is wrong, whatever the completion
        if isinstance(error, RewardError) and (self.options.on_error == "raise" or len(samples) != 1):
            raise error
        detail = f"{type(error).__name__}: {error}"[:500]
        own_bug = function.verifier is not None and not isinstance(error, HandlerBroken)
        if self.options.on_error == "raise" and not own_bug:
            where = samples[0].label + (f" and {len(samples) - 1} more" if len(samples) > 1 else "")
            raise RewardError(
                f"reward function {function.name!r} raised {detail} on {where}; "
                "rewards.on_error: skip would leave such completions out"
            ) from error
        return Marks([Judgement(Outcome.ERROR, detail=detail)] * len(samples))

    def gather(self, parts: Sequence[Future[Marks]]) -> Future[Marks]:
        """One future of the marks of several calls, in their order."""
        out: Future[Marks] = Future()

        def joined() -> Marks:
            whole = Marks([])
            for part in parts:
                marks = part.result()
                whole.logged += [(len(whole.judgements) + offset, logged) for offset, logged in marks.logged]
                whole.judgements += marks.judgements
                whole.seconds += marks.seconds
            return whole

        after_all(parts, joined, out)
        return out

    # The group and the round

    def complete(self, pending: Pending) -> Group:
        marks = [(function, part.result()) for function, part in pending.parts]
        for function, found in marks:
            write(function, found, samples_of([pending.group]))
        for completion in pending.group.completions:
            settle_completion(completion, self.functions, self.options)
        flag_group(pending.group)
        self.marks[id(pending.group)] = marks
        return pending.group

    def time_left(self, waiting: Sequence[Pending]) -> float:
        """Seconds of a round's limit that are left since the first of its groups was submitted."""
        now = time.monotonic()
        return max(0.0, self.options.round_timeout_s - max((now - pending.started for pending in waiting), default=0.0))

    def give_up(self, pending: Pending) -> None:
        """Close the book on a group that is over the round's limit: what is missing is a timeout."""
        for _, part in pending.parts:
            late = Marks([Judgement(Outcome.TIMEOUT, detail="the round's limit")] * len(pending.group.completions))
            if not part.done():
                settle(part, late, None)

    def mark_round(self, groups: Sequence[Group], state: Any) -> None:
        whole = [function for function in self.functions if function.spec.batch]
        for function in whole:
            tasks = function.spec.tasks
            chosen = [g for g in groups if not tasks or g.prompt.row.get("task", g.prompt.task) in tasks]
            skipped = Judgement(Outcome.NOT_APPLICABLE, detail="a row of another task")
            for group in groups:
                for completion in group.completions:
                    completion.judgements[function.name] = skipped
            samples = samples_of(chosen)
            if not samples:
                continue
            found = self.run(function, samples, state).result()
            write(function, found, samples)
            self.marks.setdefault(id(chosen[0]), []).append((function, found))
        if whole:
            for group in groups:
                for completion in group.completions:
                    settle_completion(completion, self.functions, self.options)


def judge(verifier: Any, sample: Sample) -> Judgement:
    row = sample.group.prompt.row
    return verifier.judge(sample.completion.text, verifier.gold_of(row), row)


def checked(function: RewardFunction, returned: Any, samples: Sequence[Sample], logged: Logged) -> Marks:
    check_extra(function.name, logged, len(samples))
    return Marks(check_rewards(function.name, returned, samples), [(0, logged)])


def write(function: RewardFunction, marks: Marks, samples: Sequence[Sample]) -> None:
    """Put judgements and logged columns into the completions."""
    for sample, judgement in zip(samples, marks.judgements, strict=True):
        sample.completion.judgements[function.name] = judgement
    for offset, logged in marks.logged:
        for column, values in logged.extra.items():
            for position, value in enumerate(values):
                samples[offset + position].completion.tags[column] = value


def ready(marks: Marks) -> Future[Marks]:
    future: Future[Marks] = Future()
    future.set_result(marks)
    return future


def chain(source: Future[Any], target: Future[Any]) -> None:
    after_all([source], source.result, target)


def after_all(sources: Sequence[Future[Any]], then: Callable[[], Any], target: Future[Any]) -> None:
    """When every source is done, `target` gets what `then` returns or raises."""
    left = len(sources)
    lock = threading.Lock()

    def finish() -> None:
        try:
            settle(target, then(), None)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            settle(target, None, error)

    def count(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            finish()

    if not sources:
        finish()
    for source in sources:
        source.add_done_callback(count)
