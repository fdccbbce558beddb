"""Selection policies: given what is known of the prompts, which of them come next.

A policy is an object with `choose`, or a plain function wrapped by `Stateless`. It sees a `View` and returns positions.
A new policy is one function or small class here and one line in `SELECTORS`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from assay.errors import InputError
from assay.prompts.beliefs import PRIOR
from assay.prompts.loading import load_function
from assay.prompts.options import CurriculumOptions

RNG = np.random.Generator


@dataclass(frozen=True)
class View:
    """What a policy may look at, arrays [N] over the prompts of one task.

    `right` and `wrong` are discounted counts, `streak` the signed run of uniform groups, `difficulty` labels (NaN where
    there are none), `resting` True for prompts set aside as solved, `taken` True for those already in this draw.
    """

    right: np.ndarray
    wrong: np.ndarray
    visits: np.ndarray
    streak: np.ndarray
    difficulty: np.ndarray
    resting: np.ndarray
    taken: np.ndarray

    @property
    def eligible(self) -> np.ndarray:
        return ~(self.resting | self.taken)

    @property
    def alpha(self) -> np.ndarray:
        return PRIOR + self.right

    @property
    def beta(self) -> np.ndarray:
        return PRIOR + self.wrong

    @property
    def rate(self) -> np.ndarray:
        return self.alpha / (self.alpha + self.beta)


class Selector(Protocol):
    """`choose` returns at most `n` different eligible positions, fewer only if fewer are eligible.

    `sweeps` says that the policy by itself comes back to every prompt, so that no share for exploration is needed.
    """

    sweeps: bool

    def choose(self, view: View, n: int, rng: RNG) -> np.ndarray: ...

    def observe(self, right: np.ndarray, wrong: np.ndarray) -> None:
        """Counts of right and wrong answers in the groups of a round, arrays [groups]."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Stateless:
    """A policy that is a function score(view, rng) -> [N]: the prompts with the smallest scores are taken."""

    sweeps = False

    def __init__(self, score: Callable[[View, RNG], np.ndarray]) -> None:
        self.score = score

    def choose(self, view: View, n: int, rng: RNG) -> np.ndarray:
        # Scores are drawn for all prompts so that which ones rest does not change the others' luck.
        scores = self.score(view, rng)
        candidates = np.flatnonzero(view.eligible)
        return candidates[np.argsort(scores[candidates], kind="stable")[:n]]

    def observe(self, right: np.ndarray, wrong: np.ndarray) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


class Sweep(Stateless):
    """Epoch after epoch over all prompts in the order that `score` gives at the start of each epoch."""

    sweeps = True

    def __init__(self, score: Callable[[View, RNG], np.ndarray]) -> None:
        super().__init__(score)
        self.queue: list[int] = []
        self.epoch = 0

    def choose(self, view: View, n: int, rng: RNG) -> np.ndarray:
        wanted = min(n, int(view.eligible.sum()))
        chosen: list[int] = []
        passed_over: list[int] = []
        self.queue = self.walk(self.queue, view, wanted, rng, chosen, passed_over)
        if len(chosen) < wanted:
            # Whatever is still queued waits for its turn; the epoch behind it holds every prompt, so one is enough.
            self.epoch += 1
            order = np.argsort(self.score(view, rng), kind="stable").tolist()
            self.queue = self.queue + self.walk(order, view, wanted, rng, chosen, passed_over)
        return np.array((chosen + passed_over)[:wanted], int)

    def walk(
        self, queue: list[int], view: View, wanted: int, rng: RNG, chosen: list[int], passed_over: list[int]
    ) -> list[int]:
        """Go along a queue until enough are chosen; returns what is left, first those who are in this draw already."""
        taken, later, seen = {*chosen, *passed_over}, [], 0
        for position in queue:
            if len(chosen) == wanted:
                break
            seen += 1
            if position in taken or view.taken[position]:
                later.append(position)
            elif view.eligible[position]:
                (chosen if self.passes(view, position, rng) else passed_over).append(position)
                taken.add(position)
        return later + queue[seen:]

    def passes(self, view: View, position: int, rng: RNG) -> bool:
        """Whether the sweep takes this prompt when it comes to it."""
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"queue": list(self.queue), "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.queue, self.epoch = list(state["queue"]), state["epoch"]


def in_random_order(view: View, rng: RNG) -> np.ndarray:
    return rng.random(len(view.right))


def easiest_first(view: View, rng: RNG) -> np.ndarray:
    """By difficulty label where every prompt has one, else by expected pass rate; ties in random order."""
    key = -view.rate if np.isnan(view.difficulty).any() else view.difficulty
    return np.argsort(np.lexsort((rng.random(len(key)), key)))


