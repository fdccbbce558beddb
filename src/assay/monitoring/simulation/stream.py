"""The dynamics of one run: prompts of varying difficulty, a policy whose skill grows with the groups that differ
inside, answers with lengths and a limit, a verifier, a trainer and a sampler that nearly agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assay.monitoring.store import RolloutStore, encode_line
from assay.records import Completion, Finish, Group, Judgement, Outcome, Prompt, Segment

# A quantity over the run; x goes from 0 (first step) to 1 (last).
Schedule = Callable[[float], float]
STEP_SECONDS = 10.0
START = 1.8e9
Rng = np.random.Generator


def constant(value: float) -> Schedule:
    return lambda x: value


def line(start: float, end: float) -> Callable[[float], float]:
    return lambda x: start + (end - start) * x


def at(schedule: Schedule | float, x: float) -> float:
    """The value of a schedule at x; a number is its own schedule."""
    return schedule(x) if callable(schedule) else schedule


@dataclass
class World:
    """Everything that a fault may change. Lengths in tokens, entropies and gaps in nats, skills in logits.

    `pay` turns the truth (correct and format [P, G], lengths, x) into what reward functions return: name -> [P, G], NaN
    for None. `edit_line` and `edit_group` change a step's metrics and rollouts after the fact, for faults outside the
    dynamics; `text` writes a completion.
    """

    seed: int = 0
    steps: int = 150
    prompts: int = 16
    group_size: int = 8
    pool: int = 600
    skill: float = -0.4
    spread: float = 1.0
    gain: float = 0.03
    learning: Schedule | float = 1.0
    format_skill: float = 1.0
    cap: int = 1024
    length: float = 250.0
    length_sigma: float = 0.35
    correct_growth: Schedule | float = 1.0
    wrong_growth: Schedule | float = 1.1
    clipped_extra: Schedule | float = 0.0
    entropy: Schedule | float = 0.4
    kl: Schedule | None = None
    clip: Schedule | float = 0.008
    gap: Schedule | float = 0.006
    ratio: Schedule | float = 1.0
    effective: Schedule | float = 0.93
    gradient: Schedule | float = 0.2
    verifier_seconds: Schedule | float = 0.01
    score_seconds: float = 0.3
    unparsable: float = 0.02
    errors: float = 0.0
    timeouts: float = 0.0
    repetition: Schedule | float = 0.05
    duplicates: float = 0.0
    heldout_every: int = 10
    heldout_prompts: int = 200
    heldout_skill: Callable[[float, float], float] = lambda skill, x: skill
    learns: bool = True
    stored_steps: int = 3
    pay: Callable[[np.ndarray, np.ndarray, np.ndarray, float], Mapping[str, np.ndarray]] | None = None
    weights: Mapping[str, float] = field(default_factory=lambda: {"accuracy": 1.0})
    text: Callable[[bool, bool, int, np.random.Generator], str] | None = None
    flags: Callable[[bool, np.random.Generator], list[str]] | None = None
    edit_line: Callable[[int, dict[str, Any]], None] = lambda step, line: None
    edit_groups: Callable[[int, list[Group]], list[Group]] = lambda step, groups: groups
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class SimulatedRun:
    """`solved` [P] says by step which held-out prompts were answered right."""

    world: World
    lines: list[dict[str, Any]]
    groups: dict[int, list[Group]]
    solved: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """One step's truth and judgement; arrays [P, G]."""

    prompts: np.ndarray
    correct: np.ndarray
    truncated: np.ndarray
    lengths: np.ndarray
    outcomes: np.ndarray
    rewards: Mapping[str, np.ndarray]
    total: np.ndarray


def sigmoid(value: np.ndarray | float) -> Any:
    return 1 / (1 + np.exp(-np.asarray(value, float)))


