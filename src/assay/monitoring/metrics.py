"""What one round of rollouts says about the run, by TRL's names, each with its definition.

Every function here takes *all* groups of the step (of every rank) and returns plain floats. A quantity that was not
measured is absent, never 0 and never NaN: "no completion terminated" and "terminated completions are empty" differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from assay.records import Completion, Finish, Group, Outcome

NGRAM = 4
# Standard deviation in nats below which a correlation of log-probs says nothing.
VARIED = 0.1
# Outcomes that say something about the verifier rather than about the answer.
VERIFIER_OUTCOMES = (Outcome.UNPARSABLE, Outcome.ERROR, Outcome.TIMEOUT)


def rollout_metrics(groups: Sequence[Group], *, decoupled: bool = False) -> dict[str, float]:
    """Metrics of the groups that were written and marked for one round, whether or not they are trained on.

    Under dynamic sampling those that are trained on were picked for having a signal: of these alone, `accuracy` would
    stay in the middle whatever the policy learns.

    `decoupled` says that rewards are normalised per function (GDPO, arXiv 2601.05242), where a group is without signal
    only if *every* function is constant in it.
    `frac_reward_zero_std` comes from the raw rewards and from their equality, whatever the scaling or KL penalty is.
    """
    completions = [completion for group in groups for completion in group.completions]
    if not completions:
        return {}
    metrics = {
        "completions/count": float(len(completions)),
        "groups/count": float(len(groups)),
        "num_prompt_tokens": float(sum(len(group.prompt.token_ids) * len(group.completions) for group in groups)),
    }
    metrics |= length_metrics(completions)
    metrics |= reward_metrics(completions)
    metrics |= group_metrics(groups, decoupled)
    metrics |= prompt_means(groups)
    metrics |= verifier_metrics(completions)
    metrics |= sampler_metrics(completions)
    metrics |= tag_metrics(completions)
    return metrics


def update_metrics(groups: Sequence[Group], policy_version: int) -> dict[str, float]:
    """Metrics of the groups that an update trained on; `policy_version` is the version that it began with."""
    completions = [completion for group in groups for completion in group.completions]
    if not completions:
        return {}
    return trainer_metrics(completions) | staleness_metrics(completions, policy_version)


def length_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Lengths in policy-authored tokens. `clipped_ratio` is what the engine cut off, not what lacks one EOS id."""
    lengths = np.array([completion.num_tokens for completion in completions], dtype=float)
    finish = [completion.finish for completion in completions]
    metrics = {f"completions/{name}": value for name, value in _mean_min_max(lengths, "length").items()}
    low, high = np.quantile(lengths, (0.1, 0.9))
    metrics |= {"completions/p10_length": float(low), "completions/p90_length": float(high)}
    metrics["completions/total_tokens"] = float(lengths.sum())
    metrics["completions/clipped_ratio"] = finish.count(Finish.LENGTH) / len(finish)
    metrics["completions/aborted_ratio"] = finish.count(Finish.ABORT) / len(finish)
    terminated = lengths[[reason is Finish.STOP for reason in finish]]
    if len(terminated):
        metrics |= {
            f"completions/{name}": value for name, value in _mean_min_max(terminated, "terminated_length").items()
        }
    for name, wanted in (("correct", True), ("wrong", False)):
        chosen = lengths[[completion.correct is wanted for completion in completions]]
        if len(chosen):
            metrics[f"completions/mean_length_{name}"] = float(chosen.mean())
    metrics["completions/repetition"] = float(np.mean([repetition(_policy_ids(item)) for item in completions]))
    return metrics


def reward_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """`reward`, `reward_std` and the same per function; stds are Bessel-corrected over the *batch*, as TRL's are.

    A completion that no function could judge has no reward and is left out (TRL averages it as 0); the share that was
    left out is `rewards/none_frac`.
    """
    totals = [completion.reward for completion in completions]
    metrics = _mean_std(totals, "reward", "reward_std")
    metrics["rewards/none_frac"] = totals.count(None) / len(totals)
    for name in _function_names(completions):
        judgements = [item.judgements[name] for item in completions if name in item.judgements]
        applied = [judgement for judgement in judgements if judgement.outcome is not Outcome.NOT_APPLICABLE]
        metrics |= _mean_std([judgement.reward for judgement in applied], f"rewards/{name}/mean", f"rewards/{name}/std")
        if applied:
            missing = sum(judgement.reward is None for judgement in applied)
            metrics[f"rewards/{name}/none_frac"] = missing / len(applied)
    return metrics


