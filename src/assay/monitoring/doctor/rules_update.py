"""OP: is the update sound? EN, KL: where does it carry the policy?"""

from __future__ import annotations

import math

import numpy as np

from assay.monitoring.doctor.case import Case, TooEarly
from assay.monitoring.doctor.finding import Finding
from assay.monitoring.doctor.rule import rule
from assay.monitoring.doctor.statistics import Trend, spread

# A NaN in these is a reward's or an evaluation's, and other rules speak about it.
NOT_NUMERIC_TROUBLE = ("reward", "heldout/", "verifier/", "time/", "memory/")


@rule("OP01", "numbers that are not finite")
def non_finite(case: Case) -> Finding | None:
    broken = [
        (step, name, value) for step, name, value in case.history.nonfinite if not name.startswith(NOT_NUMERIC_TROUBLE)
    ]
    if not broken:
        return _dumped(case) or _nothing_sampled(case)
    first = min(step for step, _, _ in broken)
    names = sorted({f"{name}={value}" for step, name, value in broken if step == first})
    return Finding(
        "OP01",
        "error",
        "the numbers of the update are broken (NaN or infinity)",
        f"first at step {first}: {', '.join(names[:6])}; {len({step for step, _, _ in broken})} step(s) in all",
        "go back to the last checkpoint before that step and look at the dumped batch; then try fp32 or bf16 instead "
        "of fp16, "
        "another attention kernel, a lower learning rate",
        key="model.dtype",
        window=(first, max(step for step, _, _ in broken)),
    )


def _dumped(case: Case) -> Finding | None:
    """A run that stopped before a broken number reached the log leaves the batch that led to it."""
    dumps = sorted(case.run.directory.glob("nan-step-*.pt")) if case.run.path.is_dir() else []
    if not dumps:
        return None
    rate = case.fact("learning_rate")
    return Finding(
        "OP01",
        "error",
        "the run stopped at numbers that are not finite (NaN or infinity)",
        f"the batches are in {', '.join(path.name for path in dumps[:3])}; last whole step "
        f"{int(case.history.steps[-1]) if len(case.history) else 0}"
        + (f"; learning_rate {rate:g}" if isinstance(rate, (int, float)) else ""),
        "lower the learning rate; if it was usual, try float32 or another attention kernel, and look at the batch",
        key="train.learning_rate",
    )


def _nothing_sampled(case: Case) -> Finding | None:
    """Weights that are not finite write tokens without log-probs, and no group of them ever differs."""
    name = "sampling/missing_frac"
    if not case.has(name):
        return None
    steps, missing = case.history.series(name)
    lost = steps[missing > 0.5]
    if not len(lost) or missing[0] > 0.5:
        return None
    return Finding(
        "OP01",
        "error",
        "the weights are not finite any more: the sampler has no log-probs for what it writes",
        f"{name} went from {missing[0]:.0%} to {missing[-1]:.0%}, first at step {lost[0]}",
        "go back to a checkpoint before that step; lower the learning rate, and keep max_grad_norm on",
        key="train.learning_rate",
        window=(int(lost[0]), int(lost[-1])),
    )


@rule("OP05", "an update that broke the policy")
def broken_at_once(case: Case) -> Finding | None:
    entropy, score = case.first_of("sampling/entropy", "entropy"), case.first_of("accuracy", "reward")
    steps, entropies = case.history.series(entropy)
    at, scores = case.history.series(score)
    shared = np.intersect1d(steps, at)
    if len(shared) < 8:
        raise TooEarly(f"needs 8 steps with {entropy} and {score}, has {len(shared)}")
    entropies, scores = entropies[np.isin(steps, shared)], scores[np.isin(at, shared)]
    jumps = np.abs(np.diff(np.log(np.maximum(entropies, 1e-6))))
    place = int(np.argmax(jumps[:-5])) + 1
    before, after = slice(max(0, place - 5), place), slice(place + 1, None)
    level, left = float(np.mean(scores[before])), float(np.quantile(scores[after], 0.9))
    was, now = float(np.median(entropies[before])), float(np.median(entropies[after]))
    lasting = max(now, 1e-6) / max(was, 1e-6)
    if level < 0.05 or left > 0.3 * level or 1 / 3 < lasting < 2:
        return None
    rate = case.fact("learning_rate")
    return Finding(
        "OP05",
        "error",
        "one update broke the policy, and it never came back",
        f"between steps {shared[place - 1]} and {shared[place]} {entropy} went from {was:.2g} to {now:.2g} nats and "
        f"{score} from {level:.2f} to {float(np.mean(scores[after])):.2f}"
        + (f"; learning_rate {rate:g}" if isinstance(rate, (int, float)) else ""),
        "go back to a checkpoint before that step and lower the learning rate (LoRA about 1e-5 to 1e-4, full "
        "fine-tuning about 1e-6); warm up, and keep max_grad_norm on",
        key="train.learning_rate",
        window=(int(shared[place - 1]), int(shared[-1])),
        rollouts=case.newest_rollouts(),
    )