def simulate(world: World) -> SimulatedRun:
    """Run the world; only the last steps keep their rollouts as records."""
    rng = np.random.default_rng(world.seed)
    difficulty = rng.normal(0, world.spread, world.pool)
    heldout = rng.normal(0, world.spread, world.heldout_prompts)
    order = rng.permutation(world.pool)
    skill, form, cursor = world.skill, world.format_skill, 0
    lines: list[dict[str, Any]] = []
    kept: dict[int, list[Group]] = {}
    solved = {0: _heldout(world, 0.0, skill, heldout, rng)}
    lines.append({"step": 0, "heldout/accuracy": float(solved[0].mean())})
    for step in range(1, world.steps + 1):
        x = (step - 1) / max(1, world.steps - 1)
        if cursor + world.prompts > world.pool:
            order, cursor = rng.permutation(world.pool), 0
        chosen = order[cursor : cursor + world.prompts]
        cursor += world.prompts
        round_ = play(world, chosen, difficulty[chosen], (skill, form), x, rng)
        line = {"step": step, **round_metrics(round_), **_trainer_metrics(world, round_, x, rng)}
        line["time/unix"] = START + step * STEP_SECONDS
        world.edit_line(step, line)
        lines.append(line)
        if step > world.steps - world.stored_steps:
            kept[step] = world.edit_groups(step, records(world, round_, rng))
        signal = float(np.mean([len(set(row[np.isfinite(row)])) > 1 for row in round_.total]))
        if world.learns:
            skill += world.gain * at(world.learning, x) * signal * max(0.0, rng.normal(1, 0.3))
            form += 0.05 if "format" in round_.rewards else 0.0
        if step % world.heldout_every == 0:
            solved[step] = _heldout(world, x, skill, heldout, rng)
            lines.append({"step": step, "heldout/accuracy": float(solved[step].mean())})
    return SimulatedRun(world, lines, kept, solved)


def play(
    world: World, chosen: np.ndarray, difficulty: np.ndarray, skills: tuple[float, float], x: float, rng: Rng
) -> Round:
    """One round: draw answers, cut them off, judge them."""
    skill, form = skills
    shape = (len(chosen), world.group_size)
    able = rng.random(shape) < sigmoid(skill - difficulty)[:, None]
    formed = rng.random(shape) < sigmoid(form)
    growth = np.where(able, at(world.correct_growth, x), at(world.wrong_growth, x))
    lengths = np.exp(rng.normal(np.log(world.length), world.length_sigma, shape)) * growth
    truncated = (lengths >= world.cap) | (rng.random(shape) < at(world.clipped_extra, x))
    lengths = np.clip(np.round(np.where(truncated, world.cap, lengths)), 1, world.cap).astype(int)
    correct = able & ~truncated
    draw = rng.random(shape)
    outcomes = np.where(correct, "correct", "wrong").astype(object)
    outcomes[(draw < world.unparsable) & ~correct] = "unparsable"
    outcomes[draw > 1 - world.errors] = "error"
    outcomes[(draw <= 1 - world.errors) & (draw > 1 - world.errors - world.timeouts)] = "timeout"
    if world.duplicates:
        correct = np.where((rng.random(len(chosen)) < world.duplicates)[:, None], correct[:, :1], correct)
        outcomes = np.where(np.isin(outcomes, ("correct", "wrong")), np.where(correct, "correct", "wrong"), outcomes)
    if world.pay is None:
        rewards: Mapping[str, np.ndarray] = {"accuracy": np.where(correct, 1.0, 0.0)}
        if "format" in world.weights:
            rewards = {**rewards, "format": np.where(formed, 1.0, 0.0)}
    else:
        rewards = world.pay(correct, formed, lengths, x)
    unjudged = np.isin(outcomes, ("error", "timeout"))
    rewards = {name: np.where(unjudged, np.nan, value) for name, value in rewards.items()}
    stack = np.array([rewards[name] * world.weights[name] for name in rewards])
    total = np.where(np.isnan(stack).all(0), np.nan, np.nansum(stack, 0))
    return Round(chosen, correct, truncated, lengths, outcomes, rewards, total)


