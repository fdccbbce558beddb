"""Rewards made ready: what each row is worth in sum, who votes in its group's statistics, and which groups agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objectives.batch import wide
from assay.objectives.groups import Groups
from assay.objectives.spec import ObjectiveSpec


@dataclass(frozen=True)
class Scores:
    """Rewards in float64: per function, summed, who votes in statistics, and which groups agree."""

    per_function: Tensor
    weights: Tensor
    total: Tensor
    votes: Tensor
    scorable: Tensor
    groups: Groups
    uniform: Tensor

    @classmethod
    def of(
        cls,
        rewards: Tensor,
        group_ids: Tensor,
        weights: Sequence[float] | Tensor | None,
        spec: ObjectiveSpec,
        truncated: Tensor | None,
    ) -> Scores:
        rewards = wide(rewards)
        if rewards.dim() != 2:
            raise ValueError(f"rewards must be [N, F], one column a function; got shape {tuple(rewards.shape)}")
        if rewards.isinf().any():
            row, column = rewards.isinf().nonzero()[0].tolist()
            raise ValueError(
                f"reward of row {row}, function {column} is infinite; a reward must be finite or NaN (None)"
            )
        w = torch.ones(rewards.shape[1]) if weights is None else torch.as_tensor(weights)
        w = w.to(rewards)
        if w.shape != rewards.shape[1:]:
            raise ValueError(f"{w.numel()} reward weights for {rewards.shape[1]} reward functions")
        total, scorable = _total(rewards, w, spec)
        votes = scorable
        if truncated is not None and spec.mask_truncated_completions and not spec.truncated_in_baseline:
            votes = scorable & ~truncated
        groups = Groups(group_ids)
        if spec.multi_objective_aggregation == "normalize_then_sum":
            counted = votes.unsqueeze(-1) & ~rewards.isnan() & (w != 0)
            uniform = groups.uniform(rewards, counted).all(-1)
        else:
            uniform = groups.uniform(total, votes)
        return cls(rewards, w, total, votes, scorable, groups, uniform)


def _total(rewards: Tensor, weights: Tensor, spec: ObjectiveSpec) -> tuple[Tensor, Tensor]:
    """The weighted sum [N] over the functions that apply, and which rows have any."""
    applies = ~rewards.isnan()
    total = torch.where(applies, rewards * weights, 0.0).sum(-1)
    if spec.partial_rewards == "renormalize":
        applied = torch.where(applies, weights, 0.0).sum(-1)
        total = torch.where(applied != 0, total * weights.sum() / applied, total)
    if spec.reward_clip_range is not None:
        total = total.clamp(*spec.reward_clip_range)
    return total, applies.any(-1)


def verdicts(scores: Scores, correct: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which uniform groups are uniformly correct, and which uniformly wrong; neither where a verdict is missing."""
    if correct is None:
        return torch.zeros_like(scores.uniform), torch.zeros_like(scores.uniform)
    verdict = correct.to(scores.total)
    counted = scores.scorable
    some = scores.groups.size(counted, scores.total.dtype) > 0
    right = scores.uniform & some & scores.groups.all(verdict == 1, counted)
    return right, scores.uniform & some & scores.groups.all(verdict == 0, counted)
