"""MM: do sampler and trainer agree about the same tokens? AS: how old is what we train on?"""

from __future__ import annotations

import numpy as np

from assay.monitoring.doctor.case import Case, NotCheckable, TooEarly
from assay.monitoring.doctor.finding import Finding
from assay.monitoring.doctor.rule import rule
from assay.monitoring.doctor.statistics import linear_fit

GAP = "sampling/sampling_logp_difference/mean"
RATIO = "sampling/importance_sampling_ratio/mean"
ESS = ("sampling/effective_sample_size", "sampling/ess_frac")
MASKED = ("sampling/masked_frac", "sampling/outside_bounds")
RETOKENISED = ("sampling/retokenised_frac", "tools/retokenised_frac")


@rule("MM04", "tokens that were never sampled")
def retokenised(case: Case) -> Finding | None:
    if not any(case.has(name) for name in RETOKENISED):
        raise NotCheckable(
            f"needs {RETOKENISED[0]}; runs of assay carry token ids and never tokenise a history again, other trainers "
            "may log it"
        )
    name = case.first_of(*RETOKENISED)
    rate = case.rate(name)
    if rate.value == 0:
        return None
    return Finding(
        "MM04",
        "error",
        "training sees tokens that the sampler never wrote",
        f"the history's tokens differ from the sampled ones in {rate}",
        "carry token ids from turn to turn; never decode and tokenise again",
        key="rollout.engine",
        window=case.span(name),
    )


@rule("MM03", "a sampler with a smaller vocabulary than the trainer's")
def support(case: Case) -> Finding | None:
    _, values = case.window(RATIO)
    if len(values) < 10:
        raise TooEarly(f"needs 10 steps with {RATIO}, has {len(values)}")
    mean = float(values.mean())
    if not (0.5 < mean < 0.97 and values.std() < 0.03):
        return None
    cut = {name: case.fact(name) for name in ("top_p", "top_k", "min_p") if case.fact(name)}
    shown = ", ".join(f"{name}={value}" for name, value in cut.items())
    return Finding(
        "MM03",
        "error",
        "the sampler draws from a truncated distribution, the trainer scores the whole one",
        f"the importance ratio stands at {mean:.3f} (std {values.std():.3f} between steps): the kept mass of the "
        f"sampler" + (f"; {shown}" if shown else ""),
        "train with top_p 1, top_k 0 and min_p 0, and ask the engine for log-probs of the distribution it samples from",
        key="rollout.top_p",
        window=case.span(RATIO),
    )


@rule("MM05", "an engine that does not get new weights")
def stale_engine(case: Case) -> Finding | None:
    steps, gaps = case.history.series(case.first_of(GAP))
    if len(gaps) < case.thresholds.trend_steps:
        raise TooEarly(f"needs {case.thresholds.trend_steps} steps with {GAP}, has {len(gaps)}")
    segments = np.split(np.arange(len(gaps)), np.flatnonzero(np.diff(gaps) < -0.5 * gaps.max()) + 1)
    longest = max(segments, key=len)
    if len(longest) < 15:
        return None
    start, end, explained = linear_fit(steps[longest], gaps[longest])
    if explained < 0.85 or end < 2 * case.thresholds.logp_gap_rising or start > 0.35 * end:
        return None
    resets = len(segments) - 1
    return Finding(
        "MM05",
        "error",
        "the engine keeps sampling from old weights",
        f"the log-prob gap grows in a straight line with the updates, {max(start, 0):.3g} -> {end:.3g} nats (R^2 "
        f"{explained:.2f})" + (f", and fell back {resets} time(s), as after a restart" if resets else ""),
        "push the weights after every update and prove it with a checksum or a perturbed tensor",
        key="rollout.engine",
        window=(int(steps[longest][0]), int(steps[longest][-1])),
    )


