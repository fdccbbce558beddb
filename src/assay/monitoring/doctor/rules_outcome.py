"""EV: does the held-out score tell another story? SY: where does the time go? CK: is the state safe?"""

from __future__ import annotations

import math

import numpy as np

from assay.monitoring.doctor.case import Case, NotCheckable, TooEarly
from assay.monitoring.doctor.finding import Finding
from assay.monitoring.doctor.paired import prompts_judged
from assay.monitoring.doctor.rule import rule
from assay.monitoring.doctor.statistics import Z95

# A run that has been silent for longer was stopped, and its reader knows that.
LONG_DEAD = 86400.0
PHASES = ("generate", "score", "train", "sync")


def heldout_se(case: Case, value: float) -> float:
    """Standard error of one held-out share, from the number of its prompts.

    One right and one wrong answer are added (Agresti and Coull 1998), so that "2 of 2" is not a certainty.
    """
    count = case.history.last("heldout/count")
    if count is None and case.heldout is not None and case.run.path.is_dir():
        count = prompts_judged(case.run.directory, case.heldout.removeprefix("heldout/"))
    count = count or case.fact("eval.prompts") or case.fact("heldout_prompts")
    if not count:
        raise NotCheckable("needs the number of held-out prompts (heldout/count, or --set heldout_prompts=N)")
    number = float(count)
    share = (value * number + 1) / (number + 2)
    return math.sqrt(share * (1 - share) / (number + 2))


def heldout_series(case: Case, points: int) -> tuple[np.ndarray, np.ndarray]:
    if case.heldout is None:
        raise NotCheckable("needs a held-out score (heldout/accuracy)")
    steps, values = case.history.series(case.heldout)
    if len(values) < points:
        raise TooEarly(f"needs {points} held-out evaluations, has {len(values)}")
    return steps, values


@rule("SY01", "a run that stands still")
def stalled(case: Case) -> Finding | None:
    steps, times = case.history.series(case.first_of("time/unix"))
    if case.run.finished or case.now is None or len(times) < 3:
        raise NotCheckable("needs a run that is still being written")
    usual = float(np.median(np.diff(times)))
    silent = case.now - float(times[-1])
    limits = case.thresholds
    planned = case.fact("train.steps")
    if planned is None:
        raise NotCheckable("needs the planned number of steps (config.yaml of the run)")
    if steps[-1] >= int(planned):
        return None
    if silent < max(limits.stalled_factor * usual, limits.stalled_seconds):
        return None
    return Finding(
        "SY01",
        "error" if silent < LONG_DEAD else "info",
        "no step for a long time: the run hangs, or was stopped",
        f"last step {int(steps[-1])} was {silent:.0f} s ago; steps usually take {usual:.1f} s",
        "if it should be running: look at the server's log and the verifier's processes, and give every wait a time "
        "limit; "
        "`assay train` with the same recipe continues from the last checkpoint",
        key="rewards.round_timeout_s",
        window=(int(steps[-1]), int(steps[-1])),
    )


@rule("SY02", "where the time goes")
def bottleneck(case: Case) -> Finding | None:
    shares = {phase: case.recent(f"time/{phase}") for phase in PHASES if case.has(f"time/{phase}")}
    if "score" not in shares or len(shares) < 2:
        raise NotCheckable("needs metrics time/generate, time/score, time/train")
    total = sum(shares.values())
    share = shares["score"] / total if total else 0.0
    if share <= case.thresholds.scoring_share:
        return None
    return Finding(
        "SY02",
        "warning" if share > case.thresholds.scoring_share_high and total > 1.0 else "info",
        "scoring takes a large part of every step",
        ", ".join(f"{phase} {seconds / total:.0%}" for phase, seconds in shares.items()) + f" of {total:.2f} s",
        "more verifier workers, or a shorter time limit an answer",
        key="rewards.workers",
        window=case.span("time/score"),
    )


@rule("CK01", "checkpoints that are missing or incomplete")
def checkpoints(case: Case) -> Finding | None:
    every = case.fact("train.checkpoint_every")
    folder = case.run.directory / "checkpoints"
    broken = [path for path in case.run.checkpoints if not any(path.iterdir())]
    broken += [
        path
        for path in case.run.checkpoints
        if path.name.startswith("checkpoint-") and not (path / "trainer_state.json").exists()
    ]
    if broken:
        return Finding(
            "CK01",
            "warning",
            "incomplete checkpoints lie in the run directory",
            ", ".join(path.name for path in broken[:5]),
            "remove them and resume from a complete one; write checkpoints aside and rename them",
            key="train.keep_checkpoints",
        )
    if every is None or case.run.path.is_file():
        raise NotCheckable("needs a run directory with config.yaml")
    last = int(case.history.steps[-1]) if len(case.history) else 0
    if last > 2 * int(every) and not case.run.finished and (not folder.is_dir() or not case.run.checkpoints):
        return Finding(
            "CK01",
            "error",
            "there is no checkpoint to resume from",
            f"the run is at step {last} with checkpoint_every={every}, and {folder.name}/ is empty",
            "check free disk space and the permissions of the run directory",
            key="train.checkpoint_every",
        )
    return None


