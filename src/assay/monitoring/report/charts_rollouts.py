"""Charts of distributions: over prompts, completions and tokens, at the run's start and at its end."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.monitoring.report.data import ReportData
from assay.monitoring.report.register import chart
from assay.monitoring.report.svg import BLUE, INK, ORANGE, PURPLE, RED, legend, new_figure


@chart(
    "beliefs",
    "What the curriculum believes of its prompts",
    "Expected pass rates of the prompts seen so far. Groups are mixed where the mass stands between 0.2 and 0.8.",
)
def beliefs(data: ReportData) -> Any:
    names = [f"curriculum/pass_rate_{bin_}0" for bin_ in range(10)]
    if not all(name in data.history for name in names):
        return None
    steps = data.history.series(names[0])[0]
    figure, axes = new_figure()
    for place, colour, shift in ((0, ORANGE, -0.021), (-1, BLUE, 0.021)):
        counts = np.array([data.history.series(name)[1][place] for name in names])
        label = f"step {int(steps[place])} ({counts.sum():.0f} prompts)"
        axes.bar(np.arange(10) / 10 + 0.05 + shift, counts / max(1, counts.sum()), 0.04, color=colour, label=label)
    axes.set_xlabel("expected pass rate")
    axes.set_ylabel("share of prompts seen")
    legend(axes)
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


@chart("age", "Age of the tokens", "Updates between writing a token and training on it, in the newest rollouts.")
def age(data: ReportData) -> Any:
    ages: dict[int, int] = {}
    for row in data.last_rows:
        spans = row["policy_versions"] or ()
        ends = [span["start"] for span in spans[1:]] + [row["num_tokens"] or 0]
        for span, end in zip(spans, ends):
            old = row["step"] - 1 - span["version"]
            ages[old] = ages.get(old, 0) + max(0, end - span["start"])
    total = sum(ages.values())
    if not total or set(ages) == {0}:
        return None
    figure, axes = new_figure()
    axes.bar(list(ages), [count / total for count in ages.values()], 0.8, color=BLUE)
    axes.set_xlabel("updates")
    axes.set_ylabel("share of tokens")
    return figure
