"""A*-PO's first stage: what is reachable on every training prompt, from answers of the starting model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from assay.api.reporting import RunReports
from assay.api.session import Session
from assay.errors import InputError, RunError
from assay.objectives import optimal_value
from assay.records import Prompt
from assay.rollouts.protocol import Sampling

# Prompts between two writes to the file; what a kill loses.
CHUNK = 16


def optimal_values(session: Session, path: Path, has_begun: bool, reports: RunReports) -> dict[str, float]:
    """V* by content key of every training prompt that is worth training on (A*-PO, arXiv:2505.20686, stage 1).

    V*(x) = beta1 log mean exp(r / beta1) over `rollout.stage1_samples` answers. Prompts whose answers all earned
    nothing are left out: nothing says what is reachable there. The rewards lie in `path`, a line a prompt; a killed
    stage goes on where it was. Collective: every rank calls it and gets the same.

    Args:
        has_begun: the policy has been updated already, so that its answers are not the starting model's any more.

    Raises:
        RunError: if it has, and the file does not have every prompt.
        InputError: if no prompt is left.
    """
    prompts = list({prompt.content_key: prompt for prompt in session.pool.train}.values())
    rewards = session.ranks.gather(read_rewards(path))[0]
    missing = [prompt for prompt in prompts if prompt.content_key not in rewards]
    if missing and has_begun:
        raise RunError(
            f"{path} lacks {len(missing)} of {len(prompts)} training prompts, and their optimal value needs the model "
            "that the run began with; start again under another name"
        )
    reports.phase("stage_one", len(missing))
    for start in range(0, len(missing), CHUNK):
        chunk = missing[start : start + CHUNK]
        found = sample_rewards(session, chunk)
        rewards |= found
        if session.ranks.is_main:
            append_rewards(path, found)
        reports.advance(min(start + CHUNK, len(missing)))
    values = {
        prompt.content_key: value_of(rewards[prompt.content_key], session.config.objective.a_star_beta1)
        for prompt in prompts
        if any(rewards[prompt.content_key])
    }
    tries = session.config.rollout.stage1_samples
    told = f"stage one: {len(values)} of {len(prompts)} prompts earned something in {tries} answers"
    if not values:
        raise InputError(f"{told}; take easier data, another starting model, or more rollout.stage1_samples")
    reports.message(f"{told} and are trained on; their mean V* is {sum(values.values()) / len(values):.3f}")
    return values


def sample_rewards(session: Session, prompts: Sequence[Prompt]) -> dict[str, list[float]]:
    """Rewards of the present model's answers by content key; answers that nobody could judge are left out."""
    rollout = session.config.rollout
    sampling = Sampling(rollout.max_completion_length, rollout.temperature)
    groups = session.sample(prompts, sampling, rollout.stage1_samples, seed=session.config.seed)
    session.scorer.score(groups)
    found = {
        group.prompt.content_key: [item.reward for item in group.completions if item.reward is not None]
        for group in groups
    }
    # A verifier may time out on one rank and not on another: the first one's word holds.
    return session.ranks.gather(found)[0]


def value_of(rewards: Sequence[float], beta1: float) -> float:
    exact = torch.tensor(rewards, dtype=torch.float64)
    return float(optimal_value(exact, torch.zeros(len(exact)), beta1)[0])


def read_rewards(path: Path) -> dict[str, list[float]]:
    """What a file has, but for a last line that a kill left half-written, which is cut off."""
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        os.truncate(path, len(whole.encode()))
    lines = map(json.loads, whole.splitlines())
    return {line["prompt"]: line["rewards"] for line in lines}


def append_rewards(path: Path, rewards: Mapping[str, Sequence[float]]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        for key, found in rewards.items():
            file.write(json.dumps({"prompt": key, "rewards": list(found)}) + "\n")
        file.flush()
        os.fsync(file.fileno())
