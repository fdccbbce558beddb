"""RW: is the number that the policy learns from a verdict on the answer?"""

from __future__ import annotations

import re

import numpy as np

from assay.monitoring.doctor.case import Case, NotCheckable
from assay.monitoring.doctor.finding import Finding
from assay.monitoring.doctor.rule import rule

# Names that people give to reward terms about the shape of an answer rather than its content.
SHAPE = re.compile(r"format|tag|think|xml|schema|style|boxed|language|tone|brevity|length", re.IGNORECASE)
TAGS = ("</think>", "<think>", "</answer>", "<answer>", "\\boxed", "```")


@rule("RW07", "gold answers that the verifier cannot read")
def gold_unreadable(case: Case) -> Finding | None:
    rate = case.rate("verifier/gold_unreadable_frac")
    if rate.low <= case.thresholds.verifier_failure:
        return None
    return Finding(
        "RW07",
        "error",
        "the verifier cannot read the gold answers",
        f"gold was unreadable for {rate} of the judgements",
        "point the gold column at the final answer (GSM8K's `answer` holds a whole rationale before ####), then run "
        "`assay audit`",
        key="data.fields.gold",
        window=case.span("verifier/gold_unreadable_frac"),
    )


@rule("RW04", "crashes and timeouts of the verifier")
def verifier_sick(case: Case) -> Finding | None:
    limit = case.thresholds.verifier_failure
    rates = {kind: case.rate(f"verifier/{kind}_frac") for kind in ("error", "timeout")}
    sick = {kind: rate for kind, rate in rates.items() if rate.low > limit}
    if sick:
        return Finding(
            "RW04",
            "error",
            "the verifier fails instead of judging",
            "; ".join(f"{kind}s on {rate} of the judgements" for kind, rate in sick.items())
            + ". Those answers are left out of their groups, not marked wrong",
            "read `detail` of those judgements in `assay view`; run the verifier in a killable process with a time "
            "limit",
            key="rewards.functions",
            window=case.span(f"verifier/{next(iter(sick))}_frac"),
        )
    if len(case.history.series("verifier/latency_p95")[1]) < case.thresholds.trend_steps:
        return None
    found = case.trend("verifier/latency_p95", whole=True)
    if found.rises() and found.start > 0 and found.end > case.thresholds.verifier_latency_factor * found.start > 0.02:
        return Finding(
            "RW04",
            "warning",
            "the verifier becomes slower and slower",
            f"95th percentile of its time per answer rose {found} s over the run",
            "look for workers that hang in a computation that never ends; use a hard time limit a worker cannot ignore",
            key="rewards.sample_timeout_s",
            window=case.span("verifier/latency_p95"),
        )
    return None


@rule("RW02", "a format reward that never pays")
def format_zero(case: Case) -> Finding | None:
    functions = case.functions()
    shapes = [name for name in functions if SHAPE.search(name)]
    if not shapes:
        raise NotCheckable("needs a reward function about format (rewards/<name>/mean)")
    paying = [name for name in functions if name not in shapes and case.recent(f"rewards/{name}/mean") > 0.01]
    for name in shapes:
        metric = f"rewards/{name}/mean"
        case.need_groups(metric)
        if np.abs(case.window(metric)[1]).max() >= 0.01 or not (paying or len(shapes) == len(functions)):
            continue
        tagged = _tagged(case)
        seen = f"; {tagged} of the newest completions carry such tags" if tagged else ""
        return Finding(
            "RW02",
            "error",
            f"the format reward `{name}` never pays",
            f"its mean is 0 on every step of the window, while {', '.join(paying) or 'nothing else'} pays{seen}",
            "the chat template may put the opening tag into the prompt, where the reward cannot see it: make the "
            "opening "
            "tag optional, or prompt for the format",
            key="rewards.functions",
            window=case.span(metric),
        )
    return None


def _tagged(case: Case) -> str:
    try:
        texts = [row["text"] or "" for row in case.rollouts]
    except NotCheckable:
        return ""
    count = sum(any(tag in text for tag in TAGS) for text in texts)
    return f"{count} of {len(texts)}" if count else ""


@rule("RW01", "a reward that is zero for everything")
def dead(case: Case) -> Finding | None:
    _, rewards = case.window("reward")
    case.need_groups("reward")
    if np.ptp(rewards) > 0 or not case.is_uniform() or rewards[0] > 0:
        return None
    unparsable = case.unparsable()
    if case.has("completions/clipped_ratio"):
        clipped = case.rate("completions/clipped_ratio").value
        # What is cut off has no answer, which TR01 tells; more than that has none either.
        if clipped >= 0.3 and (unparsable is None or unparsable.value <= clipped):
            return None
    evidence = f"reward is {rewards[0]:g} for every completion of {case.groups_seen('reward'):.0f} groups"
    if unparsable is not None:
        evidence += f"; the verifier found no answer in {unparsable.value:.0%} of them"
        if unparsable.low < 0.5 and case.gives_verdicts():
            # Answers are read and judged wrong: that is ability (GR01), unless nothing else can tell.
            return None
    return Finding(
        "RW01",
        "error",
        "the verifier never pays: suspect the parser before the model",
        evidence,
        "feed it gold answers in the model's own output format (`assay audit`); a parser or thinking toggle that "
        "disagrees "
        "with the template is commoner than a task that is too hard",
        key="rewards.functions",
        window=case.span("reward"),
        rollouts=case.newest_rollouts(),
    )


