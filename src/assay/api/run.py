"""`train`: a configuration becomes a run directory with a better model in it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.api.facts import run_facts
from assay.api.models import save_model
from assay.api.reporting import Evaluation, OnStep, RunReports, ranks_progress
from assay.api.session import Session, rows_of
from assay.api.stage_one import optimal_values
from assay.config.load import build_config, flat_keys, load_recipe, plain
from assay.config.schema import RunConfig
from assay.config.stored import check_resume, dump_config, read_stored
from assay.config.tree import merge, parse_overrides
from assay.errors import InputError
from assay.monitoring.monitor import Monitor, NullMonitor
from assay.objectives import build
from assay.prompts import Curriculum, Refill, has_signal, reward_curriculum
from assay.prompts.sources import IN_MEMORY
from assay.ranks import Ranks, start_ranks
from assay.records import Group, Prompt
from assay.rollouts.pipeline import Pipeline
from assay.rollouts.producer import Producer, Progress, Rollouts
from assay.rollouts.shared_engine import SharedEngine
from assay.training.collate import Collator
from assay.training.optimizers import build_optimizer
from assay.training.rundir import RunDirectory, write_whole
from assay.training.trainer import Trainer
from assay.training.update import Updater


@dataclass(frozen=True)
class RunResult:
    """What a run came to. `summary` is summary.json: heldout_before, heldout_after, best_step, steps, seconds, seed.

    `was_finished` says that an earlier call had done it all, and this one nothing.
    """

    directory: Path
    summary: Mapping[str, Any]
    was_finished: bool = False

    @property
    def model(self) -> Path:
        """The model of the last step: adapters (LoRA) or a whole model; `best` where held-out evaluation chose one."""
        return self.directory / "model" / "last"

    @property
    def best_model(self) -> Path:
        best = self.directory / "model" / "best"
        return best if best.is_dir() else self.model

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.directory / "metrics.jsonl").read_text().splitlines()]


def train(
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    model: str | None = None,
    dataset: Any = None,
    rewards: Sequence[Any] | Any = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    on_step: OnStep | None = None,
    **keys: Any,
) -> RunResult:
    """Train a policy by reinforcement learning with verifiable rewards; resumes if the run directory exists.

    Args:
        recipe: a YAML file, a run directory, or a tree of sections; the other arguments go on top of it.
        model: a folder, a hub id, or a built-in name such as "smollm2".
        dataset: rows in memory (a list of dicts, a datasets.Dataset, a DataFrame) instead of the recipe's source.
        rewards: built-in names, "file.py:function", "package.module:function", or functions under TRL's contract.
        preset: a published recipe: "dapo", "grpo", "dr_grpo", ...; any key overrides it.
        overrides: "section.key=value" words, as on the command line.
        on_step: called after every update with (step, metrics).
        keys: any configuration key by its name (num_generations=8), by section (train={"steps": 50}) or dotted.

    Returns:
        RunResult; the model itself is in its `model` and `best_model` folders.

    Raises:
        InputError: a value is wrong: which, where it came from, and what would be right.
        RunError: the run cannot go on; checkpoints are kept.
    """
    given = {"preset": preset, "model": None if model is None else {"path": model}, "rewards": rewards}
    tree = merge(flat_keys(keys), {key: value for key, value in given.items() if value is not None})
    tree = merge(tree, parse_overrides(overrides))
    if recipe is None:
        config = build_config(tree, source="arguments of train()")
    elif isinstance(recipe, Mapping):
        config = build_config(recipe, source="the recipe", overrides=tree)
    else:
        config = load_recipe(recipe, overrides=tree)
    return run(config, dataset=dataset, on_step=on_step)


def run(config: RunConfig, *, dataset: Any = None, on_step: OnStep | None = None) -> RunResult:
    """Train as `config` says, on every process that the launcher started; see `train`."""
    start_ranks()
    ranks = Ranks()
    if dataset is not None:
        dataset = rows_of(dataset)
        config = replace(config, data=replace(config.data, source="python", name=fingerprint(dataset)))
    directory = RunDirectory(Path(config.output_dir) / config.name)
    with prepared(directory, config, ranks) as measured:
        if (done := finished(directory, config)) is not None:
            return done
        with Session(config, dataset=dataset, measured=measured, ranks=ranks) as session:
            return run_session(session, directory, on_step)


def run_session(session: Session, directory: RunDirectory, on_step: OnStep | None) -> RunResult:
    """Everything of a run that needs its parts."""
    config, ranks, started = session.config, session.ranks, time.monotonic()
    monitor = (
        Monitor(directory.path, config.monitoring, config.train.steps, plain(config))
        if ranks.is_main
        else NullMonitor()
    )
    reports = RunReports(monitor, config.objective.multi_objective_aggregation == "normalize_then_sum", on_step)
    evaluation = Evaluation(session, reports, directory.path)
    trainer = build_trainer(session, directory, reports, evaluation)
    if ranks.is_main and not directory.config.exists():
        write_whole(directory.config, dump_config(config, {**session.measured, **run_facts(session)}))
    monitor.start()
    for line in session.pool.report.lines():
        monitor.message(line)
    try:
        if config.objective.baseline == "given":
            begin_from_values(trainer, session, directory, reports)
        steps = trainer.run()
    finally:
        monitor.finish()
    summary = summarise(session, evaluation, reports, steps, time.monotonic() - started)
    if ranks.is_main:
        save_model(session.policy, session.tokenizer, directory.model / "last")
        directory.write_json(directory.summary, summary)
    ranks.barrier()
    return RunResult(directory.path, summary)


def build_trainer(session: Session, directory: RunDirectory, reports: RunReports, evaluation: Evaluation) -> Trainer:
    """Wire the rooms together."""
    config, ranks, policy = session.config, session.ranks, session.policy
    objective = build(config.objective)
    if objective.needs_ref:
        policy.keep_reference(moving=config.objective.sync_ref_model)
    if objective.needs_values and config.model.critic == "none":
        raise InputError("objective.baseline is value, which needs a critic; set model.critic to head or model")
    temperature = config.rollout.temperature
    return Trainer(
        policy=policy,
        producer=build_producer(session, ranks_progress(reports, ranks)),
        curriculum=build_curriculum(session, session.pool.train, session.pool.task_weights),
        objective=objective,
        collator=Collator(
            policy,
            objective,
            config.train,
            scorer=session.scorer,
            temperature=temperature,
            ranks=ranks,
        ),
        updater=Updater(
            policy,
            objective,
            build_optimizer(policy, config.train),
            config.train,
            temperature=temperature,
            max_completion_length=config.rollout.max_completion_length,
            seed=config.seed,
            ranks=ranks,
            dump_folder=directory.path,
        ),
        options=config.train,
        run=directory,
        monitor=reports,
        evaluate=evaluation,
        ranks=ranks,
    )


def build_curriculum(
    session: Session, prompts: Sequence[Prompt], task_weights: Mapping[str, float] | None
) -> Curriculum:
    config = session.config
    return Curriculum(
        prompts,
        config.curriculum,
        num_generations=config.rollout.num_generations,
        seed=config.seed,
        task_weights=task_weights,
    )


def begin_from_values(trainer: Trainer, session: Session, directory: RunDirectory, reports: RunReports) -> None:
    """A*-PO: estimate what is reachable on each prompt, and train on those where something is."""
    begun = bool(trainer.checkpoints.steps())
    reports.forget()
    values = optimal_values(session, directory.path / "optimal_values.jsonl", begun, reports)
    reports.count()
    trainer.collator.baselines = values
    left = [prompt for prompt in session.pool.train if prompt.content_key in values]
    weights = session.pool.task_weights
    if weights is not None:
        tasks = {prompt.task for prompt in left}
        weights = {task: weight for task, weight in weights.items() if task in tasks}
        if not sum(weights.values()):
            raise InputError(f"stage one left prompts of {', '.join(sorted(tasks))} only, none of which has a weight")
    trainer.curriculum = build_curriculum(session, left, weights)


def build_producer(session: Session, progress: Progress) -> Rollouts:
    """Who writes and marks: round by round, or ahead of the trainer where `rollout.max_staleness` allows it."""
    config = session.config
    shared: dict[str, Any] = {
        "seed": config.seed,
        "prompts": {prompt.content_key: prompt for prompt in session.pool.train},
        "refill": Refill(config.refill, signal_rule(config)),
        "schedules": reward_curriculum(
            config.curriculum.reward_weights, config.curriculum.limits, session.scorer.names
        ),
        "progress": progress,
    }
    engine, scorer, ahead = session.engine, session.scorer, config.rollout.max_staleness
    if not ahead:
        return Producer(engine, scorer, session.decode, config.rollout, ranks=session.ranks, **shared)
    whole_round = [function.name for function in scorer.functions if function.spec.batch]
    if whole_round or session.ranks.world > 1:
        reason = (
            f"reward function {whole_round[0]!r} marks whole rounds (batch: true)"
            if whole_round
            else f"{session.ranks.world} processes train together"
        )
        raise InputError(f"rollout.max_staleness is {ahead}, but {reason}, which needs synchronous rounds; set it to 0")
    assert isinstance(engine, SharedEngine)
    return Pipeline(
        engine,
        scorer,
        session.decode,
        config.rollout,
        groups_per_round=config.train.prompts_per_round,
        updates_per_round=config.train.updates_per_round,
        steps=config.train.steps,
        **shared,
    )


def signal_rule(config: RunConfig) -> Callable[[Group], bool]:
    """When a group carries a signal: rewards differ; under GDPO, those of any one function do."""
    if config.objective.multi_objective_aggregation != "normalize_then_sum":
        return has_signal

    def any_function_differs(group: Group) -> bool:
        names = {name for completion in group.completions for name in completion.judgements}
        found = ([completion.judgements[name].reward for completion in group.completions] for name in names)
        return any(len({reward for reward in rewards if reward is not None}) > 1 for rewards in found)

    return any_function_differs


@contextmanager
def prepared(directory: RunDirectory, config: RunConfig, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Hold the run directory; yields what an earlier start of the run measured."""
    with ExitStack() as stack:
        if ranks.is_main:
            directory.create()
            stack.enter_context(directory.lock())
        ranks.barrier()
        measured: dict[str, Any] = {}
        if directory.config.exists():
            stored, measured = read_stored(directory.config)
            check_resume(stored, config, directory.path)
        # The other ranks must have looked before rank 0 writes the file.
        ranks.barrier()
        yield measured


