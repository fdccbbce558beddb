"""Held-out evaluation: how often the policy is right on prompts that it never trains on, with an honest interval.

Everything that touches a model is handed in (a sampler, a scorer), so the same function serves the training loop, the
command line and a benchmark of two checkpoints. Nothing here can reach a curriculum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from assay.errors import InputError
from assay.evaluation.intervals import Difference, Interval, paired_difference, rate_interval
from assay.evaluation.passk import pass_at_k, powers_of_two
from assay.records import Group, Outcome, Prompt, content_key

if TYPE_CHECKING:
    from assay.rollouts.protocol import Sampling

# (prompts, sampling, n) -> one group of n completions a prompt, in order, with text but without verdicts. It should
# seed each prompt alike at every call: then two checkpoints see the same random numbers, and pairing gains from it.
Sample = Callable[[Sequence[Prompt], "Sampling", int], list[Group]]
# groups -> (policy's, base model's) log-probabilities [T] of each completion's policy-authored tokens.
LogProbs = Callable[[list[Group]], Iterable[tuple[np.ndarray, np.ndarray]]]


class Scores(Protocol):
    """What evaluation asks of a scorer: fill in `judgements`, `reward` and `correct` of every completion."""

    def score(self, groups: list[Group], trainer_state: Any) -> Any: ...


@dataclass(frozen=True)
class HeldoutResult:
    """What the policy did on P prompts, n answers each.

    `correct` and `judged` [P] count answers that were right and answers that got a verdict; an answer without one (our
    timeout or error, a verifier that does not apply) is left out rather than called wrong. `keys` identify the prompts.
    """

    keys: tuple[str, ...]
    correct: np.ndarray
    judged: np.ndarray
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    groups: Sequence[Group] = ()

    @property
    def rates(self) -> np.ndarray:
        """Share of judged answers that were right, by prompt [P]; NaN where none was judged."""
        return np.divide(self.correct, self.judged, out=np.full(len(self.keys), np.nan), where=self.judged > 0)

    @property
    def accuracy(self) -> float | None:
        """Mean rate over the judged prompts; None where nothing was judged."""
        return float(np.nanmean(self.rates)) if (self.judged > 0).any() else None

    @property
    def interval(self) -> Interval | None:
        """95% interval of `accuracy` over prompts."""
        return rate_interval(self.rates, self.samples) if (self.judged > 0).any() else None

    def state_dict(self) -> dict[str, Any]:
        """The verdicts as plain JSON, enough to compare with later; the completions are not kept."""
        return {
            "keys": list(self.keys),
            "correct": self.correct.tolist(),
            "judged": self.judged.tolist(),
            "samples": self.samples,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> HeldoutResult:
        """The result that `state_dict` described."""
        return cls(tuple(state["keys"]), np.array(state["correct"]), np.array(state["judged"]), state["samples"])


def evaluate(
    sample: Sample,
    scorer: Scores | None,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    n: int = 1,
    trainer_state: Any = None,
) -> HeldoutResult:
    """Draw n answers a prompt, score them, and count. Metric names carry no prefix; the caller adds one.

    Without a scorer only lengths are measured. Raises InputError for no prompts or a sampler that drops some.
    """
    if not prompts:
        raise InputError("held-out evaluation got no prompts; give a held-out split or set eval.prompts=0")
    groups = sample(prompts, sampling, n)
    if len(groups) != len(prompts) or any(len(group.completions) != n for group in groups):
        raise InputError(f"the sampler must return {len(prompts)} groups of {n} completions, in the prompts' order")
    if scorer is not None:
        scorer.score(groups, trainer_state)
    verdicts = [[completion.correct for completion in group.completions] for group in groups]
    result = HeldoutResult(
        keys=unique_keys(prompts),
        correct=np.array([sum(verdict is True for verdict in row) for row in verdicts]),
        judged=np.array([sum(verdict is not None for verdict in row) for row in verdicts]),
        samples=n,
        groups=groups,
    )
    return HeldoutResult(result.keys, result.correct, result.judged, n, _metrics(result, scorer is not None), groups)


def compare(before: HeldoutResult, after: HeldoutResult, level: float = 0.95) -> Difference | None:
    """The paired change between two results on their common prompts; None where no such prompt was judged by both.

    Raises InputError where the two have no prompt in common.
    """
    place = {key: index for index, key in enumerate(before.keys)}
    shared = [(place[key], index) for index, key in enumerate(after.keys) if key in place]
    if not shared:
        raise InputError("the two held-out results have no prompt in common, so they cannot be compared in pairs")
    old, new = map(list, zip(*shared, strict=True))
    rates_before, rates_after = before.rates[old], after.rates[new]
    if np.isnan(rates_after - rates_before).all():
        return None
    return paired_difference(rates_before, rates_after, min(before.samples, after.samples), level)


def divergence(log_probs: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """Mean log(policy/base) per token and per completion, in nats: the k1 estimate of KL(policy || base).

    Unbiased where the completions were sampled from the policy at temperature 1; on greedy answers only a log-ratio.
    """
    sums, tokens = [], 0
    for policy, base in log_probs:
        sums.append(float(np.sum(np.asarray(policy, float) - np.asarray(base, float))))
        tokens += len(policy)
    return (sum(sums) / tokens if tokens else 0.0), (sum(sums) / len(sums) if sums else 0.0)


def _metrics(result: HeldoutResult, scored: bool) -> dict[str, float]:
    completions = [completion for group in result.groups for completion in group.completions]
    lengths = np.array([completion.num_tokens for completion in completions], float)
    metrics = {
        "completions/mean_length": float(lengths.mean()),
        "completions/clipped_ratio": float(np.mean([completion.truncated for completion in completions])),
    }
    if not scored:
        return metrics
    rewards = [completion.reward for completion in completions if completion.reward is not None]
    if rewards:
        metrics["reward"] = float(np.mean(rewards))
    unparsable = [
        any(judgement.outcome is Outcome.UNPARSABLE for judgement in completion.judgements.values())
        for completion in completions
    ]
    metrics["unparsable_frac"] = float(np.mean(unparsable))
    metrics["unjudged_frac"] = 1 - float(result.judged.sum()) / len(completions)
    for verdict, name in ((True, "correct"), (False, "wrong")):
        chosen = [length for length, completion in zip(lengths, completions) if completion.correct is verdict]
        if chosen:
            metrics[f"completions/mean_length_{name}"] = float(np.mean(chosen))
    return metrics | _pass_at_k_metrics(result)


def _pass_at_k_metrics(result: HeldoutResult) -> dict[str, float]:
    """pass@k for powers of two up to half the samples, over the prompts whose answers were all judged."""
    whole = result.judged == result.samples
    if not whole.any():
        return {}
    return {
        f"pass@{k}": float(np.mean(pass_at_k(result.samples, result.correct[whole], k)))
        for k in powers_of_two(result.samples // 2)
        if k > 1
    }


def unique_keys(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Content keys; a prompt that occurs again gets its occurrence added, so that results still pair one to one."""
    seen: dict[str, int] = {}
    keys = []
    for prompt in prompts:
        key = prompt.content_key or content_key(prompt.content, prompt.media)
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return tuple(keys)
