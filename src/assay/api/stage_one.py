"""A*-PO's first stage: what is reachable on every training prompt, from answers of the starting model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from assay.api.reporting import RunReports
from assay.api.session import Session
from assay.errors import InputError, RunError
from assay.objectives import optimal_value
from assay.records import Group, Prompt
from assay.rollouts.protocol import Sampling
from assay.training.trainer import TrainerState

# Prompts of each rank between two writes to the file; what a kill loses.
CHUNK = 16

# `rewards` of the answers to a prompt that could be judged, and whether it is `solved`.
Tries = dict[str, Any]


def optimal_values(session: Session, path: Path, has_begun: bool, reports: RunReports) -> dict[str, float]:
    """V* by content key of every training prompt that is worth training on (A*-PO, arXiv:2505.20686, stage 1).

    V*(x) = beta1 log mean exp(r / beta1) over `rollout.stage1_samples` answers. Prompts that none of them solved are
    left out: nothing says what is reachable there. Solved is a right answer, or where no verifier has a verdict, a
    reward above 0. The rewards lie in `path`, a line a prompt; a killed stage goes on where it was. Collective: every
    rank calls it and gets the same.

    Args:
        has_begun: the policy has been updated already, so that its answers are not the starting model's any more.

    Raises:
        RunError: if it has, and the file does not have every prompt.
        InputError: if no prompt is left.
    """
    prompts = list({prompt.content_key: prompt for prompt in session.pool.train}.values())
    tries = session.ranks.gather(read_tries(path))[0]
    missing = [prompt for prompt in prompts if prompt.content_key not in tries]
    if missing and has_begun:
        raise RunError(
            f"{path} lacks {len(missing)} of {len(prompts)} training prompts, and their optimal value needs the model "
            "that the run began with; start again under another name"
        )
    reports.phase("stage_one", len(missing))
    size = CHUNK * session.ranks.world
    for start in range(0, len(missing), size):
        found = sample_tries(session, missing[start : start + size])
        tries |= found
        if session.ranks.is_main:
            append_tries(path, found)
        reports.advance(min(start + size, len(missing)))
    solved = [prompt.content_key for prompt in prompts if tries[prompt.content_key]["solved"]]
    unjudged = sum(not tries[prompt.content_key]["rewards"] for prompt in prompts)
    samples = session.config.rollout.stage1_samples
    told = f"stage one: {len(solved)} of {len(prompts)} prompts were solved in {samples} tries"
    told += f", on {unjudged} no answer could be judged" if unjudged else ""
    if not solved:
        raise InputError(f"{told}; take easier data, another starting model, or more rollout.stage1_samples")
    values = {key: value_of(tries[key]["rewards"], session.config.objective.a_star_beta1) for key in solved}
    reports.message(f"{told} and are trained on; their mean V* is {sum(values.values()) / len(values):.3f}")
    return values


def sample_tries(session: Session, prompts: Sequence[Prompt]) -> dict[str, Tries]:
    """What the present model's answers earn, by content key; each rank marks a share."""
    rollout = session.config.rollout
    sampling = Sampling(rollout.max_completion_length, rollout.temperature)
    groups = session.sample(prompts, sampling, rollout.stage1_samples, seed=session.config.seed)
    own = session.ranks.share(groups)
    session.scorer.score(own, TrainerState(max_steps=session.config.train.steps))
    found = {group.prompt.content_key: tries_of(group) for group in own}
    return {key: tries for part in session.ranks.gather(found) for key, tries in part.items()}


def tries_of(group: Group) -> Tries:
    """Rewards of the answers that could be judged, and whether one of them solves the prompt."""
    rewards = [item.reward for item in group.completions if item.reward is not None]
    verdicts = [item.correct for item in group.completions if item.correct is not None]
    return {"rewards": rewards, "solved": any(verdicts) if verdicts else any(reward > 0 for reward in rewards)}


def value_of(rewards: Sequence[float], beta1: float) -> float:
    exact = torch.tensor(rewards, dtype=torch.float64)
    return float(optimal_value(exact, torch.zeros(len(exact)), beta1)[0])


def read_tries(path: Path) -> dict[str, Tries]:
    """What a file has, but for a last line that a kill left half-written, which is cut off."""
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        os.truncate(path, len(whole.encode()))
    lines = map(json.loads, whole.splitlines())
    return {line.pop("prompt"): line for line in lines}


def append_tries(path: Path, found: Mapping[str, Tries]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        for key, tries in found.items():
            file.write(json.dumps({"prompt": key, **tries}) + "\n")
        file.flush()
        os.fsync(file.fileno())
