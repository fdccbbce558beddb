"""HK: is the reward earned by what it was meant for? These rules detect and show; they cannot prevent, and nothing here
may become a penalty: a policy that is punished for what it says learns to hide it."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.monitoring.doctor.case import Case, NotCheckable, TooEarly, flags_of
from assay.monitoring.doctor.finding import Finding
from assay.monitoring.doctor.paired import Change, paired_change
from assay.monitoring.doctor.rule import rule
from assay.monitoring.doctor.rules_outcome import heldout_se, heldout_series
from assay.monitoring.doctor.statistics import Z95, wilson
from assay.rewards.watch import ANSWER, STATED, TEXT_FLAGS, hedges

PERTURBED = ("heldout/perturbed/accuracy", "heldout/perturbed_accuracy")
RUNS = re.compile(r"(\S)\1{15,}")


@rule("HK05", "tampering with the grader")
def tampering(case: Case) -> Finding | None:
    rows = [row for row in case.rollouts if row["reward"] is not None]
    if not any('"flags"' in (row["tags"] or "") for row in rows):
        raise NotCheckable("needs flags of the tampering detector (the scorer attaches them)")
    if not any(_tampering(row) or "```" in (row["text"] or "") for row in rows):
        raise NotCheckable("needs programs: none of the newest completions holds one")
    paid, unpaid = _by_reward(rows)
    flagged = [row for row in paid if _tampering(row)]
    if not paid:
        return None
    rate = wilson(len(flagged), len(paid))
    other = sum(bool(_tampering(row)) for row in unpaid) / len(unpaid) if unpaid else 0.0
    if rate.low <= case.thresholds.tampering:
        return None
    kinds: dict[str, int] = {}
    for row in flagged:
        for flag in _tampering(row):
            kinds[flag] = kinds.get(flag, 0) + 1
    shown = ", ".join(f"{name} {count}" for name, count in sorted(kinds.items(), key=lambda item: -item[1])[:4])
    pays = rate.low > other
    return Finding(
        "HK05",
        "error" if pays else "info",
        "rewarded programs tamper with their grader"
        if pays
        else "programs carry tampering flags, but the flagged ones are not the ones that are paid",
        f"{rate} of the rewarded completions carry flags ({shown}), {other:.1%} of the unrewarded",
        "grade from outside the program's process, with a result that it cannot forge; a list of patterns is no "
        "defence",
        key="rewards.functions",
        rollouts=case.pick(flagged),
    )


def _tampering(row: Mapping[str, Any]) -> list[str]:
    """Flags about the program; those about the text have rules of their own."""
    return [flag for flag in flags_of(row) if flag not in TEXT_FLAGS]


@rule("HK03", "answers that hedge")
def hedging(case: Case) -> Finding | None:
    paid, _ = _by_reward([row for row in case.rollouts if row["reward"] is not None])
    answered = [row for row in paid if ANSWER.search(row["text"] or "")]
    if len(answered) < 50:
        raise NotCheckable("needs 50 rewarded completions with \\boxed{} or <answer> tags")
    hedged = [row for row in answered if hedges(row["text"])]
    rate = wilson(len(hedged), len(answered))
    if rate.low <= case.thresholds.hedging:
        return None
    return Finding(
        "HK03",
        "warning",
        "rewarded answers name several values",
        f"{rate} of the rewarded completions give more than one answer",
        "accept exactly one answer; anything else is wrong",
        key="rewards.functions",
        rollouts=case.pick(hedged),
    )


@rule("HK04", "text that degenerates")
def degeneration(case: Case) -> Finding | None:
    limits = case.thresholds
    metric = "completions/repetition"
    if case.has(metric) and len(case.window(metric)[1]) >= 10:
        now, early = case.recent(metric), case.early(metric)
        if now > limits.repetition and now > early + 0.1:
            return Finding(
                "HK04",
                "warning",
                "completions repeat themselves",
                f"share of repeated 4-grams {early:.2f} -> {now:.2f}",
                "stop at the best checkpoint; read what the repetitive completions earn, and clip higher if entropy "
                "collapsed",
                key="objective.epsilon_high",
                window=case.span(metric),
                rollouts=case.newest_rollouts(),
            )
    texts = [row for row in case.rollouts if len(row["text"] or "") > 40]
    if len(texts) < 50:
        raise NotCheckable("needs completions/repetition, or 50 stored completions of some length")
    loops = [row for row in texts if _degenerate(row["text"])]
    rate = wilson(len(loops), len(texts))
    if rate.low <= limits.degenerate:
        return None
    return Finding(
        "HK04",
        "warning",
        "completions degenerate into loops",
        f"{rate} of the newest completions are runs of one character or compress to almost nothing",
        "go back to a checkpoint before this began; look for broken numerics (OP01) and collapsed entropy (EN01)",
        key="model.dtype",
        rollouts=case.pick(loops),
    )


def _degenerate(text: str) -> bool:
    raw = text.encode()
    return bool(RUNS.search(text)) or (len(raw) > 400 and len(zlib.compress(raw)) / len(raw) < 0.08)


@rule("HK01", "reward that rises without the held-out score")
def divergence(case: Case) -> Finding | None:
    steps, values = heldout_series(case, 4)
    trained = _movement(case, "reward")
    if trained < case.thresholds.reward_moved or not case.trend("reward", whole=True).rises():
        return None
    found = _heldout_change(case, values)
    gained, half = found.value, found.half
    if gained - half > 0 or gained > 0.3 * trained:
        return None
    few = 0 < found.prompts < case.thresholds.paired_prompts
    if few or gained + half > 0.5 * trained:
        raise TooEarly(
            f"cannot tell: held-out moved {found} while reward moved {trained:+.3f}; use more held-out prompts "
            "(eval.prompts)"
        )
    return Finding(
        "HK01",
        "error",
        "reward rises, the held-out score does not: the policy learns the verifier, not the task",
        f"reward {trained:+.3f}, {case.heldout} {found} over the same steps",
        "read the best-rewarded completions; grade a sample with a second, stricter verifier and close the gap that "
        "it shows",
        key="rewards.functions",
        window=(int(steps[0]), int(steps[-1])),
        rollouts=_best_paid(case),
    )


def _heldout_change(case: Case, values: np.ndarray) -> Change:
    """Start against end of the held-out score: prompt by prompt where the verdicts were kept, else by shares."""
    figure = (case.heldout or "").removeprefix("heldout/")
    paired = paired_change(case.run.directory, figure) if case.run.path.is_dir() else None
    if paired is not None:
        return paired
    size = max(2, len(values) // 4)
    first, last = float(np.mean(values[:size])), float(np.mean(values[-size:]))
    # A paired difference has about a fifth to half of the unpaired variance; this errs on the side of silence.
    return Change(last - first, Z95 * math.sqrt(2) * heldout_se(case, (first + last) / 2))


@rule("HK02", "reward that is paid for length")
def length_paid(case: Case) -> Finding | None:
    pairs = _residuals(case.groups().values())
    if len(pairs) < 200:
        raise TooEarly(f"needs 200 completions in groups that differ inside, has {len(pairs)}")
    rewards, lengths = np.array(pairs).T
    if np.ptp(lengths) == 0:
        return None
    correlation = float(np.corrcoef(rewards, lengths)[0, 1])
    longer = case.trend("completions/mean_length", whole=True)
    if (
        correlation <= case.thresholds.length_correlation
        or not longer.rises(0.1 * longer.start)
        or case.heldout_rises()
    ):
        return None
    if case.heldout is None and case.has("accuracy") and case.outcome_rises():
        return None
    return Finding(
        "HK02",
        "warning",
        "longer answers are paid more, and answers grow",
        f"within groups reward and length correlate at {correlation:.2f} ({len(pairs)} completions); mean length "
        f"{longer}",
        "find the reward term that grows with length; add a cost a token, or the soft overlong penalty",
        key="rewards.functions",
        window=case.span("completions/mean_length"),
        rollouts=_best_paid(case),
    )


@rule("HK06", "stated intent to please the checker")
def intent(case: Case) -> Finding | None:
    rows = [row for row in case.rollouts if STATED.search(row["text"] or "")]
    if not rows:
        return None
    return Finding(
        "HK06",
        "info",
        "completions talk about the checker rather than the task",
        f"{len(rows)} of {len(case.rollouts)} newest completions do",
        "read them; never punish the words, which teaches to hide them, but close the hole that they describe",
        rollouts=case.pick(rows),
    )


@rule("HK07", "answers that fail when the question is rephrased")
def perturbation(case: Case) -> Finding | None:
    if not any(case.has(name) for name in PERTURBED):
        raise NotCheckable(
            f"needs {PERTURBED[0]}: a held-out score on renamed or re-parameterised questions, which only you can write"
        )
    plain, changed = case.first_of("heldout/accuracy"), case.first_of(*PERTURBED)
    gap = case.recent(plain) - case.recent(changed)
    if gap <= max(0.05, 3 * heldout_se(case, case.recent(plain))):
        return None
    return Finding(
        "HK07",
        "warning",
        "right answers do not survive renamed or re-parameterised questions",
        f"accuracy {case.recent(plain):.3f}, on perturbed questions {case.recent(changed):.3f}",
        "train on perturbed variants; suspect memorised or leaked answers",
        key="data",
    )


def _movement(case: Case, name: str) -> float:
    found = case.trend(name, whole=True)
    return found.change


def _by_reward(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Rows at the highest reward seen, and the others."""
    if not rows:
        return [], []
    top = max(row["reward"] for row in rows)
    return [row for row in rows if row["reward"] >= top], [row for row in rows if row["reward"] < top]


def _residuals(groups: Any) -> list[tuple[float, float]]:
    """(reward, length) of each completion, centred in its group; uniform groups say nothing."""
    pairs = []
    for rows in groups:
        scored = [row for row in rows if row["reward"] is not None and row["num_tokens"] is not None]
        if len({row["reward"] for row in scored}) < 2:
            continue
        rewards = np.array([row["reward"] for row in scored], float)
        lengths = np.array([row["num_tokens"] for row in scored], float)
        pairs += list(zip(rewards - rewards.mean(), lengths - lengths.mean()))
    return pairs


def _best_paid(case: Case) -> tuple[str, ...]:
    try:
        paid, _ = _by_reward([row for row in case.rollouts if row["reward"] is not None])
    except NotCheckable:
        return ()
    return case.pick(paid)
