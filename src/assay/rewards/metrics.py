"""What a round of marking looked like: shares of outcomes, latencies, and what the functions logged."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.records import Completion, Group, Outcome
from assay.rewards.registry import RewardFunction

LOGGER = logging.getLogger("assay.rewards")
COUNTED = (Outcome.UNPARSABLE, Outcome.TIMEOUT, Outcome.ERROR, Outcome.NOT_APPLICABLE)


def round_metrics(
    groups: Sequence[Group], functions: Sequence[RewardFunction], marks: Sequence[Any]
) -> dict[str, float]:
    """Shares of completions by outcome, latency per completion in seconds, and `log_metric` means weighted by count.

    `verifier/{outcome}_frac` is over the applicable judgements of all functions, `verifier/{outcome}_frac/{name}` over
    those of one. `verifier/gold_unreadable_frac` is part of the errors: rows whose reference answer is broken.
    """
    metrics: dict[str, float] = {}
    found = [c.judgements[f.name] for g in groups for c in g.completions for f in functions if f.name in c.judgements]
    metrics |= shares(found, "")
    for function in functions if len(functions) > 1 else ():
        own = [c.judgements[function.name] for g in groups for c in g.completions if function.name in c.judgements]
        metrics |= shares(own, f"/{function.name}")
    seconds: dict[str, list[float]] = defaultdict(list)
    logged: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for group_marks in marks:
        for function, part in group_marks:
            seconds[function.name] += part.seconds
            for number, (offset, call) in enumerate(part.logged):
                end = part.logged[number + 1][0] if number + 1 < len(part.logged) else len(part.judgements)
                for name, values in call.metrics.items():
                    logged[name] += [(value, end - offset) for value in values]
    everything = [second for values in seconds.values() for second in values]
    for percent in (50, 95, 99) if everything else ():
        metrics[f"verifier/latency_p{percent}"] = float(np.percentile(everything, percent))
    for name, values in logged.items():
        metrics[name] = sum(value * count for value, count in values) / max(1, sum(count for _, count in values))
    return metrics


def applies(completion: Completion) -> bool:
    return any(judgement.outcome is not Outcome.NOT_APPLICABLE for judgement in completion.judgements.values())


def shares(judgements: Sequence[Any], suffix: str) -> dict[str, float]:
    total = len(judgements)
    applicable = sum(judgement.outcome is not Outcome.NOT_APPLICABLE for judgement in judgements)
    metrics = {}
    for outcome in COUNTED:
        count = sum(judgement.outcome is outcome for judgement in judgements)
        base = total if outcome is Outcome.NOT_APPLICABLE else applicable
        metrics[f"verifier/{outcome}_frac{suffix}"] = count / base if base else 0.0
    unreadable = sum(judgement.detail.startswith("gold unreadable") for judgement in judgements)
    metrics[f"verifier/gold_unreadable_frac{suffix}"] = unreadable / applicable if applicable else 0.0
    return metrics


def report_failures(groups: Sequence[Group]) -> None:
    """One warning a round and cause for what was not the completions' fault, with an example."""
    causes: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for group in groups:
        for index, completion in enumerate(group.completions):
            for name, judgement in completion.judgements.items():
                if judgement.outcome in (Outcome.ERROR, Outcome.TIMEOUT):
                    causes[name, str(judgement.outcome)] += 1
                    where = f"completion {index} of prompt {group.prompt.content_key or group.prompt.content!r}"
                    examples.setdefault((name, str(judgement.outcome)), f"{judgement.detail} ({where})")
    for (name, outcome), count in causes.items():
        LOGGER.warning("reward %s: %d x %s, first: %s", name, count, outcome, examples[name, outcome][:400])
    skipped = [group for group in groups if not any(map(applies, group.completions))]
    if skipped:
        LOGGER.warning(
            "no reward function applies to %d of %d groups, for one prompt %r: they cannot be learned from",
            len(skipped), len(groups), skipped[0].prompt.content_key or skipped[0].prompt.content,
        )  # fmt: skip
