"""From rewards to advantages: baseline, scale, normalisation, and which rows carry no signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objectives.batch import wide
from assay.objectives.denominators import SumOverRanks, sum_locally
from assay.objectives.groups import Groups
from assay.objectives.kl import KL_ESTIMATORS
from assay.objectives.metrics import Metrics
from assay.objectives.scores import Scores, verdicts
from assay.objectives.spec import ObjectiveSpec
from assay.objectives.values import discounted_sum, gae, last_token, left_packed, whiten


@dataclass(frozen=True)
class AdvantageResult:
    """Advantages of a round's N rows, and what the groups agreed on.

    `advantages` is [N], or [N, T] where reward or baseline is per token. `returns` [N, T] are the critic's targets.
    `no_signal` [N]: the row's policy gradient is exactly zero for a reason of its group (equal rewards under a group
    baseline, nothing to score, masked as truncated), so it need not be forwarded. `uniform` [N]: the group's rewards
    are equal, whatever the baseline makes of it; `all_correct` and `all_wrong` split it by verdict.
    """

    advantages: Tensor
    no_signal: Tensor
    uniform: Tensor
    all_correct: Tensor
    all_wrong: Tensor
    metrics: Metrics
    returns: Tensor | None = None


@dataclass(frozen=True)
class TokenInputs:
    """What token-level rewards and learned values need, all [N, T]: the loss mask, old and reference log-probs (KL in
    the reward), the critic's values (GAE)."""

    mask: Tensor
    old_logps: Tensor | None = None
    ref_logps: Tensor | None = None
    values: Tensor | None = None


def compute_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    weights: Sequence[float] | Tensor | None,
    spec: ObjectiveSpec,
    *,
    truncated: Tensor | None = None,
    correct: Tensor | None = None,
    tokens: TokenInputs | None = None,
    baselines: Tensor | None = None,
    sum_over_ranks: SumOverRanks = sum_locally,
) -> AdvantageResult:
    """Advantages of one rank's share of a round; groups lie whole in a rank, batch statistics span all ranks.

    `rewards` [N, F] has NaN where a function gave None; `weights` [F] (None: ones). A row whose functions all gave None
    is left out of every statistic and has advantage 0. `truncated` [N] bool. `correct` [N] is 1, 0 or NaN (no verdict).
    `baselines` [N] is what baseline="given" subtracts (`optimal_value` for A*-PO).

    >>> r = torch.tensor([[1.0], [0], [1], [0], [0], [1], [0], [0]])
    >>> result = compute_advantages(r, torch.zeros(8, dtype=torch.long), None, ObjectiveSpec())
    >>> [round(a, 4) for a in result.advantages[:2].tolist()]
    [1.2074, -0.7244]

    Raises ValueError for an infinite reward, for weights of another length, and for a missing input that `spec` needs.
    """
    scores = Scores.of(rewards, group_ids, weights, spec, truncated)
    shaped = _shaped(scores, spec, tokens)
    returns = None
    if spec.baseline == "value":
        advantages, returns = _learned(scores, spec, tokens)
    elif spec.multi_objective_aggregation == "normalize_then_sum":
        advantages = _decoupled(scores, spec, sum_over_ranks)
    else:
        advantages = BASELINES[spec.baseline](scores, shaped, baselines)
        advantages = _scaled(advantages, shaped, scores, spec, sum_over_ranks)
    if spec.normalize_advantages:
        advantages = _standardized(advantages, scores.votes, spec, sum_over_ranks)
    advantages = torch.where(scores.votes, advantages, 0.0) if advantages.dim() == 1 else advantages
    if spec.kl_in == "reward_token" and spec.beta != 0 and spec.baseline != "value":
        advantages = _less_kl_to_go(advantages, spec, tokens)
    if spec.whiten_advantages:
        advantages = _whitened(advantages, scores, tokens, sum_over_ranks)
    return _result(advantages, returns, scores, spec, correct, tokens)