def group_metrics(groups: Sequence[Group], decoupled: bool = False) -> dict[str, float]:
    """How many groups can teach anything: mixed, all correct, all wrong, and without any variance of reward.

    Where every prompt has one answer nothing can differ, and the shares are left out.
    """
    flat = [_has_no_signal(group, decoupled) for group in groups]
    spreads = [np.std(rewards, ddof=1) for group in groups if len(rewards := _rewards(group)) > 1]
    several = any(len(group.completions) > 1 for group in groups)
    metrics = {"frac_reward_zero_std": float(np.mean(flat))} if several else {}
    if spreads:
        metrics["groups/reward_std"] = float(np.mean(spreads))
    verdicts = [[item.correct for item in group.completions if item.correct is not None] for group in groups]
    judged = [verdict for verdict in verdicts if verdict]
    if judged:
        correct = sum(all(verdict) for verdict in judged) / len(judged)
        wrong = sum(not any(verdict) for verdict in judged) / len(judged)
        metrics["accuracy"] = float(np.mean([value for verdict in judged for value in verdict]))
        if several:
            metrics |= {
                "groups/frac_all_correct": correct,
                "groups/frac_all_wrong": wrong,
                "groups/frac_mixed": sum(any(verdict) and not all(verdict) for verdict in judged) / len(judged),
            }
    pairs = [len(group.completions) - len({_key(item) for item in group.completions}) for group in groups]
    metrics["groups/duplicate_frac"] = sum(pairs) / max(1, sum(len(group.completions) for group in groups))
    return metrics


def prompt_means(groups: Sequence[Group]) -> dict[str, float]:
    """`reward` and `accuracy` as means over prompts, where these have unequal numbers of completions.

    Screening (`refill.screen`) stops groups that are alike so far: of all completions alike, mixed prompts would count
    several times.
    """
    if len({len(group.completions) for group in groups}) < 2:
        return {}
    rewards = [np.mean(rewards) for group in groups if (rewards := _rewards(group))]
    right = [[item.correct for item in group.completions if item.correct is not None] for group in groups]
    judged = [np.mean(verdicts) for verdicts in right if verdicts]
    found = {"reward": rewards, "accuracy": judged}
    return {name: float(np.mean(values)) for name, values in found.items() if values}