def round_metrics(round_: Round) -> dict[str, float]:
    """What `metrics.rollout_metrics` says of the same round, on arrays (a test holds the two together)."""
    lengths, truncated, correct = round_.lengths, round_.truncated, round_.correct
    judged = ~np.isin(round_.outcomes, ("error", "timeout"))
    metrics: dict[str, float] = {
        "completions/count": float(lengths.size),
        "groups/count": float(len(lengths)),
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float(truncated.mean()),
        "rewards/none_frac": float(np.isnan(round_.total).mean()),
    }
    if (~truncated).any():
        metrics["completions/mean_terminated_length"] = float(lengths[~truncated].mean())
    for name, chosen in (("correct", correct & judged), ("wrong", ~correct & judged)):
        if chosen.any():
            metrics[f"completions/mean_length_{name}"] = float(lengths[chosen].mean())
    for prefix, std, values in [
        ("reward", "reward_std", round_.total),
        *((f"rewards/{name}/mean", f"rewards/{name}/std", value) for name, value in round_.rewards.items()),
    ]:
        known = values[np.isfinite(values)]
        if len(known):
            metrics[prefix] = float(known.mean())
        if len(known) > 1:
            metrics[std] = float(known.std(ddof=1))
    metrics["frac_reward_zero_std"] = float(np.mean([len(set(row[np.isfinite(row)])) < 2 for row in round_.total]))
    verdicts = [row[known] for row, known in zip(correct, judged) if known.any()]
    if verdicts:
        metrics["groups/frac_all_correct"] = float(np.mean([row.all() for row in verdicts]))
        metrics["groups/frac_all_wrong"] = float(np.mean([not row.any() for row in verdicts]))
        metrics["groups/frac_mixed"] = float(np.mean([row.any() and not row.all() for row in verdicts]))
        metrics["accuracy"] = float(np.concatenate(verdicts).mean())
    for outcome in ("unparsable", "error", "timeout"):
        share = float((round_.outcomes == outcome).mean())
        # Only the accuracy function parses answers; a failing worker takes every function with it.
        metrics[f"verifier/{outcome}_frac"] = share / len(round_.rewards) if outcome == "unparsable" else share
        if len(round_.rewards) > 1:
            metrics[f"verifier/{outcome}_frac/accuracy"] = share
    return metrics


def _trainer_metrics(world: World, round_: Round, x: float, rng: np.random.Generator) -> dict[str, float]:
    signal = float(np.mean([len(set(row[np.isfinite(row)])) > 1 for row in round_.total]))

    def jitter(value: float, sigma: float = 0.1) -> float:
        return float(value * np.exp(rng.normal(0, sigma)))

    generate = STEP_SECONDS * 0.6
    metrics = {
        "loss": float(rng.normal(0, 0.01)),
        "grad_norm": jitter(at(world.gradient, x) * np.sqrt(signal), 0.25) if signal else 0.0,
        "entropy": jitter(at(world.entropy, x), 0.06),
        "clip_ratio/region_mean": jitter(at(world.clip, x), 0.3),
        "clip_ratio/low_mean": jitter(at(world.clip, x) * 0.5, 0.3),
        "clip_ratio/high_mean": jitter(at(world.clip, x) * 0.5, 0.3),
        "sampling/sampling_logp_difference/mean": jitter(at(world.gap, x), 0.08),
        "sampling/importance_sampling_ratio/mean": float(rng.normal(at(world.ratio, x), 0.004)),
        "sampling/effective_sample_size": float(np.clip(rng.normal(at(world.effective, x), 0.01), 0, 1)),
        "advantages/max": float(rng.uniform(1.2, 2.4)),
        "completions/repetition": jitter(at(world.repetition, x), 0.1),
        "groups/duplicate_frac": world.duplicates * (1 - 1 / world.group_size),
        "verifier/latency_p95": jitter(at(world.verifier_seconds, x), 0.2),
        "verifier/gold_unreadable_frac": 0.0,
        "time/generate": jitter(generate),
        "time/score": jitter(world.score_seconds),
        "time/train": jitter(STEP_SECONDS * 0.3),
        "step_time": jitter(STEP_SECONDS),
        "learning_rate": 1e-5,
    }
    if world.kl is not None:
        metrics["kl"] = jitter(at(world.kl, x), 0.15)
    return metrics


def _heldout(world: World, x: float, skill: float, difficulty: np.ndarray, rng: Rng) -> np.ndarray:
    """[P]: which held-out prompts are answered right now."""
    return rng.random(len(difficulty)) < sigmoid(world.heldout_skill(skill, x) - difficulty)


