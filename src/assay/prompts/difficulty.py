"""Pass rates of a dataset under a model, and what to keep of it: the core of `assay filter`.

A prompt that shows 0 of 8 is not impossible (at p = 0.05 two in three do), so nothing is given up on one look: such
prompts are sampled again, and while their interval still allows learning they stay, with a smaller weight.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from scipy.stats import binomtest

from assay.errors import InputError
from assay.prompts.beliefs import expected_mixed, fit_prior
from assay.records import Group, Prompt

# Nothing that is kept is kept out of sight for ever: at least one draw in a hundred considers it.
LEAST_WEIGHT = 0.01


@dataclass(frozen=True)
class FilterOptions:
    """How `assay filter` estimates and what it keeps."""

    samples: Annotated[int, "Completions a prompt (k) in the first look; 8 to 16 tell easy from hard."] = 8
    retests: Annotated[int, "Further looks of k completions at prompts that were all right or all wrong so far."] = 1
    low: Annotated[float, "Prompts are kept above this pass rate."] = 0.0
    high: Annotated[float, "Prompts are kept below this pass rate."] = 1.0
    give_up: Annotated[float, "Set a never-solved prompt aside only if its 95% interval lies below this pass rate."] = (
        0.05
    )
    batch: Annotated[int, "Prompts sampled before the estimates are written to disk."] = 16

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise InputError(f"samples is {self.samples}; a pass rate needs at least 2 completions, 8 to 16 are usual")
        if not 0 <= self.low < self.high <= 1:
            raise InputError(f"bounds are {self.low} and {self.high}; they must satisfy 0 <= low < high <= 1")
        if self.retests < 0 or self.batch < 1 or not 0 <= self.give_up <= 1:
            raise InputError(
                f"retests {self.retests}, batch {self.batch}, give_up {self.give_up}: "
                "retests must be 0 or more, batch 1 or more, give_up between 0 and 1"
            )


@dataclass
class Estimate:
    """Counts of one prompt: right and wrong answers, and completions that could not be judged."""

    right: int = 0
    wrong: int = 0
    unjudged: int = 0
    looks: int = 0

    @property
    def judged(self) -> int:
        return self.right + self.wrong

    @property
    def rate(self) -> float | None:
        return self.right / self.judged if self.judged else None

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Wilson's interval of the pass rate; the whole range where nothing was judged.

        >>> low, high = Estimate(right=0, wrong=8).interval()
        >>> round(low, 3), round(high, 3)
        (0.0, 0.324)
        """
        if not self.judged:
            return 0.0, 1.0
        found = binomtest(self.right, self.judged).proportion_ci(level, method="wilson")
        return float(found.low), float(found.high)

    def add(self, group: Group) -> None:
        verdicts = [completion.correct for completion in group.completions]
        self.right += verdicts.count(True)
        self.wrong += verdicts.count(False)
        self.unjudged += verdicts.count(None)
        self.looks += 1


