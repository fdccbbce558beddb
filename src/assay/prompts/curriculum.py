"""Which prompts the next round generates for, and what was learned about them."""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.prompts.beliefs import PRIOR, Beliefs, expected_mixed, fit_prior, histogram
from assay.prompts.options import CurriculumOptions
from assay.prompts.selection import Selector, View, load_selector
from assay.records import Group, Prompt

ALL_TASKS = "all tasks"


class Curriculum:
    """Draws prompts from a pool by task shares and a selection policy, and learns from the scored groups.

    `prompts` is the training pool. `num_generations` (G) only serves the forecast of mixed groups. `task_weights` are
    shares of draws by task; without them the policy chooses among all prompts, whatever their task. A draw holds no
    prompt twice unless there are fewer prompts than were asked for: then they repeat, each repetition being a group of
    its own. Nothing here waits for a prompt to be informative, so a solved or an impossible pool cannot hang a run: it
    is drawn from as before, the longest unseen prompts first, and `note` says so.

    Rows with columns `assay_right` and `assay_wrong` (from `assay filter`) start from those counts. A row's
    `assay_weight` below 1 is the chance that it may be chosen in a draw, until its answers have been seen to differ;
    the share for exploration reaches it all the same.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        options: CurriculumOptions,
        *,
        num_generations: int,
        seed: int,
        task_weights: Mapping[str, float] | None = None,
    ) -> None:
        if not prompts:
            raise InputError("the training pool has no prompts; nothing can be drawn from it")
        self.prompts = list(prompts)
        self.options = options
        self.num_generations = num_generations
        self.seed = seed
        self.beliefs = Beliefs(options.discount)
        self.slots = self.beliefs.slots(prompt.content_key for prompt in self.prompts)
        self.seed_beliefs()
        self.in_pool = {prompt.content_key for prompt in self.prompts}
        tasks = dict.fromkeys(prompt.task for prompt in self.prompts)
        self.stream_of = {task: task if task_weights else ALL_TASKS for task in tasks}
        members: dict[str, list[int]] = defaultdict(list)
        for position, prompt in enumerate(self.prompts):
            members[self.stream_of[prompt.task]].append(position)
        self.streams = {name: Stream(self, np.array(positions)) for name, positions in members.items()}
        self.weights = shares(task_weights or {ALL_TASKS: 1.0}, members)
        self.credits = dict.fromkeys(self.weights, 0.0)
        self.draws = 0
        self.task_counts = {task: TaskCounts() for task in tasks}

    def seed_beliefs(self) -> None:
        for prompt in self.prompts:
            right, wrong = prompt.row.get("assay_right"), prompt.row.get("assay_wrong")
            if right or wrong:
                self.beliefs.seed(prompt.content_key, float(right or 0), float(wrong or 0))

    def draw(self, n: int, avoid: Collection[str] = ()) -> list[Prompt]:
        """The next `n` prompts, always exactly n; weighted tasks alternate: any part of the draw has their shares.

        `avoid` holds content keys that come last in line, such as those of a batch that is being refilled.
        """
        turns = []
        for _ in range(n):
            for name, weight in self.weights.items():
                self.credits[name] += weight
            name = max(self.credits, key=lambda name: self.credits[name])
            self.credits[name] -= 1.0
            turns.append(name)
        chosen = {
            name: iter(self.streams[name].draw(turns.count(name), self.draws, avoid)) for name in dict.fromkeys(turns)
        }
        self.draws += 1
        return [self.prompts[next(chosen[name])] for name in turns]

    def observe(self, groups: Sequence[Group]) -> None:
        """Learn from scored groups; completions without a verdict (`correct` None) do not count either way.

        Raises InputError for a prompt outside the pool: held-out prompts never steer training.
        """
        seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for group in groups:
            key = group.prompt.content_key
            if key not in self.in_pool:
                raise InputError(
                    f"prompt {key} is not in the training pool; held-out prompts never feed the curriculum"
                )
            verdicts = [completion.correct for completion in group.completions]
            right, wrong = verdicts.count(True), verdicts.count(False)
            self.beliefs.observe(key, right, wrong, self.draws)
            self.task_counts[group.prompt.task].add(group, right, wrong)
            if right + wrong:
                seen[self.stream_of[group.prompt.task]].append((right, wrong))
        for name, counts in seen.items():
            right_counts, wrong_counts = np.array(counts).T
            self.streams[name].selector.observe(right_counts, wrong_counts)

    def forecast(self, prompts: Sequence[Prompt]) -> float:
        """Expected share of mixed groups when each of these prompts gets one group of G."""
        right, wrong = self.beliefs.right, self.beliefs.wrong
        slots = self.beliefs.slots(prompt.content_key for prompt in prompts)
        prior = fit_prior(right[self.slots], wrong[self.slots])
        return float(expected_mixed(right[slots], wrong[slots], self.num_generations, prior).mean())

    @property
    def rates(self) -> np.ndarray:
        """Expected pass rates [N] of the pool's prompts, in its order."""
        right, wrong = self.beliefs.right[self.slots], self.beliefs.wrong[self.slots]
        return (PRIOR + right) / (2 * PRIOR + right + wrong)

    def metrics(self) -> dict[str, float]:
        """Pool sizes, and per task what was generated since the last call."""
        visits, streak = self.beliefs.visits[self.slots], self.beliefs.streak[self.slots]
        seen = visits > 0
        found = {
            "curriculum/pool": float(len(self.prompts)),
            "curriculum/frac_seen": float(seen.mean()),
            "curriculum/frac_resting": float(
                np.concatenate([stream.resting() for stream in self.streams.values()]).mean()
            ),
            "curriculum/frac_last_all_correct": float((streak > 0).mean()),
            "curriculum/frac_last_all_wrong": float((streak < 0).mean()),
            "curriculum/expected_mixed": self.forecast(self.prompts),
        }
        if seen.any():
            found |= {f"curriculum/pass_rate_{bin}0": float(count) for bin, count in enumerate(self.histogram())}
            found["curriculum/mean_pass_rate"] = float(self.rates[seen].mean())
        if len(self.task_counts) > 1:
            for task, counts in self.task_counts.items():
                found |= {f"tasks/{task}/{name}": value for name, value in counts.means().items()}
        self.task_counts = {task: TaskCounts() for task in self.task_counts}
        return found

    def histogram(self, bins: int = 10) -> list[int]:
        """Numbers of prompts by expected pass rate; prompts never seen stand at one half and are left out."""
        return histogram(self.rates[self.beliefs.visits[self.slots] > 0], bins)

    def note(self) -> str | None:
        """One line where the pool as a whole has nothing to teach, else None. Single answers cannot tell."""
        if self.num_generations == 1:
            return None
        streak, visits = self.beliefs.streak[self.slots], self.beliefs.visits[self.slots]
        if not (visits > 0).all() or (streak == 0).any():
            return None
        advice = {
            (True, False): "all right: nothing is left to learn here, add harder data",
            (False, True): "all wrong: check the verifier and correct_threshold, then take easier data or fine-tune",
        }.get(
            (bool((streak > 0).any()), bool((streak < 0).any())), "either all right or all wrong: no group has a signal"
        )
        return f"at their last visit the answers to each of the {len(streak)} training prompts were {advice}"

    def table(self) -> list[dict[str, Any]]:
        """One row a prompt of the pool, for export."""
        rows = self.beliefs.table()
        return [{**rows[slot], "task": prompt.task} for slot, prompt in zip(self.slots, self.prompts)]

    def fingerprint(self) -> str:
        """Identity of the pool and policy; positions in a saved state mean something only where it is the same."""
        names = [self.options.policy, *self.streams]
        text = "\n".join([*names, *(prompt.content_key for prompt in self.prompts)])
        return hashlib.sha256(text.encode()).hexdigest()

    def state_dict(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint(),
            "draws": self.draws,
            "beliefs": self.beliefs.state_dict(),
            "credits": dict(self.credits),
            "streams": {name: stream.state_dict() for name, stream in self.streams.items()},
            "task_counts": {task: counts.state_dict() for task, counts in self.task_counts.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Exact for the same pool and policy. With another, counts of known prompts stay and epochs start anew."""
        self.beliefs.load_state_dict(state["beliefs"])
        self.slots = self.beliefs.slots(prompt.content_key for prompt in self.prompts)
        self.seed_beliefs()
        self.draws = state["draws"]
        for stream in self.streams.values():
            stream.slots = self.slots[stream.positions]
        if state["fingerprint"] != self.fingerprint():
            warnings.warn("the training pool or policy changed: known counts stay, epochs start anew", stacklevel=2)
            return
        self.credits = dict(state["credits"])
        for name, stream in self.streams.items():
            stream.load_state_dict(state["streams"][name])
        for task, counts in self.task_counts.items():
            counts.load_state_dict(state["task_counts"][task])


class Stream:
    """The prompts of one task, or of all, and the policy that orders them. Positions are indices into the pool."""

    def __init__(self, curriculum: Curriculum, positions: np.ndarray) -> None:
        self.beliefs = curriculum.beliefs
        self.options = curriculum.options
        self.seed = curriculum.seed
        self.positions = positions
        self.slots = curriculum.slots[positions]
        self.keys = [curriculum.prompts[position].content_key for position in positions]
        self.selector: Selector = load_selector(curriculum.options)
        self.last_drawn = np.full(len(positions), -1)
        self.owed = 0.0
        rows = [curriculum.prompts[position].row for position in positions]
        self.difficulty = np.array([as_number(row.get("difficulty")) for row in rows])
        self.weights = np.array([as_weight(row.get("assay_weight")) for row in rows])

    def view(self, taken: np.ndarray, passed_over: np.ndarray) -> View:
        beliefs, slots = self.beliefs, self.slots
        return View(
            beliefs.right[slots],
            beliefs.wrong[slots],
            beliefs.visits[slots],
            beliefs.streak[slots],
            self.difficulty,
            self.resting() | passed_over,
            taken,
        )

    def passed_over(self, number: int) -> np.ndarray:
        """Prompts [N] that their weight keeps out of draw `number`; none whose answers have been seen to differ."""
        if (self.weights == 1).all():
            return np.zeros(len(self.weights), bool)
        differed = np.minimum(self.beliefs.right[self.slots], self.beliefs.wrong[self.slots]) > 0
        luck = np.random.default_rng([self.seed, number, int(self.positions[0]), 1]).random(len(self.weights))
        return ~differed & (luck >= self.weights)

    def resting(self) -> np.ndarray:
        """Prompts [N] at an expected pass rate of `retire_at`: ScaleRL's no-positive-resampling, with a way back."""
        if self.options.retire_at is None:
            return np.zeros(len(self.slots), bool)
        right, wrong = self.beliefs.right[self.slots], self.beliefs.wrong[self.slots]
        return (PRIOR + right) / (2 * PRIOR + right + wrong) >= self.options.retire_at

    def draw(self, n: int, number: int, avoid: Collection[str] = ()) -> list[int]:
        """`n` positions: a share that the policy would forget, the policy's choice, then the longest unseen."""
        rng = np.random.default_rng([self.seed, number, int(self.positions[0])])
        avoided = np.array([key in avoid for key in self.keys]) if avoid else np.zeros(len(self.keys), bool)
        passed_over = self.passed_over(number)
        chosen: list[int] = []
        while len(chosen) < n:
            batch = min(n - len(chosen), len(self.positions))
            taken = avoided.copy()
            found = self.explore(batch, taken, rng)
            taken[found] = True
            found += self.chosen_by_policy(batch - len(found), taken, passed_over, rng)
            taken[found] = True
            found += self.longest_unseen(~taken, batch - len(found), rng)
            if len(found) < batch:
                taken = np.isin(np.arange(len(taken)), found)
                found += self.longest_unseen(~taken, batch - len(found), rng)
            self.last_drawn[found] = number
            chosen += found
        return self.positions[chosen].tolist()

    def chosen_by_policy(
        self, n: int, taken: np.ndarray, passed_over: np.ndarray, rng: np.random.Generator
    ) -> list[int]:
        view = self.view(taken, passed_over)
        found = self.selector.choose(view, n, rng).tolist()
        if len(set(found)) != len(found) or len(found) > n or not view.eligible[found].all():
            raise InputError(
                f"curriculum.policy {self.options.policy!r} chose {found[:20]} when asked for {n}; "
                "choose must return at most that many different positions where view.eligible is True"
            )
        return found

    def explore(self, n: int, taken: np.ndarray, rng: np.random.Generator) -> list[int]:
        """The longest unseen prompts' share of the draw; a policy that sweeps forgets only those that rest."""
        self.owed += self.options.exploration * n
        share = int(self.owed)
        self.owed -= share
        forgotten = self.resting() if self.selector.sweeps else np.ones(len(self.positions), bool)
        return self.longest_unseen(forgotten & ~taken, share, rng)

    def longest_unseen(self, among: np.ndarray, n: int, rng: np.random.Generator) -> list[int]:
        luck = rng.random(len(among))
        candidates = np.flatnonzero(among)
        order = np.lexsort((luck[candidates], self.last_drawn[candidates]))
        return candidates[order[:n]].tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"selector": self.selector.state_dict(), "last_drawn": self.last_drawn.tolist(), "owed": self.owed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.selector.load_state_dict(state["selector"])
        self.last_drawn = np.array(state["last_drawn"], int)
        self.owed = state["owed"]


class TaskCounts:
    """What one task's groups came to since the last report."""

    names = ("groups", "right", "wrong", "all_correct", "all_wrong", "reward", "rewarded")

    def __init__(self) -> None:
        self.sums = dict.fromkeys(self.names, 0.0)

    def add(self, group: Group, right: int, wrong: int) -> None:
        rewards = [completion.reward for completion in group.completions if completion.reward is not None]
        found = (1, right, wrong, right > 0 and not wrong, wrong > 0 and not right, sum(rewards), len(rewards))
        for name, value in zip(self.names, found):
            self.sums[name] += float(value)

    def means(self) -> dict[str, float]:
        """Absent where nothing was measured."""
        sums = self.sums
        found = {"groups": sums["groups"]}
        if sums["groups"]:
            found |= {f"frac_{name}": sums[name] / sums["groups"] for name in ("all_correct", "all_wrong")}
            found["frac_mixed"] = 1.0 - found["frac_all_correct"] - found["frac_all_wrong"]
        if sums["right"] + sums["wrong"]:
            found["pass_rate"] = sums["right"] / (sums["right"] + sums["wrong"])
        if sums["rewarded"]:
            found["reward"] = sums["reward"] / sums["rewarded"]
        return found

    def state_dict(self) -> dict[str, float]:
        return dict(self.sums)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.sums = dict(state)


def shares(weights: Mapping[str, float], tasks: Mapping[str, Any]) -> dict[str, float]:
    """Weights of the tasks that the pool has, scaled to sum to 1."""
    unknown = sorted(set(weights) - set(tasks))
    known = {task: float(weights.get(task, 0.0)) for task in tasks}
    if unknown or sum(known.values()) <= 0 or min(known.values()) < 0:
        raise InputError(
            f"task weights are {dict(weights)}; the pool has tasks {', '.join(tasks)}: "
            "give each a weight of 0 or more, at least one above 0"
        )
    total = sum(known.values())
    return {task: weight / total for task, weight in known.items()}


def as_number(value: Any) -> float:
    """A difficulty label as a float, NaN where there is none; labels that are not numbers are the user's mistake."""
    if value is None:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"a difficulty label is {value!r}; difficulties are numbers, larger is harder") from error


def as_weight(value: Any) -> float:
    """`assay_weight` of a row, 1 where there is none. Not 0: what is never to be drawn should be left out."""
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InputError(f"assay_weight is {value!r} in a row; it must be a number above 0 and at most 1")
    return float(value)