def optimal_value(rewards: Tensor, group_ids: Tensor, beta1: float) -> Tensor:
    """V*(x) = beta1 log mean exp(r / beta1) over the reference model's samples of a prompt, [N] (A*-PO stage 1,
    arXiv:2505.20686). Prompts whose rewards are all zero teach nothing; leave them out of stage 2.

    >>> r = torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    >>> round(optimal_value(r, torch.zeros(8), 0.5)[0].item(), 10)
    0.4772292964
    """
    groups, everyone = Groups(group_ids), torch.ones_like(rewards, dtype=torch.bool)
    top = rewards.max() if len(rewards) else rewards.sum()
    return top + beta1 * groups.mean(torch.exp((rewards - top) / beta1), everyone).log()


def _shaped(scores: Scores, spec: ObjectiveSpec, tokens: TokenInputs | None) -> Tensor:
    """The summed reward, less the sequence's KL where that is in the reward."""
    if spec.kl_in != "reward" or spec.beta == 0:
        return scores.total
    kl, mask = _token_kl(spec, tokens)
    return scores.total - spec.beta * torch.where(mask, kl, 0.0).sum(-1)


def _token_kl(spec: ObjectiveSpec, tokens: TokenInputs | None) -> tuple[Tensor, Tensor]:
    """(KL estimate [N, T] of the old policy, mask)."""
    if tokens is None or tokens.old_logps is None or tokens.ref_logps is None:
        raise ValueError(f"kl_in={spec.kl_in!r} needs the old and reference log-probabilities before advantages")
    old, ref = torch.where(tokens.mask, tokens.old_logps, 0.0), torch.where(tokens.mask, tokens.ref_logps, 0.0)
    return KL_ESTIMATORS[spec.kl_estimator](wide(old), wide(ref)), tokens.mask


def _less_kl_to_go(advantages: Tensor, spec: ObjectiveSpec, tokens: TokenInputs | None) -> Tensor:
    """[N, T]: A less beta times the sum of KL from each token to the end (REINFORCE++, arXiv:2501.03262 eq. 8)."""
    kl, mask = _token_kl(spec, tokens)
    order = left_packed(mask)
    packed = discounted_sum(torch.where(mask, kl, 0.0).gather(-1, order), spec.gamma)
    to_go = torch.zeros_like(kl).scatter(-1, order, packed)
    return torch.where(mask, advantages.unsqueeze(-1) - spec.beta * to_go, 0.0)


def _learned(scores: Scores, spec: ObjectiveSpec, tokens: TokenInputs | None) -> tuple[Tensor, Tensor]:
    """GAE over token rewards: the score on the last token, less beta KL where that is in the reward."""
    if tokens is None or tokens.values is None:
        raise ValueError("baseline='value' needs the critic's values before advantages")
    mask, values = tokens.mask, wide(tokens.values)
    reward = torch.where(last_token(mask), scores.total.unsqueeze(-1), 0.0)
    if spec.kl_in == "reward_token" and spec.beta != 0:
        reward = reward - spec.beta * torch.where(mask, _token_kl(spec, tokens)[0], 0.0)
    advantages, returns = gae(reward, values, mask, spec.gamma, spec.lam)
    votes = scores.votes.unsqueeze(-1)
    return torch.where(votes, advantages, 0.0), torch.where(votes, returns, torch.where(mask, values, 0.0))


def _group_mean(scores: Scores, reward: Tensor, given: Tensor | None) -> Tensor:
    return reward - scores.groups.mean(reward, scores.votes)


def _leave_one_out(scores: Scores, reward: Tensor, given: Tensor | None) -> Tensor:
    return reward - scores.groups.leave_one_out_mean(reward, scores.votes)


def _no_baseline(scores: Scores, reward: Tensor, given: Tensor | None) -> Tensor:
    return reward


def _given(scores: Scores, reward: Tensor, given: Tensor | None) -> Tensor:
    if given is None:
        raise ValueError("baseline='given' needs baselines [N]")
    return reward - given.to(reward)


BASELINES: dict[str, Callable[[Scores, Tensor, Tensor | None], Tensor]] = {
    "group_mean": _group_mean,
    "leave_one_out": _leave_one_out,
    "none": _no_baseline,
    "given": _given,
}


