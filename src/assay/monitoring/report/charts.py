"""The charts of a report. Each draws from what the run has, or returns None: an absent chart means an absent metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.monitoring.doctor.statistics import wilson
from assay.monitoring.plots import heldout_name, smooth
from assay.monitoring.report.data import ReportData
from assay.monitoring.report.svg import (
    BLUE,
    CYCLE,
    DASHES,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    legend,
    new_figure,
    to_svg,
)

Draw = Callable[[ReportData], Any]


@dataclass(frozen=True)
class Chart:
    """`draw` returns a figure, or None where the run lacks the data; `reading` tells how to read it."""

    id: str
    title: str
    reading: str
    draw: Draw


CHARTS: list[Chart] = []


def chart(id: str, title: str, reading: str) -> Callable[[Draw], Draw]:
    def register(draw: Draw) -> Draw:
        CHARTS.append(Chart(id, title, reading, draw))
        return draw

    return register


def draw_charts(data: ReportData) -> list[tuple[Chart, str]]:
    """Every chart that the run has data for, as SVG."""
    drawn = []
    for number, item in enumerate(CHARTS, 1):
        figure = item.draw(data)
        if figure is not None:
            drawn.append((item, to_svg(figure, item.title, number)))
    return drawn


def _lines(data: ReportData, names: Sequence[tuple[str, str]], ylabel: str, log: bool = False) -> Any:
    """Smoothed lines over faint points; None where no name was measured."""
    present = [(name, label) for name, label in names if name in data.history]
    if not present:
        return None
    figure, axes = new_figure()
    for index, (name, label) in enumerate(present):
        steps, values = data.history.series(name)
        if log:
            steps, values = steps[values > 0], values[values > 0]
        colour = CYCLE[index % len(CYCLE)]
        axes.plot(steps, values, ".", color=colour, alpha=0.25, markersize=3)
        line = smooth(values, max(1, len(values) // 20))
        axes.plot(steps, line, DASHES[index // len(CYCLE) % 4], color=colour, linewidth=1.8, label=label)
    if log and any((data.history.series(name)[1] > 0).any() for name, _ in present):
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    legend(axes)
    return figure


@chart("learning", "Reward and held-out score", "The held-out line is what counts; its bars are 95% bounds where the "
       "number of prompts is known. Triangles mark where findings begin.")  # fmt: skip
def learning(data: ReportData) -> Any:
    heldout = heldout_name(data.history)
    if "reward" not in data.history and heldout is None:
        return None
    figure = _lines(data, [("reward", "training reward")], "score") or new_figure()[0]
    axes = figure.axes[0]
    if heldout:
        steps, values = data.history.series(heldout)
        count = data.history.last("heldout/count") or data.run.facts.get("eval.prompts")
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
    return _lines(data, [(name, name[8:-5]) for name in names], "mean reward") if names else None


@chart(
    "groups", "Group composition", "Only the middle band teaches; when it thins out, the pool is too hard or mastered."
)
def groups(data: ReportData) -> Any:
    names = ("groups/frac_all_wrong", "groups/frac_mixed", "groups/frac_all_correct")
    if not all(name in data.history for name in names):
        return _lines(data, [("frac_reward_zero_std", "groups without any difference")], "share of groups")
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
    "passrates",
    "Pass rate by prompt, start and end",
    "Mass should move from left to right; a column that stays at 0 is what the model never solves.",
)
def pass_rates(data: ReportData) -> Any:
    first, last = data.pass_rates(data.first_rows), data.pass_rates(data.last_rows)
    if not first or not last:
        return None
    figure, axes = new_figure()
    bins = np.linspace(0, 1, 10)
    axes.hist(
        [list(first.values()), list(last.values())], bins=bins, color=(ORANGE, BLUE),
        weights=[np.full(len(part), 1 / len(part)) for part in (first, last)],
        label=(f"from step {data.first_rows[0]['step']}", f"up to step {data.last_rows[0]['step']}"),
    )  # fmt: skip
    axes.set_xlabel("share of correct answers of a prompt")
    axes.set_ylabel("share of prompts")
    legend(axes)
    return figure


@chart("migration", "How prompts moved", "Prompts drawn both early and late: below the diagonal they were unlearned.")
def migration(data: ReportData) -> Any:
    first, last = data.pass_rates(data.first_rows), data.pass_rates(data.last_rows)
    shared = sorted(set(first) & set(last))
    if len(shared) < 20:
        return None
    figure, axes = new_figure()
    edges = np.linspace(0, 1, 6)
    counts, _, _ = np.histogram2d([first[key] for key in shared], [last[key] for key in shared], bins=[edges, edges])
    axes.grid(False)
    axes.pcolormesh(edges, edges, counts.T, cmap="Blues")
    axes.plot([0, 1], [0, 1], "--", color=ORANGE, linewidth=1)
    for (x, y), count in np.ndenumerate(counts):
        if count:
            dark = count > counts.max() / 2
            axes.text(x / 5 + 0.1, y / 5 + 0.1, int(count), ha="center", va="center", color="w" if dark else "k")
    axes.set_xlabel("pass rate early")
    axes.set_ylabel("pass rate late")
    return figure


@chart(
    "length", "Length of answers", "If only the wrong line rises, longer is not deeper. The dotted line is the limit."
)
def length(data: ReportData) -> Any:
    figure = _lines(
        data,
        [
            ("completions/mean_length_correct", "correct"),
            ("completions/mean_length_wrong", "wrong"),
            ("completions/mean_length", "all"),
        ],
        "tokens",
    )
    cap = data.run.facts.get("max_completion_length")
    if figure is not None and isinstance(cap, (int, float)):
        axes = figure.axes[0]
        if cap < 3 * axes.get_ylim()[1]:
            axes.axhline(cap, color=INK, linestyle=":", linewidth=1)
    return figure


@chart("truncation", "Cut off and repeated", "Above 5% cut off, the reward begins to measure the limit.")
def truncation(data: ReportData) -> Any:
    return _lines(
        data,
        [("completions/clipped_ratio", "cut off"), ("completions/aborted_ratio", "aborted"),
         ("completions/repetition", "repeated 4-grams"), ("groups/duplicate_frac", "duplicates in a group")],
        "share",
    )  # fmt: skip


@chart("entropy", "Entropy", "A slow fall is normal; a fall to a third of the start with thinning groups is collapse.")
def entropy(data: ReportData) -> Any:
    figure = _lines(data, [("entropy", "policy"), ("sampling/entropy", "sampler")], "nats a token")
    name = "entropy" if "entropy" in data.history else "sampling/entropy"
    if figure is not None:
        early = float(np.median(data.history.series(name)[1][:10]))
        figure.axes[0].axhline(early, color=INK, linestyle=":", linewidth=1)
    return figure


@chart("drift", "Divergence from reference and sampler", "Logarithmic: a straight rise is exponential growth.")
def drift(data: ReportData) -> Any:
    return _lines(
        data,
        [("kl", "kl to reference"), ("sampling/sampling_logp_difference/mean", "log-prob gap to sampler"),
         ("sampling/mismatch_kl", "kl to sampler")],
        "nats a token", log=True,
    )  # fmt: skip


@chart("weights", "Importance weights", "The effective sample size should stay near 1; what falls is data thrown away.")
def weights(data: ReportData) -> Any:
    return _lines(
        data,
        [("sampling/effective_sample_size", "effective sample size"), ("sampling/outside_bounds", "outside the bounds"),
         ("sampling/importance_sampling_ratio/mean", "mean ratio")],
        "share",
    )  # fmt: skip


@chart(
    "ratio",
    "Ratio of trainer to sampler",
    "Token by token in the newest rollouts; a second hump or a shifted mean is another distribution, not noise.",
)
def ratio(data: ReportData) -> Any:
    gaps = []
    for row in data.last_rows[:1000]:
        if row["old_logps"] and row["sampling_logps"]:
            sampled = np.array(row["sampling_logps"])[np.array(row["loss_mask"], bool)]
            gaps.append(np.array(row["old_logps"]) - sampled)
    if not gaps:
        return None
    values = np.concatenate(gaps)
    values = values[np.isfinite(values)]
    figure, axes = new_figure()
    axes.hist(np.exp(np.clip(values, -3, 3)), bins=80, color=BLUE)
    axes.set_yscale("log")
    axes.axvline(1, color=INK, linestyle=":", linewidth=1)
    axes.set_xlabel("trainer's probability / sampler's")
    axes.set_ylabel("tokens")
    return figure


@chart("clipping", "Clipped tokens", "Above 20% steps are too large, or made from data that is too old.")
def clipping(data: ReportData) -> Any:
    return _lines(
        data,
        [("clip_ratio/low_mean", "low side"), ("clip_ratio/high_mean", "high side"),
         ("clip_ratio/region_mean", "both")],
        "share of tokens",
    )  # fmt: skip


@chart("gradient", "Gradient norm", "Logarithmic; single spikes are bad batches, exact zeros are steps without signal.")
def gradient(data: ReportData) -> Any:
    return _lines(data, [("grad_norm", "gradient norm")], "norm", log=True)


@chart("advantages", "Advantages of the newest rollouts", "Two humps for right and wrong; a lone far bar is a blow-up.")
def advantages(data: ReportData) -> Any:
    values = np.array([row["advantage"] for row in data.last_rows if row["advantage"] is not None], float)
    values = values[np.isfinite(values)]
    if len(values) < 10 or np.ptp(values) == 0:
        return None
    figure, axes = new_figure()
    axes.hist(values, bins=60, color=PURPLE)
    axes.set_xlabel("advantage")
    axes.set_ylabel("completions")
    return figure


@chart("lengthreward", "Reward against length, within groups", "Both centred in their group: a slope means that length "
       "itself is paid, or punished.")  # fmt: skip
def length_reward(data: ReportData) -> Any:
    by_group: dict[tuple[int, int], list[Any]] = {}
    for row in data.last_rows:
        if row["reward"] is not None and row["num_tokens"] is not None:
            by_group.setdefault((row["step"], row["group"]), []).append((row["num_tokens"], row["reward"]))
    points = [np.array(rows, float) for rows in by_group.values() if len({reward for _, reward in rows}) > 1]
    if sum(map(len, points)) < 30:
        return None
    centred = np.concatenate([rows - rows.mean(0) for rows in points])[:3000]
    figure, axes = new_figure()
    axes.plot(centred[:, 0], centred[:, 1], ".", color=BLUE, alpha=0.35, markersize=4)
    slope, intercept = np.polyfit(centred[:, 0], centred[:, 1], 1) if np.ptp(centred[:, 0]) else (0.0, 0.0)
    ends = np.array([centred[:, 0].min(), centred[:, 0].max()])
    axes.plot(ends, slope * ends + intercept, color=RED, linewidth=1.8, label="least squares")
    axes.set_xlabel("tokens above the group's mean")
    axes.set_ylabel("reward above the group's mean")
    legend(axes)
    return figure


@chart("staleness", "Age of the data", "Updates between writing a token and training on it.")
def staleness(data: ReportData) -> Any:
    if data.history.last("staleness/max") in (None, 0.0) and "staleness/dropped_frac" not in data.history:
        return None
    return _lines(
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
    return _lines(
        data,
        [(f"verifier/{name}_frac", name) for name in ("unparsable", "error", "timeout", "gold_unreadable")]
        + [("verifier/latency_p95", "p95 seconds")],
        "share, seconds",
    )


@chart("flags", "Tampering flags", "What counts is the share among rewarded completions.")
def flags(data: ReportData) -> Any:
    names = [name for name in data.history.matching("hack/", "_frac")]
    return _lines(data, [(name, name[5:-5]) for name in names], "share of completions") if names else None


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
    figure = _lines(data, [("tokens_per_second", "written tokens a second")], "tokens/s")
    if figure is not None:
        figure.axes[0].lines[-1].set_color(GREEN)
    return figure
