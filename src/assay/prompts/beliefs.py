"""What is known of every prompt: discounted Beta counts of right and wrong answers, which all policies read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import betaln, xlog1py, xlogy

PRIOR = 1.0
GRID = np.sin(np.linspace(0.0, np.pi / 2, 41)) ** 2  # pass rates from 0 to 1, closer together near the ends
FLAT = np.gradient(GRID) / np.gradient(GRID).sum()
FLAT_PROMPTS = 1.0


class Beliefs:
    """Beta(1 + right, 1 + wrong) for each content key, where older counts fade by `discount` at every new observation.

    MoPPS (arXiv 2507.04632) writes the same update as a <- discount * a + (1 - discount) * a0 + s. `streak` counts
    consecutive groups without a difference: positive when all were right, negative when all were wrong, 0 after a mixed
    one. Arrays are indexed by slot; `slots` gives a key its slot on first sight.

    >>> beliefs = Beliefs(discount=0.5)
    >>> beliefs.observe("k", right=6, wrong=2, step=0)
    >>> beliefs.observe("k", right=0, wrong=8, step=1)
    >>> beliefs.table()[0]["right"], beliefs.table()[0]["wrong"]
    (3.0, 9.0)
    """

    columns: ClassVar = {"right": float, "wrong": float, "visits": int, "streak": int, "last_seen": int}

    def __init__(self, discount: float = 0.5) -> None:
        self.discount = discount
        self.keys: list[str] = []
        self.index: dict[str, int] = {}
        self.arrays: dict[str, np.ndarray] = {name: np.zeros(0, kind) for name, kind in self.columns.items()}

    def __getattr__(self, name: str) -> np.ndarray:
        arrays = self.__dict__.get("arrays", {})
        if name not in arrays:
            raise AttributeError(name)
        return arrays[name]

    def slots(self, keys: Iterable[str]) -> np.ndarray:
        """Slots [N] of the keys; new keys start at the prior, not yet seen (last_seen -1)."""
        keys = list(keys)
        new = [key for key in dict.fromkeys(keys) if key not in self.index]
        self.index.update((key, len(self.keys) + offset) for offset, key in enumerate(new))
        self.keys += new
        for name, kind in self.columns.items() if new else ():
            start = -1 if name == "last_seen" else 0
            self.arrays[name] = np.concatenate([self.arrays[name], np.full(len(new), start, kind)])
        return np.array([self.index[key] for key in keys], int)

    def observe(self, key: str, right: float, wrong: float, step: int) -> None:
        """Add one group's counts. A group of which nothing could be judged (0, 0) changes nothing but `last_seen`."""
        slot = int(self.slots([key])[0])
        self.arrays["last_seen"][slot] = step
        if right + wrong == 0:
            return
        for name, count in (("right", right), ("wrong", wrong)):
            self.arrays[name][slot] = self.discount * self.arrays[name][slot] + count
        streak = self.arrays["streak"]
        streak[slot] = 0 if right and wrong else max(streak[slot], 0) + 1 if right else min(streak[slot], 0) - 1
        self.arrays["visits"][slot] += 1

    def seed(self, key: str, right: float, wrong: float) -> None:
        """Counts from an earlier estimate (`assay filter`) for a prompt that has not been seen in this run."""
        slot = int(self.slots([key])[0])
        if self.arrays["visits"][slot] == 0:
            self.arrays["right"][slot], self.arrays["wrong"][slot] = right, wrong

    def table(self) -> list[dict[str, Any]]:
        """One row a prompt, for export: key, counts, visits, streak, last_seen, expected pass rate."""
        rates = (PRIOR + self.right) / (2 * PRIOR + self.right + self.wrong)
        return [
            {
                "key": key,
                **{name: self.arrays[name][slot].item() for name in self.columns},
                "pass_rate": rates[slot].item(),
            }
            for slot, key in enumerate(self.keys)
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"keys": list(self.keys), **{name: self.arrays[name].tolist() for name in self.columns}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.keys = list(state["keys"])
        self.index = {key: slot for slot, key in enumerate(self.keys)}
        self.arrays = {name: np.array(state[name], kind) for name, kind in self.columns.items()}


def expected_mixed(
    right: np.ndarray, wrong: np.ndarray, generations: int, prior: np.ndarray | None = None
) -> np.ndarray:
    """Probability [N] that a group of G is mixed, the posterior mean of 1 - p^G - (1-p)^G given the counts.

    `prior` holds weights over `GRID` (see `fit_prior`); without it p ~ Beta(1, 1) beforehand.

    >>> expected_mixed(np.zeros(1), np.zeros(1), 2).round(4).tolist()  # uniform p: 1 - 1/3 - 1/3
    [0.3333]
    """
    if prior is None:
        a, b = PRIOR + right, PRIOR + wrong
        uniform = np.exp(betaln(a + generations, b) - betaln(a, b)) + np.exp(betaln(a, b + generations) - betaln(a, b))
        return np.clip(1.0 - uniform, 0.0, 1.0)
    return responsibilities(right, wrong, prior) @ (1.0 - GRID**generations - (1.0 - GRID) ** generations)


def fit_prior(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """The distribution of pass rates in the pool as weights over `GRID`, by maximum likelihood (empirical Bayes).

    Nonparametric (Kiefer and Wolfowitz 1956) by expectation maximisation, since pools are lumpy: some prompts solved,
    some impossible, some between. A flat prior would make an impossible pool look half learnable; here it counts as
    `FLAT_PROMPTS` prompts, so that it fades as others are observed.
    """
    seen = right + wrong > 0
    if not seen.any():
        return FLAT
    counts = np.round(right[seen], 1) + 1j * np.round(wrong[seen], 1)  # most prompts share their counts with others
    pairs, repeats = np.unique(counts, return_counts=True)
    likelihoods = likelihood(pairs.real, pairs.imag)
    weights = FLAT
    for _ in range(200):
        weights = weights * ((repeats / (likelihoods @ weights)) @ likelihoods) + FLAT_PROMPTS * FLAT
        weights = weights / (repeats.sum() + FLAT_PROMPTS)
    return weights


def responsibilities(right: np.ndarray, wrong: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Posterior weights [N, grid] of each prompt's pass rate; no rate is ruled out by the prior alone."""
    posterior = likelihood(right, wrong) * np.maximum(weights, 1e-12)
    return posterior / posterior.sum(axis=1, keepdims=True)


def likelihood(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """p^right (1-p)^wrong [N, grid], each row scaled to a largest value of 1."""
    logs = xlogy(right[:, None], GRID) + xlog1py(wrong[:, None], -GRID)
    return np.exp(logs - logs.max(axis=1, keepdims=True))


def mixed_probability(rate: float, generations: int) -> float:
    """1 - p^G - (1-p)^G: the share of groups that carry a signal at pass rate p.

    >>> round(mixed_probability(0.18, 8), 2), round(mixed_probability(0.01, 8), 3)
    (0.8, 0.077)
    """
    return 1.0 - math.pow(rate, generations) - math.pow(1.0 - rate, generations)


def histogram(rates: Sequence[float] | np.ndarray, bins: int = 10) -> list[int]:
    """Counts of pass rates in `bins` equal parts of [0, 1]."""
    return np.histogram(np.asarray(rates, float), bins=bins, range=(0.0, 1.0))[0].tolist()