def records(world: World, round_: Round, rng: np.random.Generator) -> list[Group]:
    """The round as the records that a rollout store takes."""
    groups = []
    for row, prompt in enumerate(round_.prompts):
        completions = []
        for column in range(world.group_size):
            correct, length = bool(round_.correct[row, column]), int(round_.lengths[row, column])
            outcome = Outcome(round_.outcomes[row, column])
            judged = outcome not in (Outcome.ERROR, Outcome.TIMEOUT)
            judgements = {
                name: Judgement(
                    outcome if name == "accuracy" or not judged else Outcome.SCORED,
                    None if np.isnan(values[row, column]) else float(values[row, column]),
                )
                for name, values in round_.rewards.items()
            }
            total = round_.total[row, column]
            finish = Finish.LENGTH if round_.truncated[row, column] else Finish.STOP
            text = (world.text or plain_text)(correct, finish is Finish.STOP, int(prompt), rng)
            tokens = rng.integers(0, 30000, length)
            segment = Segment(tokens, np.ones(length, bool), rng.normal(-0.4, 0.1, length))
            reward = None if np.isnan(total) else float(total)
            tags = {"flags": world.flags(correct, rng)} if world.flags else {}
            completions.append(
                Completion([segment], finish, text, judgements, reward, correct if judged else None, tags=tags)
            )
        question = f"Problem {prompt}: what is {prompt} + {prompt}?"
        row_data = {"answer": str(2 * int(prompt))}
        groups.append(Group(Prompt(question, (1, 2, 3), row_data, content_key=f"p{prompt}"), completions))
    return groups


WORDS = ("so", "we", "add", "both", "terms", "carry", "check", "then", "hence", "sum", "twice", "value")


def plain_text(correct: bool, finished: bool, prompt: int, rng: np.random.Generator) -> str:
    body = " ".join(WORDS[index] for index in rng.integers(0, len(WORDS), 12))
    answer = 2 * prompt if correct else 2 * prompt + int(rng.integers(1, 9))
    return f"{body} \\boxed{{{answer}}}" if finished else body


def write_run(run: SimulatedRun, directory: Path) -> Path:
    """A run directory as a real run leaves it: config.yaml, metrics.jsonl, heldout.jsonl, rollouts/."""
    directory.mkdir(parents=True, exist_ok=True)
    world = run.world
    sections: dict[str, dict[str, Any]] = {
        "rollout": {"num_generations": world.group_size, "max_completion_length": world.cap, "temperature": 1.0},
        "train": {"steps": world.steps, "prompts_per_step": world.prompts, "checkpoint_every": 10_000},
        "eval": {"prompts": world.heldout_prompts},
    }
    for section, values in world.facts.items():
        sections.setdefault(section, {}).update(values)
    (directory / "config.yaml").write_text(json.dumps(sections))
    with open(directory / "metrics.jsonl", "wb") as file:
        for line in run.lines:
            file.write(encode_line(line["step"], {name: value for name, value in line.items() if name != "step"}))
    keys = [f"h{index}" for index in range(world.heldout_prompts)]
    with open(directory / "heldout.jsonl", "w") as file_:
        for step, solved in run.solved.items():
            verdicts = {"keys": keys, "correct": solved.astype(int).tolist(), "judged": [1] * len(keys), "samples": 1}
            file_.write(json.dumps({"step": step, "set": "", "figure": "accuracy", **verdicts}) + "\n")
    store = RolloutStore(directory / "rollouts")
    for step, groups in run.groups.items():
        store.write(step, groups)
    return directory


TRL_NAMES = (
    "step", "loss", "grad_norm", "learning_rate", "reward", "reward_std", "frac_reward_zero_std", "entropy", "kl",
    "rewards/", "completions/mean_length", "completions/min_length", "completions/max_length",
    "completions/clipped_ratio", "completions/mean_terminated_length", "clip_ratio/",
    "sampling/sampling_logp_difference/", "sampling/importance_sampling_ratio/", "step_time",
)  # fmt: skip


def write_trl(run: SimulatedRun, path: Path) -> Path:
    """The same run as TRL would have logged it: only what TRL logs, in a trainer_state.json."""
    history = []
    for line in run.lines:
        if "heldout/accuracy" in line:
            history.append({"step": line["step"], "eval_reward": line["heldout/accuracy"]})
            continue
        named = {name: value for name, value in line.items() if name.startswith(TRL_NAMES)}
        history.append({name: value for name, value in named.items() if name != "rewards/none_frac"})
    path.write_text(json.dumps({"log_history": history, "max_steps": run.world.steps}))
    return path
