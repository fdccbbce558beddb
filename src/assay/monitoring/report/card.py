"""The run card: what ran, on which data, how far from its preset, how long, at what cost, with which result."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.monitoring.report.data import ReportData

FACTS = (
    "model.path", "preset", "seed", "train.learning_rate", "objective.loss_type", "objective.beta",
    "rollout.num_generations", "train.prompts_per_step", "rollout.max_completion_length", "rollout.temperature",
)  # fmt: skip
SHOWN_CHANGES = 40


def run_card(data: ReportData) -> list[tuple[str, str]]:
    """(label, text) in order; what the run did not leave behind is left out."""
    history, facts = data.history, data.run.facts
    card = [("source", history.source)]
    if len(history):
        card.append(
            ("steps", f"{int(history.steps[-1])}" + (f" of {facts['train.steps']}" if "train.steps" in facts else ""))
        )
    card += [(name, str(facts[name])) for name in FACTS if facts.get(name) is not None]
    card += data_rows(facts.get("measured.data"))
    if isinstance(changed := facts.get("measured.changed"), dict):
        shown = "; ".join(f"{key}={value}" for key, value in list(changed.items())[:SHOWN_CHANGES])
        more = f"; and {len(changed) - SHOWN_CHANGES} more" if len(changed) > SHOWN_CHANGES else ""
        card.append((f"differs from {facts.get('preset') or 'the defaults'} in", (shown or "nothing") + more))
    if facts.get("provenance.git_commit"):
        card.append(("git commit", str(facts["provenance.git_commit"])))
    card += cost(data)
    for label, name, unit in (
        ("tokens", "num_tokens", ""),
        ("median step", "step_time", " s"),
        ("peak memory", "memory/peak_rss_gib", " GiB"),
        ("peak GPU memory", "memory/peak_gpu_gib", " GiB"),
    ):
        values = history.series(name)[1]
        if len(values):
            value = np.median(values) if name == "step_time" else values[-1]
            card.append((label, f"{value:,.0f}" if not unit else f"{value:,.4g}{unit}"))
    for name in ("reward", "heldout/accuracy", "heldout/pass_rate", "heldout/reward"):
        values = history.series(name)[1]
        if len(values):
            card.append((name, f"{values[0]:.3f} → {values[-1]:.3f}"))
    return card


def data_rows(found: Any) -> list[tuple[str, str]]:
    if not isinstance(found, dict):
        return []
    return [
        (f"{name} data", f"{found[part]} prompts, sha256 {str(found[f'{part}_sha256'])[:16]}")
        for part, name in (("train", "training"), ("heldout", "held-out"))
        if found.get(part)
    ]


def cost(data: ReportData) -> list[tuple[str, str]]:
    """Hours of the run's phases, times its processes; money where a price is given."""
    phases = [name for name in data.history.matching("time/") if name != "time/unix"]
    seconds = sum(float(data.history.series(name)[1].sum()) for name in phases)
    seconds = seconds or float(data.history.series("step_time")[1].sum())
    if not seconds:
        return []
    processes = int(data.run.facts.get("measured.processes") or 1)
    device = "GPU" if data.run.facts.get("measured.device") == "cuda" else "machine"
    hours = seconds / 3600
    text = (
        f"{hours:.2f} h on {processes} process{'es' if processes > 1 else ''}: {hours * processes:.2f} {device}-hours"
    )
    if data.price is not None:
        text += f"; {hours * processes * data.price:.2f} at {data.price:g} an hour"
    return [("cost", text)]
