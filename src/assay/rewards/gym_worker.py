"""The worker's side of `gym.py`. Imports happen before the first job, so that no answer pays for them in CPU time."""

from __future__ import annotations

import functools
import json
from typing import Any

import reasoning_gym
import sympy  # noqa: F401 - several scorers import it inside

from assay.rewards.gym import pack, unpack


def generate(message: dict[str, Any]) -> dict[str, Any]:
    """In the worker: the entries of a task."""
    dataset = reasoning_gym.create_dataset(
        message["name"], size=message["size"], seed=message["seed"], **message["config"]
    )
    return {"entries": [pack(dataset[index]) for index in range(message["size"])]}


def handle(message: dict[str, Any]) -> dict[str, Any]:
    """In the worker: the task's own score of an answer."""
    origin = json.loads(message["origin"])
    return {"score": float(scorer(origin["name"])(message["answer"], unpack(origin["entry"])))}


@functools.lru_cache(maxsize=256)
def scorer(name: str) -> Any:
    return reasoning_gym.get_score_answer_fn(name)
