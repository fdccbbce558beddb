"""Dynamic sampling: keep groups that carry a signal and draw more prompts until the batch is full.

The rule is DAPO's (arXiv 2503.14476, section 3.2). Nothing here generates or scores: `Refill` keeps the books, and
`collect` is the loop around it for callers that hand in how to sample.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from assay.errors import InputError, RunError
from assay.prompts.curriculum import Curriculum
from assay.prompts.options import RefillOptions
from assay.records import Group, Prompt

MEMORY = 0.9  # what survives of the counts of mixed groups from batch to batch, so that the estimate follows the policy
COUNTS = (
    "generated", "completions", "mixed", "all_correct", "all_wrong", "equal", "unjudged", "screened_out",
)  # fmt: skip
BOOKS = ("from_surplus", "expired", "wasted")


def has_signal(group: Group) -> bool:
    """Whether the rewards of a group differ, by equality; completions without a reward (None) have no say.

    With rewards that are normalised apart (GDPO) hand `Refill` a function that looks at each of them.
    """
    return len({completion.reward for completion in group.completions if completion.reward is not None}) > 1


@dataclass(frozen=True)
class Batch:
    """What a batch came to. `complete` is False where rounds ran out and the fallback decided what to train on.

    `written` are the groups that were generated for it, in the order of their draws: those without a signal and those
    that wait for the next batch too, but not those that had waited for this one.
    """

    groups: list[Group]
    complete: bool
    metrics: dict[str, float]
    written: list[Group]


class Refill:
    """The state of a batch that is being filled, and the mixed groups that wait for the next one.

    One batch: `begin(size)`; while `ask()` is above 0, generate and score that many prompts and `add` their groups;
    `take()`. A checkpoint may follow any of these calls: `state_dict` in the middle of a batch resumes there.

    When `max_rounds` have not filled the batch, `fallback` decides: `short` trains on the mixed groups there are (on
    uniform ones, a step without signal, where there is none), `pad` adds uniform groups up to the size, `stop` raises
    RunError. With `dynamic_sampling` off a batch is one round and everything is kept.
    """

    def __init__(self, options: RefillOptions, informative: Callable[[Group], bool] = has_signal) -> None:
        self.options = options
        self.informative = informative
        self.size: int | None = None
        self.rounds = 0
        self.kept: list[Group] = []
        self.uniform: list[Group] = []
        self.surplus: list[tuple[Group, int]] = []
        self.counts: Counter[str] = Counter()
        # Groups generated and found mixed, older ones fading: the estimate of how many prompts a mixed group costs.
        self.memory = {"mixed": 1.0, "generated": 1.0}

    @property
    def active(self) -> bool:
        """Whether a batch has begun and was not taken yet."""
        return self.size is not None

    @property
    def keys(self) -> set[str]:
        """Content keys of the prompts in this batch so far."""
        return {group.prompt.content_key for group in [*self.kept, *self.uniform]}

    def begin(self, size: int) -> None:
        """Start a batch of `size` groups with what the last one left over."""
        assert not self.active, "a batch has begun already; take() it first"
        young = [(group, age + 1) for group, age in self.surplus if age < self.options.max_surplus_age]
        self.counts = Counter(expired=len(self.surplus) - len(young))
        self.size, self.rounds, self.uniform = size, 0, []
        self.kept, self.surplus = [group for group, _ in young[:size]], young[size:]
        self.counts["from_surplus"] = len(self.kept)
        self.memory = {name: MEMORY * count for name, count in self.memory.items()}

    def ask(self) -> int:
        """How many prompts to generate for now; 0 when the batch is full or the rounds are used up."""
        assert self.size is not None, "begin() a batch first"
        if not self.options.dynamic_sampling:
            return self.size if self.rounds == 0 else 0
        missing = self.size - len(self.kept)
        if missing <= 0 or self.rounds >= self.options.max_rounds:
            return 0
        cost = min(self.memory["generated"] / self.memory["mixed"], self.options.max_oversample)
        return math.ceil(missing * cost)

    def add(self, groups: Sequence[Group], forecast: float | None = None) -> None:
        """Take in one round of scored groups; `forecast` is the share of mixed ones that was expected."""
        self.rounds += 1
        for group in groups:
            mixed = self.informative(group)
            (self.kept if mixed or not self.options.dynamic_sampling else self.uniform).append(group)
            self.counts.update(tally(group, mixed, self.options.screen))
            self.memory["mixed"] += mixed
        self.memory["generated"] += len(groups)
        if forecast is not None:
            self.counts.update({"forecast": forecast * len(groups)})

    def take(self) -> Batch:
        """End the batch: its groups in the order in which they were generated, and its metrics."""
        assert self.size is not None, "begin() a batch first"
        missing = max(0, self.size - len(self.kept))
        fill = {"pad": missing, "short": 0 if self.kept else missing, "stop": 0}[self.options.fallback]
        if missing and self.options.fallback == "stop":
            raise RunError(
                f"dynamic sampling found {len(self.kept)} of {self.size} groups with a signal in {self.rounds} rounds "
                f"({self.counts['generated']:.0f} prompts); raise refill.max_rounds, take data of another difficulty, "
                "or set refill.fallback to short"
            )
        groups = self.kept[: self.size] + self.uniform[:fill]
        left = [(group, 0) for group in self.kept[self.size :]] if self.options.keep_surplus else []
        self.counts["wasted"] = len(self.kept[self.size :]) - len(left)
        self.surplus += left
        written = sorted(self.kept[int(self.counts["from_surplus"]) :] + self.uniform, key=lambda group: group.draw)
        batch = Batch(groups, not missing, self.metrics(missing), written)
        self.size, self.kept, self.uniform = None, [], []
        return batch

    def metrics(self, missing: int) -> dict[str, float]:
        """Counts of this batch, and the multiplier that the curriculum's forecast led to expect."""
        found = refill_metrics(self.counts, missing)
        found |= {f"refill/{name}": float(self.counts[name]) for name in BOOKS}
        found |= {"refill/rounds": float(self.rounds), "refill/surplus": float(len(self.surplus))}
        if self.counts["forecast"]:
            found["refill/multiplier_expected"] = self.counts["generated"] / self.counts["forecast"]
        return found

    def state_dict(self, encode: Callable[[Group], Any]) -> dict[str, Any]:
        """Everything, with groups as `encode` writes them (plain data)."""
        return {
            "size": self.size,
            "rounds": self.rounds,
            "kept": [encode(group) for group in self.kept],
            "uniform": [encode(group) for group in self.uniform],
            "surplus": [(encode(group), age) for group, age in self.surplus],
            "counts": dict(self.counts),
            "memory": dict(self.memory),
        }

    def load_state_dict(self, state: Mapping[str, Any], decode: Callable[[Any], Group]) -> None:
        self.size, self.rounds = state["size"], state["rounds"]
        self.kept = [decode(group) for group in state["kept"]]
        self.uniform = [decode(group) for group in state["uniform"]]
        self.surplus = [(decode(group), age) for group, age in state["surplus"]]
        self.counts, self.memory = Counter(state["counts"]), dict(state["memory"])