@rule("OP02", "updates that change nothing")
def no_update(case: Case) -> Finding | None:
    steps, norms = case.window("grad_norm")
    if len(norms) < 10:
        raise TooEarly(f"needs 10 steps with grad_norm, has {len(norms)}")
    zero = float((norms == 0).mean())
    if zero <= case.thresholds.zero_gradient:
        return None
    skipped = case.recent("skipped_update") if case.has("skipped_update") else None
    return Finding(
        "OP02",
        "error",
        "the gradient is exactly zero on most steps",
        f"grad_norm = 0 on {zero:.0%} of steps {steps[0]} to {steps[-1]}"
        + (f"; {skipped:.0%} of the updates were skipped for lack of signal" if skipped else ""),
        "if groups are mixed, parameters are frozen or detached: check LoRA targets and that the adapter is trainable",
        key="model.lora_targets",
        window=case.span("grad_norm"),
    )


@rule("OP03", "spikes of gradient or advantage")
def spikes(case: Case) -> Finding | None:
    steps, norms = case.history.series(case.first_of("grad_norm"))
    if len(norms) < 20:
        raise TooEarly(f"needs 20 steps with grad_norm, has {len(norms)}")
    limits = case.thresholds
    middle, sigma = float(np.median(norms)), spread(norms)
    high = (norms > middle + limits.spike_sigmas * sigma) & (norms > limits.spike_factor * middle) & (middle > 0)
    # A blow-up that lasts is drift, which other rules describe; a spike stands alone.
    spiked = steps[high] if high.mean() < 0.1 else steps[:0]
    size = case.fact("num_generations")
    largest = None
    if case.has("advantages/max") and size:
        worst = max(float(np.abs(case.history.series(name)[1]).max()) for name in case.history.matching("advantages/m"))
        largest = worst if worst > 3 * math.sqrt(size) else None
    if not len(spiked) and largest is None:
        return None
    parts = []
    if len(spiked):
        at = int(spiked[-1])
        parts.append(f"grad_norm {norms[steps == at][0]:.3g} at step {at} against a median of {middle:.3g}")
    if largest is not None:
        parts.append(
            f"largest advantage {largest:.3g}, where {math.sqrt(size):.1f} is about the most that G={size} allows"
        )
    # A spike that was scaled down to max_grad_norm did the harm of one usual step.
    clipped = float(case.fact("max_grad_norm") or 0) > 0
    return Finding(
        "OP03",
        "error" if largest is not None else "info" if clipped else "warning",
        "single updates are far larger than the rest",
        "; ".join(parts),
        "a group whose rewards differ by rounding error has a tiny standard deviation: centre without scaling, or "
        "raise "
        "std_eps to 1e-3; keep max_grad_norm on",
        key="objective.std_eps" if largest is not None else "train.max_grad_norm",
        window=(int(spiked[0]), int(spiked[-1])) if len(spiked) else None,
    )


@rule("OP04", "too much clipping")
def clipping(case: Case) -> Finding | None:
    name = case.first_of("clip_ratio/region_mean", "clip_ratio/region")
    _, values = case.window(name)
    limits = case.thresholds
    if len(values) < limits.clip_steps:
        raise TooEarly(f"needs {limits.clip_steps} steps with {name}, has {len(values)}")
    last = values[-limits.clip_steps :]
    if np.median(last) <= limits.clip_fraction:
        return None
    rate = case.fact("learning_rate")
    return Finding(
        "OP04",
        "error" if np.median(last) > 2 * limits.clip_fraction else "warning",
        "the policy moves too far within a round: a large share of tokens is clipped",
        f"{np.median(last):.0%} of the tokens were clipped over the last {limits.clip_steps} steps"
        + (f" at learning_rate {rate:g}" if isinstance(rate, float) else ""),
        "lower the learning rate, make fewer updates from one round, and check that accumulation divides the loss once",
        key="train.learning_rate",
        window=case.span(name),
    )


