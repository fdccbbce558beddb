"""Prompts, groups and simulated answers for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from assay.records import Completion, Finish, Group, Prompt


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from assay.policy.tiny import tiny_tokenizer

    return tiny_tokenizer()


@pytest.fixture(scope="session")
def make_prompts() -> Callable[..., list[Prompt]]:
    def make(count: int, task: str = "default", prefix: str = "p", **rows: Sequence[Any]) -> list[Prompt]:
        return [
            Prompt(
                f"{prefix}{index}",
                (1,),
                {name: values[index] for name, values in rows.items()},
                task=task,
                content_key=f"{prefix}{index}",
            )
            for index in range(count)
        ]

    return make


@pytest.fixture(scope="session")
def make_group() -> Callable[..., Group]:
    def make(prompt: Prompt, right: int, wrong: int, none: int = 0, draw: int = 0) -> Group:
        verdicts = [True] * right + [False] * wrong + [None] * none
        completions = [
            Completion([], Finish.STOP, reward=None if verdict is None else float(verdict), correct=verdict)
            for verdict in verdicts
        ]
        return Group(prompt, completions, draw)

    return make


@pytest.fixture
def bernoulli(make_group: Callable[..., Group]) -> Callable[..., Any]:
    """bernoulli(rates, G, seed): a `sample(prompts, n)` whose answers depend on the number of the draw alone."""

    def build(rates: dict[str, float], generations: int, seed: int = 0) -> Any:
        state = {"draws": 0}

        def sample(prompts: Sequence[Prompt], n: int | None = None) -> list[Group]:
            groups = []
            for prompt in prompts:
                count = n or generations
                right = int(np.random.default_rng([seed, state["draws"]]).binomial(count, rates[prompt.content_key]))
                groups.append(make_group(prompt, right, count - right, draw=state["draws"]))
                state["draws"] += 1
            return groups

        sample.state = state  # type: ignore[attr-defined]
        return sample

    return build