@rule("MM01", "sampler and trainer that disagree")
def mismatch(case: Case) -> Finding | None:
    limits = case.thresholds
    now = case.recent(GAP)
    rising = False
    if len(case.history.series(GAP)[1]) >= limits.trend_steps:
        rising = case.trend(GAP, whole=True).rises() and now > limits.logp_gap_factor * case.early(GAP)
    correlation = case.recent("sampling/logp_correlation") if case.has("sampling/logp_correlation") else 1.0
    high = now > limits.logp_gap or correlation < limits.logp_correlation
    if not high and not (rising and now > limits.logp_gap_rising):
        return None
    return Finding(
        "MM01",
        "error" if now > 2 * limits.logp_gap else "warning",
        "sampler and trainer give the same tokens different probabilities",
        f"mean log-prob gap {now:.3g} nats"
        + (f", up from {case.early(GAP):.3g}" if rising else "")
        + (f"; correlation {correlation:.3f}" if correlation < 1 else ""),
        "use the same dtype in both, an fp32 LM head, and a truncated importance weight for the rest",
        key="model.fp32_lm_head",
        window=case.span(GAP),
    )


@rule("MM02", "importance weights that throw answers away")
def weights_vanish(case: Case) -> Finding | None:
    name = case.first_of(*ESS, *MASKED)
    ess = next((case.recent(found) for found in ESS if case.has(found)), None)
    masked = next((case.recent(found) for found in MASKED if case.has(found)), None)
    lost = ess is not None and ess < case.thresholds.effective_samples
    cut = masked is not None and masked > case.thresholds.masked
    if not lost and not cut:
        return None
    gap = (
        f"; the gap is only {case.recent(GAP):.3g} nats a token, but a product over tokens multiplies it"
        if case.has(GAP)
        else ""
    )
    return Finding(
        "MM02",
        "error",
        "importance weights silently drop most of the data",
        " and ".join(
            ([f"the effective sample size is {ess:.0%}"] if lost and ess is not None else [])
            + ([f"{masked:.0%} of the weights fall outside their bounds"] if cut and masked is not None else [])
        )
        + gap,
        "use token-level weights, or the geometric mean over the sequence, instead of the product",
        key="objective.vllm_importance_sampling_mode",
        window=case.span(name),
    )


@rule("AS01", "data that is too old")
def stale(case: Case) -> Finding | None:
    now = case.recent("staleness/mean")
    # Ages are in updates, `rollout.max_staleness` in rounds.
    updates = int(case.fact("steps_per_generation") or 1) * int(case.fact("num_iterations") or 1)
    limit = updates * int(case.fact("max_staleness") or 0)
    if now < 1.5 and not (limit and now >= 0.9 * limit):
        return None
    gap = next((name for name in (GAP, "sampling/mismatch_kl", "clip_ratio/region_mean") if case.has(name)), None)
    if gap is None or not (case.trend(gap, whole=True).rises() and case.recent(gap) > 2 * case.early(gap)):
        return None
    return Finding(
        "AS01",
        "error" if case.outcome_falls() else "warning",
        "stale data pulls the policy off course",
        f"tokens are {now:.1f} updates old on average"
        + (f" (limit {limit})" if limit else "")
        + f", and {gap} rose {case.trend(gap, whole=True)}",
        "a shallower pipeline, and an objective with a trust region (clipping or a truncated weight)",
        key="rollout.max_staleness" if limit else "train.steps_per_generation",
        window=case.span("staleness/mean"),
    )


@rule("AS02", "groups that are thrown away as too old")
def dropped(case: Case) -> Finding | None:
    if not case.has("staleness/dropped_frac"):
        raise NotCheckable(
            "needs staleness/dropped_frac; runs of assay bound the age before they write and drop no group for it"
        )
    rate = case.rate("staleness/dropped_frac", "groups/count")
    if rate.low <= case.thresholds.dropped:
        return None
    return Finding(
        "AS02",
        "warning",
        "groups are discarded as stale, the long ones first",
        f"{rate} of the finished groups were thrown away",
        "finish and withhold instead of cancelling; generate less far ahead",
        key="train.steps_per_generation",
        window=case.span("staleness/dropped_frac"),
    )