def mid_range(view: View, rng: RNG) -> np.ndarray:
    """Sample without replacement with weights E[p(1-p)] = ab / ((a+b)(a+b+1)).

    Exponential races: the n smallest of Exp(1) / w are such a sample (Efraimidis and Spirakis 2006).
    """
    total = view.alpha + view.beta
    return rng.exponential(size=len(total)) * total * (total + 1) / (view.alpha * view.beta)


def thompson(target: float) -> Callable[[View, RNG], np.ndarray]:
    """Draw a pass rate from each prompt's posterior and take those nearest to the target (MoPPS, arXiv 2507.04632)."""

    def score(view: View, rng: RNG) -> np.ndarray:
        return np.abs(rng.beta(view.alpha, view.beta) - target)

    return score


class Greso(Sweep):
    """Skip prompts that kept giving uniform groups, with a probability that grows with each one (arXiv 2506.02177).

    A prompt with z uniform groups in a row is taken with probability max(p^z, 0.01); p moves by 0.01 a round, apart for
    all-right and all-wrong prompts, so that their shares approach 1/12 and 1/6 (a quarter in all). If skipping leaves a
    draw short, skipped prompts fill it.
    """

    step, floor = 0.01, 0.01
    targets: ClassVar = {"easy": 1 / 12, "hard": 1 / 6}

    def __init__(self) -> None:
        super().__init__(in_random_order)
        self.keep = {"easy": 0.5, "hard": 0.5}

    def passes(self, view: View, position: int, rng: RNG) -> bool:
        streak = int(view.streak[position])
        keep = self.keep["easy" if streak > 0 else "hard"] ** abs(streak)
        return bool(rng.random() < max(keep, self.floor))

    def observe(self, right: np.ndarray, wrong: np.ndarray) -> None:
        shares = {"easy": np.mean(wrong == 0), "hard": np.mean(right == 0)}
        for side, share in shares.items():
            change = -self.step if share >= self.targets[side] else self.step
            self.keep[side] = float(np.clip(self.keep[side] + change, self.floor, 1.0))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "keep": dict(self.keep)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.keep = dict(state["keep"])


class AdaRFT(Stateless):
    """Follow a target difficulty T that rises while more than half is right (arXiv 2504.05520).

    T += eta tanh(2 (R - 0.5)); eta is half of the range of the labels, as the paper's 50 is of its 0 to 100. Among the
    4n prompts nearest to T the least visited are taken: the paper's rule alone would draw the same n until T moved.
    """

    sensitivity = 2.0

    def __init__(self, target: float) -> None:
        super().__init__(in_random_order)
        self.goal = target
        self.level: float | None = None
        self.range = (0.0, 0.0)

    def choose(self, view: View, n: int, rng: RNG) -> np.ndarray:
        if np.isnan(view.difficulty).any():
            missing = int(np.isnan(view.difficulty).sum())
            raise InputError(
                f"curriculum.policy adarft needs a difficulty number for every prompt, {missing} have none; "
                "set data.fields.difficulty to the column that holds it"
            )
        self.range = (float(view.difficulty.min()), float(view.difficulty.max()))
        level = self.range[0] if self.level is None else self.level
        candidates = np.flatnonzero(view.eligible)
        luck = rng.random(len(view.right))
        near = candidates[np.lexsort((luck[candidates], np.abs(view.difficulty[candidates] - level)))][: 4 * n]
        return near[np.lexsort((luck[near], view.visits[near]))][:n]

    def observe(self, right: np.ndarray, wrong: np.ndarray) -> None:
        low, high = self.range
        level = low if self.level is None else self.level
        reward = right.sum() / (right.sum() + wrong.sum())
        moved = level + (high - low) / 2 * np.tanh(self.sensitivity * (reward - self.goal))
        self.level = float(np.clip(moved, low, high))

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "range": list(self.range)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.level, self.range = state["level"], tuple(state["range"])


SELECTORS: dict[str, Callable[[CurriculumOptions], Selector]] = {
    "uniform": lambda options: Sweep(in_random_order),
    "easy_to_hard": lambda options: Sweep(easiest_first),
    "mid_range": lambda options: Stateless(mid_range),
    "thompson": lambda options: Stateless(thompson(options.target)),
    "greso": lambda options: Greso(),
    "adarft": lambda options: AdaRFT(options.target),
}


def load_selector(options: CurriculumOptions) -> Selector:
    """The policy that `curriculum.policy` names: built in, or module:name of a score function or a Selector class."""
    if options.policy in SELECTORS:
        return SELECTORS[options.policy](options)
    if ":" not in options.policy:
        close = difflib.get_close_matches(options.policy, SELECTORS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(SELECTORS)}, or module:name of your own"
        raise InputError(f"curriculum.policy {options.policy!r} does not exist; {hint}")
    made = load_function(options.policy, "curriculum.policy")
    return made() if isinstance(made, type) else Stateless(made)