def tally(group: Group, mixed: bool, screen: int) -> dict[str, int]:
    """What one generated and marked group adds to the counts, whether or not it is trained on."""
    return {
        "generated": 1,
        "completions": len(group.completions),
        "mixed" if mixed else kind_of_uniform(group): 1,
        "screened_out": not mixed and len(group.completions) == screen,
    }


def refill_metrics(counts: Mapping[str, float], missing: int) -> dict[str, float]:
    """Counts over all groups that were generated; `multiplier` is groups generated for each mixed one."""
    found = {f"refill/{name}": float(counts.get(name, 0)) for name in COUNTS} | {"refill/missing": float(missing)}
    if counts.get("mixed"):
        found["refill/multiplier"] = counts["generated"] / counts["mixed"]
    return found


def kind_of_uniform(group: Group) -> str:
    """Why a group has no signal: all right, all wrong, equal rewards of another kind, or nothing to compare."""
    if sum(completion.reward is not None for completion in group.completions) < 2:
        return "unjudged"
    verdicts = {completion.correct for completion in group.completions}
    if len(verdicts) > 1:
        return "equal"
    return {True: "all_correct", False: "all_wrong", None: "equal"}[verdicts.pop()]


class Sample(Protocol):
    """Generate and score `n` completions of each prompt; None means as many as a group has."""

    def __call__(self, prompts: Sequence[Prompt], n: int | None) -> list[Group]: ...


def collect(
    refill: Refill,
    curriculum: Curriculum,
    size: int,
    sample: Sample,
    extend: Callable[[Sequence[Group]], None] | None = None,
    saved: Callable[[], None] = lambda: None,
) -> Batch:
    """Fill one batch of `size` groups; continues a batch that was interrupted.

    `extend` adds the remaining completions to groups that passed the screening of `refill.screen` samples (SPEED,
    arXiv 2506.09016) and scores them. `saved` is called after every round, when a checkpoint may be taken. The
    curriculum observes every group, kept or not.
    """
    if refill.options.screen and extend is None:
        raise InputError(
            f"refill.screen is {refill.options.screen}, but this engine cannot continue groups; set it to 0"
        )
    if not refill.active:
        refill.begin(size)
    while asked := refill.ask():
        prompts = curriculum.draw(asked, avoid=refill.keys)
        forecast = curriculum.forecast(prompts)
        groups = sample(prompts, refill.options.screen or None)
        if refill.options.screen and extend is not None:
            extend([group for group in groups if refill.informative(group)])
        curriculum.observe(groups)
        refill.add(groups, forecast)
        saved()
    return refill.take()