class Store:
    """Counts on disk, one JSON line a look, so that an interrupted run goes on where it stopped.

    The first line says what the counts are of; another model or sampling in the same file is refused.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.estimates: dict[str, Estimate] = {}
        if path.exists() and path.stat().st_size:
            self.read(identity)
        else:
            self.write([{"of": dict(identity)}])

    def read(self, identity: Mapping[str, Any]) -> None:
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            os.truncate(self.path, len(whole))  # the line in which the last run was killed; its prompt is sampled again
        try:
            header, *lines = [json.loads(line) for line in whole.splitlines()] or [{}]
            found = header["of"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.path} does not hold counts of an earlier filter run; give another --output"
            ) from error
        if found != json.loads(json.dumps(identity)):
            raise InputError(
                f"{self.path} holds counts of {found}, this run would count {dict(identity)}; "
                "delete the file or give another --output"
            )
        self.estimates = {line.pop("key"): Estimate(**line) for line in lines}

    def write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def of(self, prompt: Prompt) -> Estimate:
        return self.estimates.setdefault(prompt.content_key, Estimate())

    def add(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self.of(group.prompt).add(group)
        keys = dict.fromkeys(group.prompt.content_key for group in groups)
        self.write([{"key": key, **asdict(self.estimates[key])} for key in keys])


def estimate(
    prompts: Sequence[Prompt],
    sample: Callable[[Sequence[Prompt], int, int], list[Group]],
    store: Store,
    options: FilterOptions,
) -> Iterator[tuple[int, int]]:
    """Fill the store, yielding (prompts done, prompts to do) of the current look after every batch.

    `sample(prompts, k, look)` generates and scores k completions of each prompt; the look number goes into its seeds,
    so that a second look is new evidence. Stopping the iteration at any point loses at most one batch.
    """
    unique = list({prompt.content_key: prompt for prompt in prompts}.values())
    for look in range(options.retests + 1):
        due = [prompt for prompt in unique if needs_look(store.of(prompt), look)]
        waiting = [prompt for prompt in due if store.of(prompt).looks == look]
        yield len(due) - len(waiting), len(due)
        for start in range(0, len(waiting), options.batch):
            part = waiting[start : start + options.batch]
            store.add(sample(part, options.samples, look))
            yield len(due) - len(waiting) + start + len(part), len(due)


def needs_look(found: Estimate, look: int) -> bool:
    """The first look is for everybody; later ones for prompts that never differed, done ones included."""
    return look == 0 or found.looks > look or (found.looks == look and not (found.right and found.wrong))


@dataclass(frozen=True)
class Verdict:
    """What happens to one prompt: `keep`, its `weight` in (0, 1], and why in one word."""

    keep: bool
    reason: str
    weight: float = 1.0


def judge(found: Estimate, options: FilterOptions, weight: float) -> Verdict:
    """Keep what may teach. `weight` is the forecast chance of a mixed group, used for prompts never seen to differ."""
    rate, (_, upper) = found.rate, found.interval()
    if rate is None:
        return Verdict(True, "unjudged", weight)
    if rate == 0:
        hopeless = upper < max(options.give_up, options.low)
        return Verdict(not hopeless, "hopeless" if hopeless else "unsolved", weight)
    if rate == 1:
        return Verdict(False, "solved", weight)
    if rate <= options.low:
        return Verdict(False, "below")
    return Verdict(rate < options.high, "kept" if rate < options.high else "above")


@dataclass(frozen=True)
class Filtered:
    """Rows to train on, rows set aside (never deleted), and the summary of both."""

    kept: list[dict[str, Any]]
    aside: list[dict[str, Any]]
    summary: dict[str, Any]


def apply_filter(
    prompts: Sequence[Prompt], store: Store, options: FilterOptions, generations: Sequence[int] = (4, 8, 16, 32)
) -> Filtered:
    """Decide about every prompt; rows gain columns assay_right, assay_wrong, assay_pass_rate, ... (see `annotate`).

    A curriculum that is given these rows starts from the counts. The summary forecasts for each G the share of mixed
    groups, 1 - p^G - (1-p)^G on average, before and after.
    """
    found = [store.of(prompt) for prompt in prompts]
    right, wrong = (np.array([getattr(item, name) for item in found], float) for name in ("right", "wrong"))
    prior = fit_prior(right, wrong)
    weights = expected_mixed(right, wrong, options.samples, prior)
    forecasts = [max(LEAST_WEIGHT, round(float(weight), 4)) for weight in weights]
    verdicts = [judge(item, options, forecast) for item, forecast in zip(found, forecasts)]
    rows = [annotate(*item) for item in zip(prompts, found, verdicts)]
    keep = np.array([verdict.keep for verdict in verdicts], bool)
    reasons = [verdict.reason for verdict in verdicts]
    summary = {
        "prompts": len(prompts),
        "kept": int(keep.sum()),
        "reasons": {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
        "mean_pass_rate": float(right.sum() / (right.sum() + wrong.sum())) if (right.sum() + wrong.sum()) else None,
        "unjudged_completions": sum(item.unjudged for item in found),
        "mixed": {
            str(count): {
                "before": mean_or_none(expected_mixed(right, wrong, count, prior)),
                "after": mean_or_none(expected_mixed(right[keep], wrong[keep], count, prior)),
            }
            for count in generations
        },
    }
    return Filtered(
        [row for row, kept in zip(rows, keep) if kept], [row for row, kept in zip(rows, keep) if not kept], summary
    )


def annotate(prompt: Prompt, found: Estimate, verdict: Verdict) -> dict[str, Any]:
    low, high = found.interval()
    return {
        **prompt.row,
        "assay_right": found.right,
        "assay_wrong": found.wrong,
        "assay_pass_rate": found.rate,
        "assay_low": round(low, 4),
        "assay_high": round(high, 4),
        "assay_weight": verdict.weight,
        "assay_reason": verdict.reason,
    }


def mean_or_none(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) and not math.isnan(values.mean()) else None
