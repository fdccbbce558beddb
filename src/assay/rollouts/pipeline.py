"""Asynchronous rollouts: groups are written and marked while the trainer trains on earlier ones.

The consumer is the trainer's one loop, which cannot tell this from the synchronous producer. Here nothing waits for a
round: as soon as the books have room for a group it is drawn and submitted, marked when it is written, and kept in line
until its turn. Work happens in the threads that finish something (the engine's, the scorer's) under one lock.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from assay.errors import RunError
from assay.policy import Policy
from assay.prompts import Curriculum, Refill, RewardCurriculum
from assay.prompts.refill import refill_metrics, tally
from assay.records import Completion, Group, Prompt
from assay.rewards import Scorer
from assay.rewards.combine import settle_completion
from assay.rollouts.admission import Books, Entry, Stage
from assay.rollouts.codec import completion_state, group_state, load_completion, load_group
from assay.rollouts.options import RolloutOptions
from assay.rollouts.producer import Collected, Decode, Progress, push_policy, read_back, request_of
from assay.rollouts.protocol import Sampling
from assay.rollouts.shared_engine import SharedEngine


class Pipeline:
    """`Producer` with `max_staleness` above 0: the same calls, but `collect` takes what was written ahead.

    The curriculum observes every group once, when its last mark is there; a group without a signal leaves the queue at
    that moment (under dynamic sampling). `groups_per_round`, `updates_per_round` and `steps` are the trainer's. Threads
    call back into `written` and `marked`; what they raise is raised by the trainer's next `collect` or `push`.
    """

    def __init__(
        self,
        engine: SharedEngine,
        scorer: Scorer,
        decode: Decode,
        options: RolloutOptions,
        *,
        seed: int,
        prompts: Mapping[str, Prompt],
        refill: Refill,
        schedules: RewardCurriculum,
        groups_per_round: int,
        updates_per_round: int,
        steps: int,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        self.engine = engine
        self.scorer = scorer
        self.decode = decode
        self.options = options
        self.seed = seed
        self.prompts = prompts
        self.refill = refill.options
        self.informative = refill.informative
        self.schedules = schedules
        self.updates_per_round = updates_per_round
        self.steps = steps
        self.progress = progress
        most_dropped = math.ceil(self.refill.max_rounds * self.refill.max_oversample * groups_per_round)
        self.books = Books(groups_per_round, options.max_staleness, 0, most_dropped)
        self.changed = threading.Condition()
        self.draws = 0
        self.curriculum: Curriculum | None = None
        self.state: Any = None
        self.now = (0, 0)  # the round that the trainer asked for last, and the step at which it begins
        self.failure: BaseException | None = None
        self.closed = False
        # Since the last round: groups (or parts of them) that were marked, what they came to, the first dropped ones.
        self.marked_parts: list[Group] = []
        self.counts: Counter[str] = Counter()
        self.finished: list[Group] = []
        self.uniform: list[Group] = []

    # The trainer's calls

    def collect(self, curriculum: Curriculum, count: int, step: int, trainer_state: Any = None) -> Collected:
        """The next `count` groups in the order of their draws, as soon as all of them are marked."""
        assert count == self.books.size, f"the pipeline was built for rounds of {self.books.size} groups, not {count}"
        self.progress("wait_for_rollouts", 0, count)
        with self.changed:
            self.begin(curriculum, step, trainer_state)
            while not (self.books.is_ready() or self.books.is_exhausted()):
                self.raise_failure()
                self.changed.wait()
                if self.books.head_waiting():
                    self.progress("wait_for_rollouts", self.books.head_waiting(), count)
            self.raise_failure()
            groups, missing = self.take(step)
            self.admit()
            parts, self.marked_parts = self.marked_parts, []
            finished, self.finished = self.finished, []
            # Where all are trained on, the round's own groups say it; else also what was dropped since the last round.
            written = finished if self.refill.dynamic_sampling else groups
            metrics = {**self.counted(missing), **self.books.metrics(), **curriculum.metrics()}
        if parts:
            metrics = {**self.scorer.finish(parts, trainer_state), **metrics}
        return Collected(groups, written, {**metrics, **self.schedules.metrics(step)})

    def push(self, policy: Policy, version: int, needed: bool = False) -> None:
        """Give the engine the policy's weights every `weight_sync_steps` rounds, or now if `needed`.

        The engine keeps its requests: what is half written goes on with the new weights.
        """
        self.raise_failure()
        books = self.books
        due = books.pushed is None or books.round - books.pushed >= self.options.weight_sync_steps
        if not (due or needed):
            return
        push_policy(self.engine, policy, version)
        with self.changed:
            books.pushed = books.round
            self.admit()

    def frozen(self) -> AbstractContextManager[Any]:
        """Nothing is drawn, observed or put in line while this is held: for a checkpoint."""
        return self.changed

    def close(self) -> None:
        """Admit nothing more and forget what is in flight; a checkpoint taken before has it."""
        with self.changed:
            self.closed = True
            handles = [entry.handle for entry in self.books.queue if entry.handle is not None]
        if self.failure is None:
            self.engine.cancel(handles)

    # Admission

    def begin(self, curriculum: Curriculum, step: int, trainer_state: Any) -> None:
        """Take over what the trainer says of the round; the first time, start what a checkpoint had in flight."""
        first = self.curriculum is None
        self.curriculum, self.state = curriculum, trainer_state
        self.now = (self.books.round, step)
        self.books.rounds = self.books.round + math.ceil((self.steps - step) / self.updates_per_round)
        self.scorer.reweigh(self.schedules.weights_at(step))
        for entry in self.books.in_flight() if first else []:
            if entry.written:
                self.mark(entry)
            else:
                self.write(entry)
        self.admit()

    def admit(self) -> None:
        """Draw and submit as many groups as there is room for. Holds the lock, like everything below."""
        if self.curriculum is None or self.closed:
            return
        room = self.books.room()
        prompts = self.curriculum.draw(room, avoid=self.books.keys()) if room else []
        entries = [self.books.admit(Group(prompt, [], self.draws + offset)) for offset, prompt in enumerate(prompts)]
        self.draws += len(entries)
        for entry in entries:
            self.write(entry)

    def write(self, entry: Entry) -> None:
        """Ask for the completions that the group lacks: all of them, those of the screening, or the rest after it."""
        there, whole = len(entry.group.completions), self.options.num_generations
        n, stream = (whole - there, "/rest") if there else (self.refill.screen or whole, "")
        entry.part = Group(entry.group.prompt, [], entry.group.draw)
        entry.stage = Stage.WRITING
        sampling = Sampling(self.max_tokens(entry), self.options.temperature)
        entry.handle, answer = self.engine.ask(request_of(entry.part, n, stream, self.seed, sampling))
        answer.add_done_callback(partial(self.guarded, self.written, entry))

    def max_tokens(self, entry: Entry) -> int:
        """The length limit at the step in which the group is trained at the latest."""
        turn = self.books.round + self.books.queue.index(entry) // self.books.size
        round_, step = self.now
        limits = self.schedules.limits_at(step + (turn - round_) * self.updates_per_round)
        limit = self.options.max_completion_length
        return min(limits.get("max_completion_length", limit), limit)

    # Called by the threads of the engine and of the scorer

    def guarded(self, then: Callable[[Entry, Future[Any]], None], entry: Entry, future: Future[Any]) -> None:
        """Run a callback under the lock; what it raises is the trainer's to hear."""
        try:
            with self.changed:
                if not self.closed:
                    then(entry, future)
                    self.changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the trainer raises it
            with self.changed:
                self.failure = self.failure or error
                self.changed.notify_all()

    def written(self, entry: Entry, answer: Future[list[Completion]]) -> None:
        """The engine has finished a part of a group: have it marked."""
        entry.written = answer.result()
        entry.handle = None
        self.mark(entry)

    def mark(self, entry: Entry) -> None:
        entry.stage = Stage.MARKING
        entry.part.completions = [
            dataclasses.replace(completion, judgements={}, tags=dict(completion.tags)) for completion in entry.written
        ]
        read_back(entry.part, self.decode)
        marked = self.scorer.submit(entry.part, self.state)
        marked.add_done_callback(partial(self.guarded, self.marked, entry))

    def marked(self, entry: Entry, done: Future[Group]) -> None:
        """All marks are there: the group waits for its turn, is continued after screening, or leaves the queue."""
        done.result()
        group, entry.written = entry.group, []
        group.completions += entry.part.completions
        self.marked_parts.append(entry.part)
        mixed = self.informative(group)
        if mixed and len(group.completions) == self.refill.screen < self.options.num_generations:
            self.write(entry)
            return
        entry.stage = Stage.WAITING
        assert self.curriculum is not None
        self.curriculum.observe([group])
        self.finished.append(group)
        self.counts.update(tally(group, mixed, self.refill.screen))
        if self.refill.dynamic_sampling and not mixed:
            self.books.drop(entry)
            if len(self.uniform) < self.books.size:
                self.uniform.append(group)
        self.admit()

    # The consumer's side

    def take(self, step: int) -> tuple[list[Group], int]:
        """The groups of the round and how many it lacks; `refill.fallback` decides where it lacks some."""
        missing = self.books.size - min(self.books.size, len(self.books.queue))
        if missing and self.refill.fallback == "stop":
            raise RunError(
                f"dynamic sampling found {self.books.size - missing} of {self.books.size} groups with a signal among "
                f"{self.counts['generated']} prompts; raise refill.max_rounds, take data of another difficulty, "
                "or set refill.fallback to short"
            )
        groups = [entry.group for entry in self.books.take()]
        fill = self.uniform[:missing] if self.refill.fallback == "pad" or not groups else []
        self.books.reinstate(len(fill))
        self.uniform = []
        self.books.check()
        groups += fill
        for group in groups:
            self.check_age(group, step)
            if self.schedules.weights:
                for completion in group.completions:
                    settle_completion(completion, self.scorer.functions, self.scorer.options)
        return groups, missing

    def check_age(self, group: Group, step: int) -> None:
        """The bound is kept by admission; here it is proved by what the engine says that it wrote with."""
        oldest = min(span.version for completion in group.completions for span in completion.policy_versions)
        if step - oldest > self.options.max_staleness * self.updates_per_round:
            raise RunError(
                f"draw {group.draw} was begun by policy version {oldest} and is to be trained at step {step}, over "
                f"rollout.max_staleness={self.options.max_staleness} rounds of {self.updates_per_round} updates "
                "later: the engine did not take the weights that were pushed"
            )

    def counted(self, missing: int) -> dict[str, float]:
        """What the groups marked since the last round came to, by the names of the synchronous refill."""
        found = refill_metrics(self.counts, missing)
        self.counts.clear()
        return found

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    # Memory

    def state_dict(self) -> dict[str, Any]:
        """What waits, whole; what is being marked, as it was written; what is being written, as a draw."""
        with self.changed:
            self.books.check()
            return {
                "draws": self.draws,
                "books": dict(self.books.counters()),
                "queue": [entry_state(entry) for entry in self.books.queue],
                "uniform": [group_state(group) for group in self.uniform],
                # For the metrics of the next round; those that wait are in the queue too.
                "finished": [group_state(group) for group in self.finished] if self.refill.dynamic_sampling else [],
                "counts": dict(self.counts),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.draws = state["draws"]
        for name, value in state["books"].items():
            setattr(self.books, name, value)
        self.books.queue = [load_entry(entry, self.prompts) for entry in state["queue"]]
        self.uniform = [load_group(group, self.prompts) for group in state["uniform"]]
        self.finished = [load_group(group, self.prompts) for group in state.get("finished", ())]
        self.counts = Counter(state["counts"])
        self.books.check()


def entry_state(entry: Entry) -> dict[str, Any]:
    return {
        "group": group_state(entry.group),
        "stage": entry.stage.value,
        "written": [completion_state(completion) for completion in entry.written],
    }


def load_entry(state: Mapping[str, Any], prompts: Mapping[str, Prompt]) -> Entry:
    group = load_group(state["group"], prompts)
    part = Group(group.prompt, [], group.draw)
    written = [load_completion(completion) for completion in state["written"]]
    return Entry(group, part, Stage(state["stage"]), written=written)
