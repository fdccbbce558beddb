"""Which groups may be written ahead of their turn: the books of asynchronous rollouts, without engine or thread.

Groups are admitted in the order of their draws and trained in that order. A group's *turn* is the round it is trained
in if every group before it is kept; a dropped group only moves the later ones forward. The engine's weights are those
of the start of round `pushed`, so a group whose turn is at most `pushed + max_staleness` at admission is trained at
most `max_staleness` rounds after the oldest weights that wrote a token of it, whatever finishes when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from assay.records import Completion, Group


class Stage(StrEnum):
    """Where an admitted group is. Only what waits is whole; the others are in flight."""

    WRITING = "writing"
    MARKING = "marking"
    WAITING = "waiting"


@dataclass(eq=False)
class Entry:
    """An admitted group. `group` holds the completions that are marked, `part` what is being written or marked now.

    `written` are the part's completions as the engine gave them, untouched by the functions that mark the part.
    """

    group: Group
    part: Group
    stage: Stage = Stage.WRITING
    handle: int | None = None
    written: list[Completion] = field(default_factory=list)


class Books:
    """Every admitted group is trained, dropped (no signal) or in `queue`, which is in the order of the draws.

    Args:
        size: groups of a round.
        max_staleness: rounds between the weights that began a group and its training; at least 1.
        rounds: rounds of the whole run; nothing is admitted for later ones.
        most_dropped: groups that one round may drop before it is taken as it is.
    """

    def __init__(self, size: int, max_staleness: int, rounds: int, most_dropped: int) -> None:
        self.size = size
        self.max_staleness = max_staleness
        self.rounds = rounds
        self.most_dropped = most_dropped
        self.round = 0
        # The round whose first weights the engine has; None before the first push.
        self.pushed: int | None = None
        self.queue: list[Entry] = []
        self.admitted = self.trained = self.dropped = 0
        self.dropped_now = 0

    def room(self) -> int:
        """How many groups may be admitted now: those whose turn comes soon enough."""
        if self.pushed is None or self.dropped_now >= self.most_dropped:
            return 0
        last_turn = min(self.pushed + self.max_staleness, self.rounds - 1)
        return max(0, (last_turn - self.round + 1) * self.size - len(self.queue))

    def admit(self, group: Group) -> Entry:
        """Put a group at the end of the queue."""
        entry = Entry(group, Group(group.prompt, [], group.draw))
        self.queue.append(entry)
        self.admitted += 1
        return entry

    def drop(self, entry: Entry) -> None:
        """Take a group without a signal out of the queue: those behind it move up."""
        self.queue.remove(entry)
        self.dropped += 1
        self.dropped_now += 1

    def is_ready(self) -> bool:
        """Whether the next `size` groups in line are whole."""
        return len(self.queue) >= self.size and self.head_waiting() == self.size

    def is_exhausted(self) -> bool:
        """Whether the round dropped as many groups as it may, and nothing that is in flight could still fill it."""
        return self.dropped_now >= self.most_dropped and len(self.queue) < self.size and not self.in_flight()

    def head_waiting(self) -> int:
        """How many of the next `size` groups are whole."""
        return sum(entry.stage is Stage.WAITING for entry in self.queue[: self.size])

    def take(self) -> list[Entry]:
        """The next round's groups; fewer than `size` only where it is exhausted."""
        chosen = self.queue[: self.size]
        assert all(entry.stage is Stage.WAITING for entry in chosen), "a group was taken before it was whole"
        del self.queue[: self.size]
        self.trained += len(chosen)
        self.round += 1
        self.dropped_now = 0
        return chosen

    def reinstate(self, count: int) -> None:
        """`count` dropped groups are trained after all, to fill a round that is exhausted."""
        self.dropped -= count
        self.trained += count

    def in_flight(self) -> list[Entry]:
        return [entry for entry in self.queue if entry.stage is not Stage.WAITING]

    def waiting(self) -> list[Entry]:
        return [entry for entry in self.queue if entry.stage is Stage.WAITING]

    def keys(self) -> set[str]:
        """Content keys of the prompts in the queue."""
        return {entry.group.prompt.content_key for entry in self.queue}

    def check(self) -> None:
        """Every admitted group is accounted for, once."""
        there = self.trained + self.dropped + len(self.waiting()) + len(self.in_flight())
        assert self.admitted == there, f"{self.admitted} groups were admitted, {there} are accounted for"
        draws = [entry.group.draw for entry in self.queue]
        assert draws == sorted(set(draws)), f"the queue is not in the order of the draws: {draws}"

    def metrics(self) -> dict[str, float]:
        return {
            "pipeline/admitted": float(self.admitted),
            "pipeline/trained": float(self.trained),
            "pipeline/dropped": float(self.dropped),
            "pipeline/waiting": float(len(self.waiting())),
            "pipeline/in_flight": float(len(self.in_flight())),
        }

    def counters(self) -> Iterator[tuple[str, int]]:
        """What a checkpoint keeps beside the queue."""
        for name in ("round", "admitted", "trained", "dropped", "dropped_now"):
            yield name, getattr(self, name)
