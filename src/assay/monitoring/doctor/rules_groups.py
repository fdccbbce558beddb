"""GR: do groups differ inside, so that there is anything to learn from? TR: are answers whole?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from assay.monitoring.doctor.case import Case, NotCheckable, TooEarly
from assay.monitoring.doctor.finding import Finding
from assay.monitoring.doctor.rule import rule
from assay.monitoring.doctor.statistics import Rate, trend


@rule("GR05", "groups that mix prompts, or are not of one size")
def grouping(case: Case) -> Finding | None:
    groups = case.groups()
    mixed = [rows for rows in groups.values() if len({row["prompt_key"] for row in rows}) > 1]
    sizes = Counter(len(rows) for rows in groups.values())
    expected = case.fact("num_generations")
    places: dict[tuple[int, str], set[int]] = {}
    for (step, group), rows in groups.items():
        for row in rows:
            places.setdefault((step, row["prompt_key"]), set()).add(group)
    torn = sum(len(numbers) > 1 for numbers in places.values())
    # Without a known G one size must hold for nearly all groups; a trajectory lost here and there is no fault.
    odd = len(groups) - (sizes[expected] if expected else sizes.most_common(1)[0][1])
    if not mixed and odd / len(groups) <= 0.05 and torn / len(places) <= 0.5:
        return None
    what = f"{len(mixed)} of {len(groups)} groups hold several prompts" if mixed else ""
    if torn / len(places) > 0.5:
        what += ("; " if what else "") + f"{torn} of {len(places)} prompts are spread over several groups of one step"
    if odd / len(groups) > 0.05:
        shown = ", ".join(f"{count} of size {size}" for size, count in sizes.most_common(4))
        what += ("; " if what else "") + f"group sizes differ: {shown}" + (f" (G={expected})" if expected else "")
    return Finding(
        "GR05",
        "error",
        "groups are not the answers to one prompt",
        what,
        "give every completion of a prompt the same group id; check the order in which batches are gathered and "
        "reshaped",
        key="rollout.num_generations",
        rollouts=case.pick(mixed[0] if mixed else []),
    )


@rule("GR01", "groups that are all wrong")
def too_hard(case: Case) -> Finding | None:
    case.need_several()
    name, rate = _one_sided(case, "groups/frac_all_wrong", lambda reward: reward < 0.15)
    if rate is None or rate.low <= case.thresholds.uniform_warning:
        return None
    unparsable = case.unparsable()
    if unparsable is not None and unparsable.low > 0.5:
        return None
    if case.too_small_groups():
        return None
    return Finding(
        "GR01",
        "error" if rate.low > case.thresholds.uniform_error else "warning",
        "the prompts are too hard: most groups are all wrong",
        f"{rate} of the groups have no right answer ({name})",
        "drop prompts that the model never solves (`assay filter`), draw more completions a prompt, or start from a "
        "fine-tuned checkpoint",
        key="curriculum.policy",
        window=case.span(name),
        rollouts=case.newest_rollouts(),
    )


@rule("GR02", "groups that are all correct")
def too_easy(case: Case) -> Finding | None:
    case.need_several()
    name, rate = _one_sided(case, "groups/frac_all_correct", lambda reward: reward > 0.85)
    if rate is None or rate.low <= case.thresholds.uniform_warning:
        return None
    from_start = case.rate_early(name, "groups/count").low > case.thresholds.uniform_warning
    return Finding(
        "GR02",
        "warning" if from_start else "info",
        "the prompts are too easy: most groups are all correct" if from_start else "the prompts are mastered by now",
        f"{rate} of the groups are all correct ({name})" + (", as from the first steps on" if from_start else ""),
        "retire solved prompts and add harder ones" if from_start else "stop here, or go on with harder prompts",
        key="curriculum.retire_at",
        window=case.span(name),
    )


def _one_sided(case: Case, name: str, reward_says: Callable[[float], bool]) -> tuple[str, Rate | None]:
    """The share of groups on one side; from uniform groups and an extreme reward where verdicts were not logged."""
    if not case.has(name):
        name = case.first_of("frac_reward_zero_std")
        if not reward_says(case.recent("reward")):
            return name, None
    case.need_groups(name, case.thresholds.window_steps)
    return name, case.rate(name, "groups/count")


@rule("GR03", "groups in which every reward is the same")
def uniform(case: Case) -> Finding | None:
    case.need_several()
    name = "frac_reward_zero_std"
    case.need_groups(name, case.thresholds.window_steps)
    rate = case.rate(name, "groups/count")
    if rate.low <= case.thresholds.uniform_warning:
        return None
    if case.too_small_groups():
        pass
    elif case.has("groups/frac_all_correct", "groups/frac_all_wrong"):
        sides = {side: case.rate(f"groups/frac_all_{side}", "groups/count").low for side in ("correct", "wrong")}
        if max(sides.values()) > case.thresholds.uniform_warning:
            return None
    elif not 0.15 <= case.recent("reward") <= 0.85:
        return None
    size = case.group_size()
    evidence = f"{rate} of the groups are without any difference of reward"
    success = case.recent("accuracy") if case.has("accuracy") else case.recent("reward")
    if size and 0 < success < 1:
        expected = success**size + (1 - success) ** size
        evidence += f"; at a success rate of {success:.2f} and G={size:.0f}, chance alone makes {expected:.0%} or more"
    if case.has("groups/duplicate_frac") and case.recent("groups/duplicate_frac") > 0.2:
        evidence += f"; {case.recent('groups/duplicate_frac'):.0%} of the completions repeat another of their group"
    return Finding(
        "GR03",
        "error" if rate.low > case.thresholds.uniform_error else "warning",
        "groups are uniform, although neither hard nor easy prompts dominate",
        evidence,
        "more completions a prompt (8 or more), temperature 1.0, a seed of its own for each completion, a less coarse "
        "reward",
        key="rollout.num_generations",
        window=case.span(name),
        rollouts=case.newest_rollouts(),
    )


@rule("GR04", "fewer and fewer groups that teach")
def pool_shrinks(case: Case) -> Finding | None:
    case.need_several()
    name = case.first_of("groups/frac_mixed", "frac_reward_zero_std")
    values = case.window(name)[1]
    early = case.early(name)
    start, now = (early, float(values.mean())) if name == "groups/frac_mixed" else (1 - early, 1 - float(values.mean()))
    falling = case.trend(name, whole=True)
    moved = falling.falls() if name == "groups/frac_mixed" else falling.rises()
    if start < 0.2 or now > case.thresholds.pool_shrinks_to * start or not moved:
        return None
    success = case.first_of("accuracy", "reward")
    mastered = case.recent(success) > 0.8 or case.outcome_rises()
    return Finding(
        "GR04",
        "info" if mastered else "warning",
        "the share of groups that teach has halved" + (" because the prompts are mastered" if mastered else ""),
        f"mixed groups: {start:.0%} in the first steps, {now:.0%} now; {success} is {case.recent(success):.2f}",
        "retire solved prompts, add others, or prefer prompts in the middle: the more groups are alike, the more "
        "generation an update costs"
        if case.fact("dynamic_sampling")
        else "let the curriculum refill uniform groups or prefer prompts in the middle",
        key="curriculum.policy" if case.fact("dynamic_sampling") else "refill.dynamic_sampling",
        window=case.span(name),
    )


@rule("TR04", "endings that are not recognised")
def eos_misread(case: Case) -> Finding | None:
    name = "completions/clipped_ratio"
    clipped = case.rate(name)
    mean, largest = case.recent("completions/mean_length"), float(case.window("completions/max_length")[1].max())
    cap = float(case.fact("max_completion_length") or largest)
    fix = (
        "treat every EOS id of the generation configuration and the template's turn end as an ending, and build masks "
        "from "
        "lengths, not from the pad id"
    )
    if clipped.low > 0.5 and mean < case.thresholds.eos_length_share * cap:
        return Finding(
            "TR04",
            "error",
            "answers that are complete are counted as cut off",
            f"{clipped} count as cut off, but the mean length is {mean:.0f} of at most {cap:.0f} tokens",
            fix,
            key="rollout.max_completion_length",
            window=case.span(name),
            rollouts=case.newest_rollouts(),
        )
    if clipped.low > 0.5 and (ending := _unknown_ending(case)) is not None:
        token, share, place = ending
        return Finding(
            "TR04",
            "error",
            "answers end with a token that is not taken as an ending, and go on to the limit",
            f"{share:.0%} of the cut-off answers of the newest step contain the special token {token}, at the median "
            f"as token {place:.0f}",
            "add that token to the model's generation_config.json (eos_token_id), or correct the chat template",
            key="model.path",
            window=case.span(name),
            rollouts=_cut_off(case),
        )
    lengths = [
        case.window(f"completions/{kind}_length")[1]
        for kind in ("min", "mean", "max")
        if case.has(f"completions/{kind}_length")
    ]
    if len(lengths) == 3 and len(lengths[0]) >= 10 and clipped.high < 0.5 and np.allclose(lengths[0], lengths[2]):
        return Finding(
            "TR04",
            "error",
            "padding is counted as tokens: every completion is equally long",
            f"shortest and longest completion are {lengths[0][-1]:.0f} tokens on every step, yet only "
            f"{clipped.value:.0%} count as cut off",
            fix,
            key="rollout.max_completion_length",
            window=case.span(name),
            rollouts=case.newest_rollouts(),
        )
    return None


def _unknown_ending(case: Case) -> tuple[int, float, float] | None:
    """(token, share, median position): the special token that most cut-off answers of the newest step contain."""
    special, source = case.fact("measured.special_token_ids"), case.run.rollouts
    if not special or source is None or not source.steps():
        return None
    newest = source.read(source.steps()[-1], ("finish", "token_ids"))
    rows = [row["token_ids"] for row in newest if row["finish"] == "length" and row["token_ids"]]
    places = {token: [row.index(token) + 1 for row in rows if token in row] for token in special}
    token = max(places, key=lambda candidate: len(places[candidate]))
    if len(rows) < 8 or len(places[token]) < 0.5 * len(rows):
        return None
    return token, len(places[token]) / len(rows), float(np.median(places[token]))


@rule("TR02", "truncation that feeds itself")
def spiral(case: Case) -> Finding | None:
    name = "completions/clipped_ratio"
    clipped = case.trend(name, whole=True)
    last = case.trend(name, share=0.5)
    grows = clipped.rises(case.thresholds.clipped_rise / 2) or last.rises(case.thresholds.clipped_rise / 2)
    if not grows or case.rate(name).value < case.early(name) + case.thresholds.clipped_rise:
        return None
    reward = case.trend("reward", share=0.5)
    if reward.rises(0.02) or case.heldout_rises():
        return None
    return Finding(
        "TR02",
        "error",
        "a truncation spiral: more and more answers are cut off and count as failures",
        f"cut off: {case.early(name):.1%} in the first steps, {case.rate(name).value:.1%} now; reward {reward} over "
        f"the "
        "second half",
        "mask truncated completions or add the soft overlong penalty, raise the limit, aggregate by token",
        key="objective.mask_truncated_completions",
        window=case.span(name),
        rollouts=_cut_off(case),
    )


@rule("TR01", "answers that are cut off")
def cut_off(case: Case) -> Finding | None:
    name = "completions/clipped_ratio"
    rate = case.rate(name)
    if rate.count < 64 and len(case.window(name)[1]) < 10:
        raise TooEarly(f"needs 64 completions, has {rate.count:.0f}")
    if rate.low <= case.thresholds.clipped_warning:
        return None
    cap = case.fact("max_completion_length")
    evidence = f"{rate} of the completions end at the length limit" + (f" of {cap} tokens" if cap else "")
    if case.has("completions/mean_length"):
        evidence += f"; mean length {case.recent('completions/mean_length'):.0f}"
    return Finding(
        "TR01",
        "error" if rate.low > case.thresholds.clipped_error else "warning",
        "answers are cut off: the reward measures the length limit",
        evidence,
        "raise max_completion_length to about 1.3 times the 95th percentile of finished answers, or mask truncated "
        "ones",
        key="rollout.max_completion_length",
        window=case.span(name),
        rollouts=_cut_off(case),
    )


@rule("TR03", "wrong answers that grow longer")
def wrong_lengthen(case: Case) -> Finding | None:
    names = ("completions/mean_length_wrong", "completions/mean_length_correct")
    steps, wrong = case.history.series(case.first_of(names[0]))
    right_steps, right = case.history.series(case.first_of(names[1]))
    shared, at, to = np.intersect1d(steps, right_steps, return_indices=True)
    if len(shared) < case.thresholds.trend_steps:
        raise TooEarly(f"needs {case.thresholds.trend_steps} steps with right and wrong answers, has {len(shared)}")
    gap = trend(shared, wrong[at] - right[to])
    longer = trend(steps, wrong)
    if not (gap.rises(case.thresholds.length_gap * float(np.median(right))) and longer.rises()):
        return None
    if case.outcome_rises() and not case.heldout_flat():
        return None
    loss_type = case.fact("loss_type")
    return Finding(
        "TR03",
        "warning",
        "only wrong answers grow longer: this is not deeper reasoning",
        f"wrong answers: {longer} tokens; their lead over right ones: {gap} tokens; the outcome does not rise"
        + (f"; loss_type is {loss_type}" if loss_type else ""),
        "aggregate by token (dapo) or by a constant (dr_grpo), which do not dilute the penalty of long failures; look "
        "for a "
        "reward that pays for length",
        key="objective.loss_type",
        window=(int(shared[0]), int(shared[-1])),
        rollouts=case.newest_rollouts(),
    )


def _cut_off(case: Case) -> tuple[str, ...]:
    try:
        return case.pick([row for row in case.rollouts if row["finish"] == "length"], 3)
    except NotCheckable:
        return ()
