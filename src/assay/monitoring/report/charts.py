"""Charts of the metrics over the steps. Each draws from what the run has, or returns None: an absent chart means an
absent metric."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.monitoring.doctor.paired import prompts_judged
from assay.monitoring.doctor.statistics import wilson
from assay.monitoring.plots import heldout_name, smooth
from assay.monitoring.report.data import ReportData
from assay.monitoring.report.register import chart, lines
from assay.monitoring.report.svg import BLUE, CYCLE, GREEN, INK, ORANGE, RED, SKY, legend, new_figure


@chart("learning", "Reward and held-out score", "The held-out line is what counts; its bars are 95% bounds where the "
       "number of prompts is known. Triangles mark where findings begin.")  # fmt: skip
def learning(data: ReportData) -> Any:
    heldout = heldout_name(data.history)
    if "reward" not in data.history and heldout is None:
        return None
    figure = lines(data, [("reward", "training reward")], "score") or new_figure()[0]
    axes = figure.axes[0]
    if heldout:
        steps, values = data.history.series(heldout)
        judged = prompts_judged(data.run.directory, heldout.removeprefix("heldout/"))
        count = data.history.last("heldout/count") or judged or data.run.facts.get("eval.prompts")
        bars = None
        if count and (values >= 0).all() and (values <= 1).all():
            rates = [wilson(value * float(count), float(count)) for value in values]
            bars = np.array([(max(0.0, rate.value - rate.low), max(0.0, rate.high - rate.value)) for rate in rates]).T
        axes.errorbar(
            steps, values, yerr=bars, fmt="s-", color=RED, linewidth=1.8, markersize=4, capsize=2,
            label=f"held-out {heldout[8:]}",
        )  # fmt: skip
    for finding in data.diagnosis.findings:
        if finding.severity != "info" and finding.window and finding.explained_by is None:
            axes.annotate(
                f"▼ {finding.id}", (finding.window[0], 1.0), xycoords=("data", "axes fraction"), fontsize=8, color=INK,
                ha="center", va="top",
            )  # fmt: skip
    axes.set_xlabel("step")
    legend(axes)
    return figure


@chart(
    "functions", "Reward functions", "One line a function: a term that saturates while another stays flat is farmed."
)
def functions(data: ReportData) -> Any:
    names = data.history.matching("rewards/", "/mean")
    return lines(data, [(name, name[8:-5]) for name in names], "mean reward") if names else None


@chart(
    "groups", "Group composition", "Only the middle band teaches; when it thins out, the pool is too hard or mastered."
)
def groups(data: ReportData) -> Any:
    names = ("groups/frac_all_wrong", "groups/frac_mixed", "groups/frac_all_correct")
    if not all(name in data.history for name in names):
        return lines(data, [("frac_reward_zero_std", "groups without any difference")], "share of groups")
    figure, axes = new_figure()
    steps = data.history.series(names[1])[0]
    parts = [smooth(np.interp(steps, *data.history.series(name)), max(1, len(steps) // 20)) for name in names]
    axes.stackplot(
        steps, parts, colors=(ORANGE, SKY, BLUE), labels=("all wrong", "mixed", "all correct"), alpha=0.85, linewidth=0
    )
    axes.set_ylim(0, 1)
    axes.set_xlabel("step")
    axes.set_ylabel("share of groups")
    legend(axes, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return figure


@chart(
    "length",
    "Length of answers",
    "If only the wrong line rises, longer is not deeper. Dotted: the limit; shaded: the middle 80% of all answers.",
)
def length(data: ReportData) -> Any:
    figure = lines(
        data,
        [
            ("completions/mean_length_correct", "correct"),
            ("completions/mean_length_wrong", "wrong"),
            ("completions/mean_length", "all"),
        ],
        "tokens",
    )
    low, high = (data.history.series(f"completions/p{q}_length") for q in (10, 90))
    if figure is not None and len(low[0]):
        span = max(1, len(low[0]) // 20)
        band = (smooth(low[1], span), smooth(high[1], span))
        figure.axes[0].fill_between(low[0], *band, color=GREEN, alpha=0.15, linewidth=0, label="p10 to p90")
        legend(figure.axes[0])
    cap = data.run.facts.get("max_completion_length")
    if figure is not None and isinstance(cap, (int, float)):
        axes = figure.axes[0]
        if cap < 3 * axes.get_ylim()[1]:
            axes.axhline(cap, color=INK, linestyle=":", linewidth=1)
    return figure


@chart("truncation", "Cut off and repeated", "Above 5% cut off, the reward begins to measure the limit.")
def truncation(data: ReportData) -> Any:
    return lines(
        data,
        [("completions/clipped_ratio", "cut off"), ("completions/aborted_ratio", "aborted"),
         ("completions/repetition", "repeated 4-grams"), ("groups/duplicate_frac", "duplicates in a group")],
        "share",
    )  # fmt: skip


@chart("entropy", "Entropy", "A slow fall is normal; a fall to a third of the start with thinning groups is collapse.")
def entropy(data: ReportData) -> Any:
    figure = lines(data, [("entropy", "policy"), ("sampling/entropy", "sampler")], "nats a token")
    name = "entropy" if "entropy" in data.history else "sampling/entropy"
    if figure is not None:
        early = float(np.median(data.history.series(name)[1][:10]))
        figure.axes[0].axhline(early, color=INK, linestyle=":", linewidth=1)
    return figure


@chart("drift", "Divergence from reference and sampler", "Logarithmic: a straight rise is exponential growth.")
def drift(data: ReportData) -> Any:
    return lines(
        data,
        [("kl", "kl to reference"), ("sampling/sampling_logp_difference/mean", "log-prob gap to sampler"),
         ("sampling/mismatch_kl", "kl to sampler")],
        "nats a token", log=True,
    )  # fmt: skip


@chart("weights", "Importance weights", "The effective sample size should stay near 1; what falls is data thrown away.")
def weights(data: ReportData) -> Any:
    return lines(
        data,
        [("sampling/effective_sample_size", "effective sample size"), ("sampling/outside_bounds", "outside the bounds"),
         ("sampling/importance_sampling_ratio/mean", "mean ratio")],
        "share",
    )  # fmt: skip


@chart("clipping", "Clipped tokens", "Above 20% steps are too large, or made from data that is too old.")
def clipping(data: ReportData) -> Any:
    return lines(
        data,
        [("clip_ratio/low_mean", "low side"), ("clip_ratio/high_mean", "high side"),
         ("clip_ratio/region_mean", "both")],
        "share of tokens",
    )  # fmt: skip


@chart("gradient", "Gradient norm", "Logarithmic; single spikes are bad batches, exact zeros are steps without signal.")
def gradient(data: ReportData) -> Any:
    return lines(data, [("grad_norm", "gradient norm")], "norm", log=True)


@chart("staleness", "Age of the data", "Updates between writing a token and training on it.")
def staleness(data: ReportData) -> Any:
    if data.history.last("staleness/max") in (None, 0.0) and "staleness/dropped_frac" not in data.history:
        return None
    return lines(
        data,
        [("staleness/mean", "mean"), ("staleness/max", "oldest"), ("staleness/dropped_frac", "share dropped")],
        "updates",
    )


@chart("time", "Where the time goes", "Seconds a step by phase.")
def times(data: ReportData) -> Any:
    phases = [name for name in data.history.matching("time/") if name != "time/unix"]
    if not phases:
        return None
    figure, axes = new_figure()
    steps = max((data.history.series(name)[0] for name in phases), key=len)
    blocks = np.array_split(np.arange(len(steps)), min(40, len(steps)))
    centre = [steps[block].mean() for block in blocks]
    width = 0.9 * (np.ptp(steps) / len(blocks) if len(blocks) > 1 else 1.0)
    bottom = np.zeros(len(blocks))
    for index, name in enumerate(phases[:6]):
        at, values = data.history.series(name)
        filled = np.where(np.isin(steps, at), np.interp(steps, at, values), 0.0)
        heights = np.array([filled[block].mean() for block in blocks])
        axes.bar(centre, heights, width, bottom=bottom, color=CYCLE[index], label=name[5:])
        bottom += heights
    axes.set_xlabel("step")
    axes.set_ylabel("seconds")
    legend(axes, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return figure


@chart("verifier", "Verifier health", "Errors and timeouts are ours, not the model's, and must stay at 0.")
def verifier(data: ReportData) -> Any:
    return lines(
        data,
        [(f"verifier/{name}_frac", name) for name in ("unparsable", "error", "timeout", "gold_unreadable")]
        + [("verifier/latency_p95", "p95 seconds")],
        "share, seconds",
    )


@chart("flags", "Flags on completions", "Signs of tampering, hedging or stated intent, by kind. What counts is the "
       "line: their share among the best paid.")  # fmt: skip
def flags(data: ReportData) -> Any:
    totals = ("hack/flagged_frac", "hack/rewarded_frac")
    names = [name for name in data.history.matching("hack/", "_frac") if name not in totals]
    figure = lines(data, [("hack/rewarded_frac", "flagged among the best paid")], "share of completions")
    if figure is None:
        return None
    axes, steps = figure.axes[0], data.history.steps
    blocks = np.array_split(np.arange(len(steps)), min(40, len(steps)))
    bottom = np.zeros(len(blocks))
    width = 0.9 * max(1.0, float(np.ptp(steps)) / len(blocks))
    for index, name in enumerate(names[:6]):
        values = np.nan_to_num(data.history.columns[name])
        heights = np.array([values[block].mean() for block in blocks])
        centre = [steps[block].mean() for block in blocks]
        colour = CYCLE[(index + 1) % len(CYCLE)]
        axes.bar(centre, heights, width, bottom=bottom, color=colour, alpha=0.7, label=name[5:-5], zorder=0)
        bottom += heights
    legend(axes)
    return figure


@chart("passk", "Held-out pass@k", "If the trained line crosses below the base's at large k, training sharpened only.")
def pass_k(data: ReportData) -> Any:
    names = data.history.matching("heldout/pass@")
    if len(names) < 2:
        return None
    ks = sorted(int(name.removeprefix("heldout/pass@")) for name in names if name[13:].isdigit())
    figure, axes = new_figure()
    for index, (label, place) in enumerate((("first evaluation", 0), ("last evaluation", -1))):
        values = [data.history.series(f"heldout/pass@{k}")[1][place] for k in ks]
        axes.plot(ks, values, "o-", color=(ORANGE, BLUE)[index], linewidth=1.8, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("k")
    axes.set_ylabel("pass@k")
    legend(axes)
    return figure


@chart("speed", "Tokens per second", "A slow decline is a leak or a growing verifier.")
def speed(data: ReportData) -> Any:
    figure = lines(data, [("tokens_per_second", "written tokens a second")], "tokens/s")
    if figure is not None:
        figure.axes[0].lines[-1].set_color(GREEN)
    return figure