@rule("CK02", "prompts that are replayed after a resume")
def replayed(case: Case) -> Finding | None:
    if case.run.rollouts is None:
        raise NotCheckable("needs rollouts")
    steps = case.run.rollouts.steps()[-400:]
    if len(steps) < 6:
        raise TooEarly(f"needs 6 steps with rollouts, has {len(steps)}")
    drawn = [frozenset(row["prompt_key"] for row in case.run.rollouts.read(step, ("prompt_key",))) for step in steps]
    pool = len(frozenset().union(*drawn))
    seen: dict[frozenset[str], int] = {}
    run_length, lag = 0, None
    for index, prompts in enumerate(drawn):
        before = seen.get(prompts)
        run_length = run_length + 1 if before is not None and index - before == lag else int(before is not None)
        lag = index - before if before is not None else None
        seen[prompts] = index
        # A whole pass over the pool in the same order is an epoch; a repeat before the pool was used up is a replay.
        if run_length >= 3 and lag is not None and len(frozenset().union(*drawn[index - lag : index])) < 0.8 * pool:
            return Finding(
                "CK02",
                "error",
                "the run trains on prompts again that it had just used",
                f"steps {steps[index - run_length + 1]} to {steps[index]} draw exactly the prompts of "
                f"{lag} steps before, after {len(frozenset().union(*drawn[index - lag : index]))} of {pool} prompts",
                "save and restore the sampler's position and random state with the checkpoint",
                key="train.checkpoint_every",
                window=(steps[index - run_length + 1], steps[index]),
            )
    return None


@rule("EV02", "a policy that was better before")
def past_peak(case: Case) -> Finding | None:
    steps, values = heldout_series(case, 4)
    # The best of many evaluations is high by luck too; averaging three before choosing the best leaves most of it out.
    width = 3 if len(values) >= 8 else 1
    level = np.convolve(values, np.ones(width) / width, "valid")
    best = int(np.argmax(level))
    lost = float(level[best] - level[-1])
    if best >= len(level) - width or lost <= 3 * math.sqrt(2 / width) * heldout_se(case, float(level[best])):
        return None
    at = best + width // 2
    return Finding(
        "EV02",
        "warning",
        "the held-out score was better before",
        f"{case.heldout} was {level[best]:.3f} around step {steps[at]} and is {level[-1]:.3f} now",
        "keep the best checkpoint (model/best) and stop there, or lower the learning rate",
        key="eval.best_by",
        window=(int(steps[at]), int(steps[-1])),
    )


@rule("EV01", "a held-out score that no longer rises")
def plateau(case: Case) -> Finding | None:
    steps, values = heldout_series(case, 5)
    reward = case.trend("reward", whole=True)
    last = int(case.history.steps[-1])
    third = max(1, len(values) // 3)
    gain = float(np.mean(values[-third:]) - np.mean(values[:third]))
    error = math.sqrt(2 / third) * heldout_se(case, float(np.mean(values)))
    if last >= case.thresholds.slow_start_steps and not reward.rises(0.01) and gain + Z95 * error < 0.05:
        return Finding(
            "EV01",
            "warning",
            "neither reward nor held-out score has risen since the start",
            f"reward {reward}; {case.heldout} {values[0]:.3f} -> {values[-1]:.3f} after {last} steps",
            "check the signal (mixed groups), then the learning rate; below 300 steps a flat start would be normal",
            key="train.learning_rate",
            window=(int(steps[0]), int(steps[-1])),
        )
    since = max(2, round(0.65 * len(values)))
    recent = values[since:]
    if len(recent) < 3:
        return None
    level = float(np.mean(recent) - np.mean(values[max(0, since - len(recent)) : since]))
    half = Z95 * math.sqrt(2 / len(recent)) * heldout_se(case, float(np.mean(recent)))
    if level + half < case.thresholds.heldout_gain:
        return Finding(
            "EV01",
            "info",
            "the held-out score has levelled off",
            f"{case.heldout} changed by {level:+.3f} over the last {len(recent)} evaluations (95% +- {half:.3f})",
            "stop here, or fit the curve with `assay fit` to see whether more compute pays",
            key="train.steps",
            window=(int(steps[since]), int(steps[-1])),
        )
    return None


@rule("EV03", "an export that is not the policy")
def export(case: Case) -> Finding | None:
    name = "export/disagreement"
    if not case.has(name):
        raise NotCheckable(f"needs {name}, which `assay export RUN DIR --merge` measures and adds to the run")
    if case.recent(name) <= 0.01:
        return None
    return Finding(
        "EV03",
        "error",
        "the exported model answers differently from the trained one",
        f"they disagree on {case.recent(name):.1%} of fixed prompts",
        "export again with the adapter merged",
        key="output_dir",
    )
