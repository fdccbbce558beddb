"""How much generation a selection policy saves, measured without a model.

Every prompt is a Bernoulli whose log-odds rise as the policy trains: a group of G with right and wrong answers moves its
own prompt by `own` and all learnable prompts by `shared`, in proportion to the group's p(1-p) (the size of a
policy-gradient step on it); a uniform group moves nothing. 60% of the pool teaches nothing: half of that is solved from
the start (p = 0.99), half is impossible (p = 0.001) and stays so. Counted are the completions until the learnable prompts
reach a mean pass rate of 0.8. Every seed is a pool of its own, and all policies meet the same pools.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import numpy as np

from assay.prompts import Curriculum, CurriculumOptions, Refill, RefillOptions, collect
from assay.prompts.curriculum import Group
from assay.records import Completion, Finish, Prompt

TARGET = 0.8
UNINFORMATIVE = 0.6
RIGHT = Completion([], Finish.STOP, reward=1.0, correct=True)
WRONG = Completion([], Finish.STOP, reward=0.0, correct=False)


class World:
    """A pool of Bernoulli prompts that learn. `spent` counts completions."""

    def __init__(self, size: int, generations: int, own: float, shared: float, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.generations, self.own, self.shared = generations, own, shared
        kind = np.array(["solved", "impossible", "learnable"])[
            self.rng.permutation(np.repeat([0, 1, 2], [round(size * UNINFORMATIVE / 2)] * 2 + [size - 2 * round(size * UNINFORMATIVE / 2)]))
        ]
        self.learnable = kind == "learnable"
        start = np.where(kind == "solved", 0.99, np.where(kind == "impossible", 0.001, self.rng.uniform(0.05, 0.6, size)))
        self.logits = np.log(start / (1 - start))
        self.prompts = [
            Prompt(f"prompt {index}", (1,), {"difficulty": 1 - start[index]}, content_key=str(index)) for index in range(size)
        ]
        self.spent = 0

    @property
    def rates(self) -> np.ndarray:
        return 1 / (1 + np.exp(-self.logits))

    def done(self) -> bool:
        return bool(self.rates[self.learnable].mean() >= TARGET)

    def sample(self, prompts: Sequence[Prompt], n: int | None) -> list[Group]:
        n = n or self.generations
        self.spent += n * len(prompts)
        chosen = np.array([int(prompt.content_key) for prompt in prompts])
        right = self.rng.binomial(n, self.rates[chosen])
        return [Group(prompt, [RIGHT] * int(c) + [WRONG] * int(n - c)) for prompt, c in zip(prompts, right)]

    def extend(self, groups: Sequence[Group]) -> None:
        for group in groups:
            more = self.sample([group.prompt], self.generations - len(group.completions))[0]
            group.completions += more.completions

    def learn(self, groups: Sequence[Group]) -> None:
        for group in groups:
            rate = sum(bool(completion.correct) for completion in group.completions) / len(group.completions)
            signal = 4 * rate * (1 - rate)
            index = int(group.prompt.content_key)
            if self.learnable[index]:
                self.logits[index] += self.own * signal
            self.logits[self.learnable] += self.shared * signal


def run(policy: str, refill: RefillOptions, *, size: int, batch: int, world: dict, seed: int, most: int) -> tuple[int, float]:
    """Completions until the target (or `most`), and the share of trained groups that were mixed."""
    scene = World(size, seed=seed, **world)
    options = CurriculumOptions(policy=policy, **({"retire_at": None} if policy == "uniform" else {}))
    curriculum = Curriculum(scene.prompts, options, num_generations=scene.generations, seed=seed)
    books = Refill(refill)
    mixed = trained = 0
    while not scene.done() and scene.spent < most:
        got = collect(books, curriculum, batch, scene.sample, scene.extend)
        scene.learn(got.groups)
        mixed += sum(len({c.correct for c in group.completions}) > 1 for group in got.groups)
        trained += len(got.groups)
    return scene.spent, mixed / trained


PLANS: dict[str, tuple[str, RefillOptions]] = {
    "uniform": ("uniform", RefillOptions()),
    "mid_range": ("mid_range", RefillOptions()),
    "thompson": ("thompson", RefillOptions()),
    "greso": ("greso", RefillOptions()),
    "adarft": ("adarft", RefillOptions()),
    "easy_to_hard": ("easy_to_hard", RefillOptions()),
    "uniform + dynamic sampling": ("uniform", RefillOptions(dynamic_sampling=True)),
    "uniform + screening of 4": ("uniform", RefillOptions(dynamic_sampling=True, screen=4)),
    "thompson + dynamic sampling": ("thompson", RefillOptions(dynamic_sampling=True)),
    "thompson + screening of 4": ("thompson", RefillOptions(dynamic_sampling=True, screen=4)),
}
WORLDS = {
    "prompts learn alone": {"generations": 8, "own": 0.35, "shared": 0.0},
    "prompts help each other": {"generations": 8, "own": 0.1, "shared": 0.001},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plans", nargs="*", default=list(PLANS))
    arguments = parser.parse_args()
    found: dict[str, dict] = {}
    for world_name, world in WORLDS.items():
        spent: dict[str, list[int]] = {plan: [] for plan in arguments.plans}
        shares: dict[str, list[float]] = {plan: [] for plan in arguments.plans}
        for seed in range(arguments.seeds):
            for plan in arguments.plans:
                policy, refill = PLANS[plan]
                most = 12 * spent["uniform"][seed] if plan != "uniform" else 10**9
                cost, share = run(policy, refill, size=arguments.size, batch=arguments.batch, world=world, seed=seed, most=most)
                spent[plan].append(cost)
                shares[plan].append(share)
            print(f"{world_name}: seed {seed + 1} of {arguments.seeds}", file=sys.stderr, end="\r")
        base = np.array(spent["uniform"], float)
        found[world_name] = {
            plan: {
                "ratio": float(np.mean(np.array(spent[plan]) / base)),
                "band": np.quantile(np.array(spent[plan]) / base, [0.025, 0.975]).tolist(),
                "completions": float(np.mean(spent[plan])),
                "mixed": float(np.mean(shares[plan])),
            }
            for plan in arguments.plans
        }
    if arguments.json:
        print(json.dumps(found))
        return
    for world_name, rows in found.items():
        print(f"\n{world_name}: completions to a mean pass rate of {TARGET}, {arguments.seeds} seeds")
        for plan, row in rows.items():
            low, high = row["band"]
            print(f"  {plan:<28} {row['completions']:>9.0f}  {row['ratio']:.2f}x [{low:.2f}, {high:.2f}]  mixed {row['mixed']:.2f}")


if __name__ == "__main__":
    main()