def finished(directory: RunDirectory, config: RunConfig) -> RunResult | None:
    """The result of a run that has nothing left to do."""
    if not directory.summary.exists():
        return None
    summary = json.loads(directory.summary.read_text())
    return RunResult(directory.path, summary, True) if summary["steps"] >= config.train.steps else None


def summarise(
    session: Session, evaluation: Evaluation, reports: RunReports, steps: int, seconds: float
) -> dict[str, Any]:
    """summary.json: what scripts read."""
    config, heldout = session.config, evaluation.heldout
    start = {} if heldout is None else {name: result.accuracy for name, result in heldout.start.items()}
    before = {name.removeprefix("/"): accuracy for name, accuracy in start.items()}
    after = evaluation.last_figure
    summary: dict[str, Any] = {
        "name": config.name,
        "finished": steps >= config.train.steps,
        "steps": steps,
        "seed": config.seed,
        "heldout_before": before.get("accuracy"),
        "heldout_after": after.get("heldout/accuracy"),
        "heldout_after_interval": [after.get("heldout/accuracy_low"), after.get("heldout/accuracy_high")],
        "heldout_prompts": 0 if heldout is None else len(heldout.sets[0].prompts),
        "train_seconds": round(reports.train_seconds, 2),
        "total_seconds": round(seconds, 2),
        "peak_memory_gib": peak_memory_gib(),
        "model": "model/last",
    }
    if before.get("pass_rate") is not None:
        summary |= {"pass_rate_before": before["pass_rate"], "pass_rate_after": after.get("heldout/pass_rate")}
    if before.get("forgetting/accuracy") is not None:
        summary |= {
            "forgetting_before": before["forgetting/accuracy"],
            "forgetting_after": after.get("heldout/forgetting/accuracy"),
        }
    if heldout is not None:
        summary |= {"best_step": heldout.best_step, "heldout_best": heldout.best_figure}
    return summary


def peak_memory_gib() -> float:
    """The largest resident size of this process so far."""
    from assay.monitoring.monitor import memory_metrics

    return round(memory_metrics().get("memory/peak_rss_gib", 0.0), 3)


def fingerprint(rows: Sequence[Mapping[str, Any]]) -> str:
    """A name for rows in memory, so that a resume with other rows is noticed."""
    digest = hashlib.sha256(json.dumps(plain(list(rows)), sort_keys=True, default=str).encode()).hexdigest()[:12]
    return f"{IN_MEMORY}{len(rows)} rows in memory, {digest})"
