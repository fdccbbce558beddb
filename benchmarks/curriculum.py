"""How much generation a selection policy saves, measured without a model.

Every prompt is a Bernoulli whose log-odds rise as the policy trains: a group with right and wrong answers moves its
own prompt by `own` and all learnable prompts by `shared`, in proportion to the group's p(1-p), the size of a
policy-gradient step on it; a uniform group moves nothing. 60% of the pool teaches nothing: half of that is solved from
the start (p = 0.99), half is impossible (p = 0.001) and stays so. Counted are the completions until the learnable
prompts reach a mean pass rate of 0.8. Every seed is a pool of its own, and all policies meet the same pools. AdaRFT
alone is given true initial difficulties.

    python benchmarks/curriculum.py [--seeds 20] [--json]
    python benchmarks/curriculum.py --model runs/curriculum    # once with a real model: uniform against the default
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.prompts import Curriculum, CurriculumOptions, Refill, RefillOptions, collect
from assay.records import Completion, Finish, Group, Prompt

TARGET = 0.8
UNINFORMATIVE = 0.6
GENERATIONS = 8
RIGHT = Completion([], Finish.STOP, reward=1.0, correct=True)
WRONG = Completion([], Finish.STOP, reward=0.0, correct=False)

# how far a group with p = 1/2 moves log-odds: of its own prompt, and of every learnable prompt
WORLDS = {
    "prompts learn alone": {"own": 0.35, "shared": 0.0},
    "prompts help each other": {"own": 0.1, "shared": 0.001},
}
DROP = {"dynamic_sampling": True}
PLANS: dict[str, tuple[str, RefillOptions]] = {
    "uniform": ("uniform", RefillOptions()),
    "thompson (default)": ("thompson", RefillOptions()),
    "mid_range": ("mid_range", RefillOptions()),
    "greso": ("greso", RefillOptions()),
    "adarft": ("adarft", RefillOptions()),
    "easy_to_hard": ("easy_to_hard", RefillOptions()),
    "uniform + dynamic sampling": ("uniform", RefillOptions(**DROP)),
    "uniform + screening of 4": ("uniform", RefillOptions(**DROP, screen=4)),
    "thompson + dynamic sampling": ("thompson", RefillOptions(**DROP)),
    "thompson + screening of 4": ("thompson", RefillOptions(**DROP, screen=4)),
}


class World:
    """A pool of prompts that learn. `spent` counts completions."""

    def __init__(self, size: int, seed: int, own: float, shared: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.own, self.shared = own, shared
        order = self.rng.permutation(size)
        solved, impossible = np.split(order[: round(size * UNINFORMATIVE)], 2)
        start = self.rng.uniform(0.05, 0.6, size)
        start[solved], start[impossible] = 0.99, 0.001
        self.learnable = np.isin(np.arange(size), order[round(size * UNINFORMATIVE) :])
        self.logits = np.log(start / (1 - start))
        self.prompts = [
            Prompt("", (1,), {"difficulty": 1 - rate}, content_key=str(index)) for index, rate in enumerate(start)
        ]
        self.spent = 0

    @property
    def rates(self) -> np.ndarray:
        return 1 / (1 + np.exp(-self.logits))

    def done(self) -> bool:
        return bool(self.rates[self.learnable].mean() >= TARGET)

    def sample(self, prompts: Sequence[Prompt], n: int | None) -> list[Group]:
        n = n or GENERATIONS
        self.spent += n * len(prompts)
        right = self.rng.binomial(n, self.rates[[int(prompt.content_key) for prompt in prompts]])
        return [Group(prompt, [RIGHT] * int(c) + [WRONG] * int(n - c)) for prompt, c in zip(prompts, right)]

    def extend(self, groups: Sequence[Group]) -> None:
        for group in groups:
            (more,) = self.sample([group.prompt], GENERATIONS - len(group.completions))
            group.completions += more.completions

    def learn(self, groups: Sequence[Group]) -> None:
        for group in groups:
            rate = sum(completion is RIGHT for completion in group.completions) / len(group.completions)
            signal = 4 * rate * (1 - rate)
            self.logits[int(group.prompt.content_key)] += self.own * signal
            self.logits[self.learnable] += self.shared * signal


def run(plan: str, scene: World, batch: int, seed: int, most: float) -> dict[str, float]:
    """Train one world to the target, or until `most` completions."""
    policy, refill = PLANS[plan]
    options = CurriculumOptions(policy=policy, retire_at=None if policy == "uniform" else 0.9)
    curriculum = Curriculum(scene.prompts, options, num_generations=GENERATIONS, seed=seed)
    books, mixed, trained = Refill(refill), 0, 0
    while not scene.done() and scene.spent < most:
        found = collect(books, curriculum, batch, scene.sample, scene.extend)
        scene.learn(found.groups)
        trained += len(found.groups)
        mixed += sum(len({completion.correct for completion in group.completions}) > 1 for group in found.groups)
    return {"completions": float(scene.spent), "mixed": mixed / trained}


def measure(world: dict[str, float], plans: Sequence[str], seeds: int, size: int, batch: int) -> dict[str, Any]:
    """Per plan: mean ratio to uniform on the same pools, its 2.5% and 97.5% quantiles over seeds, the share mixed."""
    runs: dict[str, list[dict[str, float]]] = {plan: [] for plan in plans}
    for seed in range(seeds):
        for plan in plans:
            most = 5 * runs["uniform"][seed]["completions"] if plan != "uniform" else float("inf")
            runs[plan].append(run(plan, World(size, seed, **world), batch, seed, most))
        print(f"seed {seed + 1} of {seeds}", file=sys.stderr, flush=True)
    found = {}
    for plan in plans:
        ratios = [mine["completions"] / base["completions"] for mine, base in zip(runs[plan], runs["uniform"])]
        found[plan] = {
            "ratio": float(np.mean(ratios)),
            "band": np.quantile(ratios, [0.025, 0.975]).tolist(),
            "completions": float(np.mean([item["completions"] for item in runs[plan]])),
            "mixed": float(np.mean([item["mixed"] for item in runs[plan]])),
        }
    return found


MODEL_RECIPE: dict[str, Any] = {
    "preset": "dapo",
    "model": {"path": "smollm2", "lora_rank": 16},
    "data": {
        "mixture": [
            {
                "name": "email_json",
                "train_size": 16,
                "heldout_size": 32,
                "options": {"fields": ["customer_name", "order_id"]},
            },
            {"name": "multiplication", "train_size": 24, "heldout_size": 0, "options": {"digits": 6}},
        ]
    },
    "rewards": {
        "functions": [
            {"fn": "json_fields", "tasks": ["email_json"]},
            {"fn": "numeric", "tasks": ["multiplication"]},
        ]
    },
    "rollout": {"num_generations": 8, "max_completion_length": 32},
    # Otherwise the preset would draw until every group is mixed, and the policies' draws would not be what is compared.
    "refill": {"dynamic_sampling": False},
    "train": {"prompts_per_step": 4, "learning_rate": 3e-4, "checkpoint_every": 1000},
    "eval": {"every": 6, "prompts": 32, "samples": 0, "kl_to_base": False},
    "monitoring": {"console": "quiet"},
}


def train_model(folder: str, seed: int, steps: int) -> dict[str, Any]:
    """The quick-start model on e-mails with two fields to learn (40%) and six-digit products (60%, hopeless)."""
    import assay

    found: dict[str, Any] = {}
    for policy in ("uniform", "thompson"):
        tree = {
            **MODEL_RECIPE,
            "name": f"{policy}-{seed}",
            "output_dir": folder,
            "seed": seed,
            "train": {**MODEL_RECIPE["train"], "steps": steps},
            "curriculum": {"policy": policy},
        }
        lines = assay.train(tree).metrics()
        mixed = [line["groups/frac_mixed"] for line in lines if "groups/frac_mixed" in line]
        found[policy] = {
            "completions": 32 * len(mixed),
            "mixed": sum(mixed) / len(mixed),
            "mixed_second_half": sum(mixed[len(mixed) // 2 :]) / len(mixed[len(mixed) // 2 :]),
            "heldout": {line["step"]: line["heldout/accuracy"] for line in lines if "heldout/accuracy" in line},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--size", type=int, default=1000, help="prompts in the pool")
    parser.add_argument("--batch", type=int, default=32, help="groups in an update")
    parser.add_argument("--plans", nargs="*", default=list(PLANS), choices=list(PLANS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", metavar="FOLDER", help="train the quick-start model instead, in this folder")
    parser.add_argument("--model-steps", type=int, default=30, help="updates of 4 prompts; the pool has 40")
    parser.add_argument("--model-seed", type=int, default=0)
    given = parser.parse_args()
    if given.model:
        print(json.dumps(train_model(given.model, given.model_seed, given.model_steps), indent=2))
        return
    plans = ["uniform", *(plan for plan in given.plans if plan != "uniform")]
    found = {name: measure(world, plans, given.seeds, given.size, given.batch) for name, world in WORLDS.items()}
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for name, rows in found.items():
        print(f"\n{name}: completions until a mean pass rate of {TARGET}, {given.seeds} seeds")
        for plan, row in rows.items():
            band = "[{:.2f}, {:.2f}]".format(*row["band"])
            print(f"  {plan:<28}{row['completions']:>9.0f}  {row['ratio']:.2f}x {band}  mixed {row['mixed']:.2f}")


if __name__ == "__main__":
    main()