def verifier_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Shares of judgements that are no verdict, over those that applied: in all, and `/name` of each if several."""
    per_function: dict[str, list[Outcome]] = {}
    for completion in completions:
        for name, judgement in completion.judgements.items():
            outcomes = per_function.setdefault(name, [])
            if judgement.outcome is not Outcome.NOT_APPLICABLE:
                outcomes.append(judgement.outcome)
    parts = {"": [outcome for outcomes in per_function.values() for outcome in outcomes]}
    if len(per_function) > 1:
        parts |= {f"/{name}": outcomes for name, outcomes in per_function.items()}
    return {
        f"verifier/{outcome}_frac{suffix}": outcomes.count(outcome) / len(outcomes) if outcomes else 0.0
        for suffix, outcomes in parts.items()
        for outcome in VERIFIER_OUTCOMES
    }


def sampler_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """`sampling/entropy` (nats): minus the mean log-prob that the sampler gave its own tokens, over *all* rows.

    An unbiased estimate of the sampling distribution's entropy that needs no forward pass; because it counts rows
    that are dropped from training too, dropping cannot hide a collapse. Missing log-probs are counted, not averaged.
    """
    logps = [segment.sampling_logps[segment.loss_mask] for item in completions for segment in item.segments]
    flat = np.concatenate(logps) if logps else np.zeros(0)
    if not len(flat):
        return {}
    finite = np.isfinite(flat)
    metrics = {"sampling/missing_frac": float(1 - finite.mean())}
    if finite.any():
        metrics["sampling/entropy"] = float(-flat[finite].mean(dtype=np.float64))
    return metrics


def trainer_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """What the update left: `advantages/max` and `/min`, and how the trainer's log-probs go with the sampler's.

    `sampling/logp_correlation` is Pearson's over trained tokens; absent where log-probs hardly vary, since rounding
    alone would then decide it. `sampling/mismatch_kl` (nats) is the mean of sampler minus trainer, the k1 estimate of
    KL(sampler || trainer).
    """
    advantages = [completion.advantage for completion in completions]
    metrics = {"advantages/max": max(advantages), "advantages/min": min(advantages)} if any(advantages) else {}
    kept = [item for item in completions if "old_logps" in item.tags and len(item.segments) == 1]
    if not kept:
        return metrics
    sampled = np.concatenate([item.segments[0].sampling_logps[item.segments[0].loss_mask] for item in kept])
    trained = np.concatenate([item.tags["old_logps"] for item in kept])
    both = np.isfinite(sampled) & np.isfinite(trained)
    sampled, trained = sampled[both].astype(np.float64), trained[both].astype(np.float64)
    if not len(sampled):
        return metrics
    metrics["sampling/mismatch_kl"] = float((sampled - trained).mean())
    if min(sampled.std(), trained.std()) > VARIED:
        metrics["sampling/logp_correlation"] = float(np.corrcoef(sampled, trained)[0, 1])
    return metrics


def staleness_metrics(completions: Sequence[Completion], policy_version: int) -> dict[str, float]:
    """How many updates lie between writing a token and training on it; the mean is over tokens."""
    weights, ages = [], []
    for completion in completions:
        starts = [span.start for span in completion.policy_versions] + [completion.num_tokens]
        for span, end in zip(completion.policy_versions, starts[1:]):
            weights.append(max(0, end - span.start))
            ages.append(policy_version - span.version)
    total = sum(weights)
    mean = sum(weight * age for weight, age in zip(weights, ages)) / total if total else 0.0
    return {"staleness/mean": float(mean), "staleness/max": float(max(ages))}


def tag_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """`hack/<flag>_frac` over completions, from the tampering detector's tag `flags` (a list of names).

    The share among rewarded completions is what tells a hack from a failed attempt: `hack/rewarded_frac` is the share
    of flagged completions among those with the step's highest reward.
    """
    if not any("flags" in item.tags for item in completions):
        return {}
    flags = [frozenset(item.tags.get("flags", ())) for item in completions]
    names = sorted(frozenset().union(*flags))
    metrics = {f"hack/{name}_frac": float(np.mean([name in found for found in flags])) for name in names}
    metrics["hack/flagged_frac"] = float(np.mean([bool(found) for found in flags]))
    rewards = [item.reward for item in completions if item.reward is not None]
    paid = [bool(found) for found, item in zip(flags, completions) if rewards and item.reward == max(rewards)]
    if paid:
        metrics["hack/rewarded_frac"] = float(np.mean(paid))
    return metrics


def repetition(token_ids: np.ndarray, n: int = NGRAM) -> float:
    """Share of n-grams that occurred before in the same completion: 0 for fresh text, near 1 for a loop.

    >>> repetition(np.array([7, 7, 7, 7, 7, 7, 7, 7]))
    0.8
    """
    if len(token_ids) <= n:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(np.ascontiguousarray(token_ids, dtype=np.int64), n)
    packed = np.ascontiguousarray(windows).view(np.dtype((np.void, windows.itemsize * n)))
    return float((len(windows) - len(np.unique(packed))) / len(windows))


def within_group_correlation(groups: Sequence[Group], value: Callable[[Completion], float]) -> float | None:
    """Correlation of reward with `value` after both are centred in their group; None without variation.

    Across prompts, hard problems are long and rarely solved; only the comparison inside a group shows what is paid.
    """
    left: list[float] = []
    right: list[float] = []
    for group in groups:
        scored = [item for item in group.completions if item.reward is not None]
        if len(scored) < 2:
            continue
        rewards = np.array([item.reward for item in scored], dtype=float)
        values = np.array([value(item) for item in scored], dtype=float)
        left += list(rewards - rewards.mean())
        right += list(values - values.mean())
    if len(left) < 3 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return None
    return float(np.corrcoef(left, right)[0, 1])


def merge(*parts: Mapping[str, float]) -> dict[str, float]:
    """Parts of one step's metrics; a name that two parts give differently is an error, not a silent winner."""
    merged: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            if name in merged and merged[name] != value:
                raise ValueError(f"metric {name!r} is given twice: {merged[name]} and {value}")
            merged[name] = value
    return merged


def _has_no_signal(group: Group, decoupled: bool) -> bool:
    if not decoupled:
        return len(set(_rewards(group))) < 2
    names = _function_names(group.completions)
    columns = [
        [item.judgements[name].reward for item in group.completions if name in item.judgements] for name in names
    ]
    return all(len({reward for reward in column if reward is not None}) < 2 for column in columns)


def _rewards(group: Group) -> list[float]:
    return [item.reward for item in group.completions if item.reward is not None]


def _function_names(completions: Sequence[Completion]) -> list[str]:
    return list(dict.fromkeys(name for item in completions for name in item.judgements))


def _policy_ids(completion: Completion) -> np.ndarray:
    parts = [segment.token_ids[segment.loss_mask] for segment in completion.segments]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _key(completion: Completion) -> bytes:
    return np.asarray(_policy_ids(completion), dtype=np.int64).tobytes()


def _mean_min_max(values: np.ndarray, name: str) -> dict[str, float]:
    return {
        f"mean_{name}": float(values.mean()),
        f"min_{name}": float(values.min()),
        f"max_{name}": float(values.max()),
    }


def _mean_std(values: Sequence[float | None], mean_name: str, std_name: str) -> dict[str, float]:
    known = np.array([value for value in values if value is not None], dtype=float)
    metrics = {}
    if len(known):
        metrics[mean_name] = float(known.mean())
    if len(known) > 1:
        metrics[std_name] = float(known.std(ddof=1))
    return metrics