@rule("RW05", "a reward function that says the same of everything")
def constant(case: Case) -> Finding | None:
    names = [f"rewards/{name}" for name in case.functions()] or ["reward"]
    stuck = []
    for name in names:
        mean, std = (f"{name}/mean", f"{name}/std") if name != "reward" else ("reward", "reward_std")
        if not case.has(mean, std):
            continue
        _, means = case.window(mean)
        case.need_groups(mean)
        if np.ptp(means) == 0 and np.abs(case.window(std)[1]).max() == 0:
            stuck.append((name.removeprefix("rewards/"), float(means[0])))
    # What was learned to perfection is constant too; only a constant from the start is a fault.
    stuck = [(name, value) for name, value in stuck if case.constant_from_start(name)]
    if not stuck or (all(value <= 0 for _, value in stuck) and len(stuck) == len(names)):
        return None
    name, value = next(((name, value) for name, value in stuck if value > 0), stuck[0])
    severity = "error" if len(stuck) == len(names) else "warning"
    paid = value > 0
    return Finding(
        "RW05",
        severity,
        f"`{name}` gives {value:g} to every completion" + (", right or wrong" if paid else ""),
        f"its standard deviation is 0 on every step since the first; {case.groups_seen('reward'):.0f} groups in the "
        f"window",
        "a fallback may pay when gold cannot be parsed: return None there, and run `assay audit` with wrong and empty "
        "answers"
        if paid
        else "it never fires: try it on gold answers with `assay audit`, or drop it",
        key="rewards.functions",
        window=case.span("reward"),
        rollouts=case.newest_rollouts(),
    )


@rule("RW03", "an easy reward term that is all there is to earn")
def format_owns_reward(case: Case) -> Finding | None:
    functions = case.functions()
    shapes = [name for name in functions if SHAPE.search(name)]
    tasks = [name for name in functions if name not in shapes]
    if not shapes or not tasks:
        raise NotCheckable("needs a format reward and a task reward (rewards/<name>/mean)")
    for name in shapes:
        full = max(case.recent(f"rewards/{name}/mean"), 1e-9)
        spread = case.recent(f"rewards/{name}/std") if case.has(f"rewards/{name}/std") else 0.0
        moves = case.trend(f"rewards/{name}/mean", whole=True)
        saturated = spread < 0.35 * full and full > 0.1 and (moves.change > 0.1 * full or case.early_saturated(name))
        flat = [
            task
            for task in tasks
            if case.recent(f"rewards/{task}/mean") < 0.5
            and not case.trend(f"rewards/{task}/mean", share=0.5).rises(0.01)
            and not case.trend(f"rewards/{task}/mean", whole=True).rises(0.05)
        ]
        if saturated and len(flat) == len(tasks) and not case.heldout_rises():
            levels = ", ".join(f"{task} {case.recent(f'rewards/{task}/mean'):.3g}" for task in flat)
            return Finding(
                "RW03",
                "warning",
                f"the easy term `{name}` is farmed while the task is not learned",
                f"{name} stands at {full:.3g} (std {spread:.2g}); the task stays flat: {levels}",
                "pay the format only together with a right answer, weigh it 0.1 to 0.2, or normalise per function "
                "(multi_objective_aggregation: normalize_then_sum); check that the task reward reads the answer, not "
                "the reasoning",
                key="rewards.functions",
                window=case.span(f"rewards/{name}/mean"),
                rollouts=case.newest_rollouts(),
            )
    return None


@rule("RW06", "completions without a reward")
def coverage(case: Case) -> Finding | None:
    broken = [(step, name) for step, name, _ in case.history.nonfinite if name.startswith("reward")]
    if broken:
        names = ", ".join(sorted({name for _, name in broken}))
        return Finding(
            "RW06",
            "error",
            "rewards that are not numbers",
            f"{names} was not finite on {len({step for step, _ in broken})} step(s), first at step {broken[0][0]}",
            "a reward function returned NaN, or None was averaged: return None for what cannot be scored, and average "
            "without it",
            key="rewards.functions",
            window=(broken[0][0], broken[-1][0]),
        )
    name = case.first_of("rewards/none_frac")
    rate = case.rate(name)
    if rate.low <= case.thresholds.unscored:
        return None
    return Finding(
        "RW06",
        "warning",
        "many completions get no reward at all",
        f"{rate} of the completions had no function that could judge them",
        "find out why in `assay view` (outcome error, timeout or not_applicable); such rows must not enter the "
        "baseline",
        key="rewards.functions",
        window=case.span(name),
    )