@rule("EN01", "entropy that collapses")
def collapse(case: Case) -> Finding | None:
    name = case.first_of("entropy", "sampling/entropy")
    early, now = case.early(name), case.recent(name)
    fallen = now < case.thresholds.entropy_collapse * early or (
        now < case.thresholds.entropy_floor and early >= 2 * case.thresholds.entropy_floor
    )
    if not fallen or not case.trend(name, whole=True).falls():
        return None
    mixed = _mixed_trend(case)
    success = case.recent(case.first_of("accuracy", "reward"))
    harmless = success > 0.8 or case.outcome_rises()
    if mixed is not None and not mixed.falls():
        return None
    return Finding(
        "EN01",
        "info" if harmless else "warning",
        "entropy has collapsed" + (", with the task learned" if harmless else ": exploration is gone"),
        f"{name} {early:.3g} -> {now:.3g} nats"
        + (f"; mixed groups {mixed}" if mixed else "")
        + f"; success {success:.2f}",
        "clip higher first (epsilon_high 0.28), then a small entropy bonus; check that the temperature is 1.0",
        key="objective.epsilon_high",
        window=case.span(name),
        rollouts=() if harmless else case.newest_rollouts(),
    )


def _mixed_trend(case: Case) -> Trend | None:
    return case.trend("groups/frac_mixed", whole=True) if case.has("groups/frac_mixed") else None


@rule("EN02", "entropy that blows up")
def blow_up(case: Case) -> Finding | None:
    name = case.first_of("entropy", "sampling/entropy")
    early, now = case.early(name), case.recent(name)
    limits = case.thresholds
    if now < limits.entropy_blowup * early or now < limits.entropy_high or not case.trend(name, whole=True).rises():
        return None
    if not case.outcome_falls():
        return None
    return Finding(
        "EN02",
        "warning",
        "entropy grows while results fall: the text degenerates",
        f"{name} {early:.3g} -> {now:.3g} nats; the outcome falls",
        "lower epsilon_high or the temperature, mask truncated completions, drop the entropy bonus",
        key="objective.epsilon_high",
        window=case.span(name),
        rollouts=case.newest_rollouts(),
    )


@rule("KL01", "drift from the reference without gain")
def drift(case: Case) -> Finding | None:
    early, now = case.early("kl"), case.recent("kl")
    if now <= case.thresholds.kl_high or now <= case.thresholds.kl_factor * max(early, 1e-9):
        return None
    if case.outcome_rises():
        return None
    return Finding(
        "KL01",
        "error" if case.outcome_falls() else "warning",
        "the policy leaves the reference and gains nothing by it",
        f"kl {early:.3g} -> {now:.3g} nats a token, while the outcome does not rise",
        "lower the learning rate or raise beta, go back to the best checkpoint, look for shaping rewards that pull "
        "elsewhere",
        key="objective.beta",
        window=case.span("kl"),
    )


@rule("KL02", "a policy that is pinned to the reference")
def pinned(case: Case) -> Finding | None:
    steps, values = case.history.series(case.first_of("kl"))
    if len(values) < 50:
        raise TooEarly(f"needs 50 steps with kl, has {len(values)}")
    if np.abs(values).max() >= case.thresholds.kl_still or case.outcome_rises():
        return None
    if not case.has("frac_reward_zero_std") or case.recent("frac_reward_zero_std") > 0.9:
        return None
    beta = case.fact("beta")
    return Finding(
        "KL02",
        "warning",
        "the policy does not move: learning rate too low, or beta too high",
        f"kl never exceeded {np.abs(values).max():.1e} nats in {len(values)} steps, although "
        f"{1 - case.recent('frac_reward_zero_std'):.0%} of the groups differ inside"
        + (f"; beta={beta}" if beta else ""),
        "raise the learning rate (LoRA about 1e-5 to 1e-4, full fine-tuning about 1e-6), or lower beta",
        key="train.learning_rate",
        window=(int(steps[0]), int(steps[-1])),
    )