def _scaled(
    advantages: Tensor, reward: Tensor, scores: Scores, spec: ObjectiveSpec, sum_over_ranks: SumOverRanks
) -> Tensor:
    """Divided by the standard deviation that `scale_rewards` names, plus eps."""
    if spec.scale_rewards == "none":
        return advantages
    if spec.scale_rewards == "group":
        std = scores.groups.std(reward, scores.votes, spec.std_kind)
        flat = scores.groups.uniform(reward, scores.votes)
    else:
        of = reward if spec.scale_rewards == "batch" else advantages
        std = _moments(of, scores.votes, spec.std_kind, sum_over_ranks)[1]
        flat = std == 0
    return torch.where(flat, 0.0, advantages / (std + spec.std_eps))


def _decoupled(scores: Scores, spec: ObjectiveSpec, sum_over_ranks: SumOverRanks) -> Tensor:
    """Each reward normalised in its group, weighted, summed, and standardised over the batch (GDPO, arXiv:2601.05242).

    A function that does not apply contributes the neutral 0."""
    x = scores.per_function
    votes = scores.votes.unsqueeze(-1) & ~x.isnan()
    std = scores.groups.std(x, votes, spec.std_kind)
    z = (x - scores.groups.mean(x, votes)) / (std + spec.std_eps)
    z = torch.where(votes & ~scores.groups.uniform(x, votes), z, 0.0)
    return _standardized((z * scores.weights).sum(-1), scores.votes, spec, sum_over_ranks)


def _standardized(x: Tensor, votes: Tensor, spec: ObjectiveSpec, sum_over_ranks: SumOverRanks) -> Tensor:
    mean, std = _moments(x, votes, spec.std_kind, sum_over_ranks)
    return torch.where(std == 0, 0.0, (x - mean) / (std + spec.std_eps))


def _moments(x: Tensor, votes: Tensor, kind: str, sum_over_ranks: SumOverRanks) -> tuple[Tensor, Tensor]:
    """(mean, standard deviation) of the voting rows of all ranks."""
    kept = torch.where(votes, x, 0.0)
    total, count = sum_over_ranks(torch.stack([kept.sum(), votes.sum().to(x)])).unbind()
    mean = total / count.clamp(min=1)
    squares = sum_over_ranks(torch.where(votes, (x - mean).square(), 0.0).sum())
    return mean, (squares / (count - int(kind == "sample")).clamp(min=1)).sqrt()


def _whitened(advantages: Tensor, scores: Scores, tokens: TokenInputs | None, sum_over_ranks: SumOverRanks) -> Tensor:
    """[N, T], standardised over all counted tokens; rows without a score take no part."""
    if tokens is None:
        raise ValueError("whiten_advantages needs the mask [N, T] before advantages")
    per_token = advantages if advantages.dim() == 2 else advantages.unsqueeze(-1).expand(tokens.mask.shape)
    return whiten(per_token, tokens.mask & scores.votes.unsqueeze(-1), sum_over_ranks=sum_over_ranks)


def _result(
    advantages: Tensor,
    returns: Tensor | None,
    scores: Scores,
    spec: ObjectiveSpec,
    correct: Tensor | None,
    tokens: TokenInputs | None,
) -> AdvantageResult:
    kl_in_reward = spec.kl_in != "loss" and spec.beta != 0
    groupwise = spec.baseline in ("group_mean", "leave_one_out") and not spec.whiten_advantages and not kl_in_reward
    no_signal = ~scores.votes | (scores.uniform if groupwise else torch.zeros_like(scores.uniform))
    gone = no_signal if advantages.dim() == 1 else no_signal.unsqueeze(-1)
    advantages = torch.where(gone, 0.0, advantages).to(
        torch.float32 if advantages.device.type == "mps" else torch.float64
    )
    right, wrong = verdicts(scores, correct)
    metrics = Metrics()
    everyone = torch.ones_like(scores.votes)
    metrics.masked_mean("reward", scores.total, scores.scorable)
    metrics.spread("reward_std", scores.total, scores.scorable)
    metrics.masked_mean("frac_reward_zero_std", scores.uniform, everyone)
    metrics.masked_mean("frac_all_correct", right, everyone)
    metrics.masked_mean("frac_all_wrong", wrong, everyone)
    metrics.masked_mean("frac_unscorable", ~scores.scorable, everyone)
    if kl_in_reward:
        kl, mask = _token_kl(spec, tokens)
        metrics.masked_mean("kl", kl, mask)
    return AdvantageResult(advantages, no_signal, scores.uniform, right, wrong, metrics, returns)
