"""From the judgements of one completion to its reward and its verdict, and the table that advantages start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from assay.errors import InputError
from assay.records import Completion, Group, Judgement, Outcome
from assay.rewards.options import RewardOptions
from assay.rewards.registry import RewardFunction

VERDICTS = {Outcome.CORRECT: True, Outcome.WRONG: False, Outcome.UNPARSABLE: False}
OURS = (Outcome.TIMEOUT, Outcome.ERROR)


def total_reward(judgements: Mapping[str, Judgement], weights: Mapping[str, float]) -> float | None:
    """The weighted sum of what applied; None where nothing did, or where a part that counts is missing by our fault.

    A sum without the part that failed is not comparable with its group, so the completion leaves the group.
    """
    parts = [(weights[name], judgement) for name, judgement in judgements.items() if weights[name] != 0]
    if any(judgement.outcome in OURS for _, judgement in parts):
        return None
    numbers = [weight * judgement.reward for weight, judgement in parts if judgement.reward is not None]
    return sum(numbers) if numbers else None


def verdict(
    judgements: Mapping[str, Judgement], reward: float | None, givers: Iterable[str], options: RewardOptions
) -> bool | None:
    """Whether the completion is correct: the primary's verdict, else the first verdict, else the reward's threshold.

    `givers` are the functions that give verdicts, those that check the answer before those that check its form.
    """
    if options.primary:
        judgement = judgements[options.primary]
        if judgement.outcome is Outcome.SCORED:
            return judgement.reward is not None and judgement.reward >= options.correct_threshold
        if judgement.outcome is not Outcome.NOT_APPLICABLE:
            return VERDICTS.get(judgement.outcome)
    givers = list(givers)
    for name in [*givers, *(name for name in judgements if name not in givers)]:
        outcome = judgements[name].outcome if name in judgements else Outcome.NOT_APPLICABLE
        if outcome in VERDICTS or (outcome in OURS and name in givers):
            return VERDICTS.get(outcome)
    return None if reward is None else reward >= options.correct_threshold


def settle_completion(completion: Completion, functions: Sequence[RewardFunction], options: RewardOptions) -> None:
    """Set `reward` and `correct` from the judgements that are there, in the functions' order."""
    judgements = {f.name: completion.judgements[f.name] for f in functions if f.name in completion.judgements}
    completion.judgements = judgements
    weights = {function.name: function.spec.weight for function in functions}
    completion.reward = total_reward(judgements, weights)
    if options.primary and options.primary not in judgements:
        completion.correct = None  # the primary sees the whole round and has not spoken yet
        return
    verifiers = [function for function in functions if function.gives_verdicts]
    verifiers.sort(key=lambda function: function.verifier is not None and not function.verifier.checks_answer)
    givers = [function.name for function in verifiers]
    completion.correct = verdict(judgements, completion.reward, givers, options)


def check_primary(functions: Sequence[RewardFunction], options: RewardOptions) -> None:
    names = [function.name for function in functions]
    if options.primary and options.primary not in names:
        raise InputError(f"rewards.primary is {options.primary!r}; it must be one of {', '.join(names)}")


def reward_table(groups: Sequence[Group], functions: Sequence[RewardFunction]) -> tuple[np.ndarray, np.ndarray]:
    """Rewards [N, F] (float64, NaN = does not count) and group ids [N], completions in the order of the groups.

    A completion without a total reward is NaN in every column: it takes no part in any baseline.
    """
    rows, ids = [], []
    for number, group in enumerate(groups):
        for completion in group.completions:
            found = [completion.judgements[function.name].reward for function in functions]
            usable = completion.reward is not None
            rows.append([np.nan if value is None or not usable else value for value in found])
            ids.append(number)
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(functions)), np.array(ids, dtype=np.int64)
