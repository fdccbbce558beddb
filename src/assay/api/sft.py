"""`fine_tune`: answers to imitate become a model folder that reinforcement learning can start from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.api.models import save_model
from assay.api.session import Session, rows_of
from assay.config.load import load_recipe
from assay.config.schema import RunConfig
from assay.config.stored import check_resume, dump_config, read_stored
from assay.errors import InputError
from assay.monitoring.store import MetricsLog, RolloutStore
from assay.policy import turn_end
from assay.prompts import load_prompts
from assay.records import Prompt
from assay.training.rundir import RunDirectory, write_whole
from assay.training.sft import Example, OnLog, fine_tune_policy, newest_checkpoint

ANSWERS = ("answer", "completion", "response")
COLUMNS = ["step", "prompt_key", "prompt_token_ids", "token_ids", "loss_mask", "text", "finish", "correct"]
# What a fine-tuning run does not depend on and may therefore change when it is gone on with.
MAY_CHANGE = ("name", "output_dir", "preset", "dialect", "rewards.", "curriculum.", "refill.", "rollout.", "objective.",
              "train.", "eval.", "monitoring.", "sft.checkpoint_every")  # fmt: skip


@dataclass(frozen=True)
class SftResult:
    """What a fine-tuning run came to. `summary`: rows, updates, loss_first, loss_last, seconds, model."""

    directory: Path
    summary: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """A plain model folder (adapters merged): the `model.path` of the next stage."""
        return self.directory / "model"


def fine_tune(
    recipe: RunConfig | str | Path,
    *,
    overrides: Sequence[str] = (),
    rows: Any = None,
    from_rollouts: Sequence[str | Path] = (),
    correct_only: bool = True,
    per_prompt: int = 4,
    output: str | Path | None = None,
    on_log: OnLog = lambda step, metrics: None,
) -> SftResult:
    """Fine-tune a recipe's model on answers; goes on where an earlier call was stopped.

    Args:
        recipe: its `model`, `data` (how prompts are put together), `sft` and `seed` count.
        rows: prompt and answer rows, a file or in memory, instead of those of the recipe's `data`.
        from_rollouts: run directories whose stored completions are imitated (rejection sampling); then `rows` or the
            recipe's own rows are used only where `rows` is given too.
        correct_only: of the stored completions only those that the run's verifier called correct.
        per_prompt: at most so many different completions of a prompt, the latest first.
        output: the run directory; by default output_dir/NAME-sft.
        on_log: called after every update with (update, metrics).

    Raises:
        InputError: a value is wrong, no answer is left, or the directory holds another fine-tuning run.
    """
    config = recipe if isinstance(recipe, RunConfig) else load_recipe(recipe, overrides)
    if isinstance(rows, str | Path):
        config = prompt_rows(config, rows)
    directory = RunDirectory(Path(output) if output else Path(config.output_dir) / f"{config.name}-sft")
    directory.create()
    measured = read_stored(directory.config)[1] if directory.config.exists() else {}
    with directory.lock(), Session(config, measured=measured) as session:
        context = getattr(session.policy.config, "max_position_embeddings", None)
        examples: list[Example] = []
        for run in from_rollouts:
            examples += examples_of_rollouts(Path(run), session.decode, correct_only, per_prompt)
        if rows is not None or not from_rollouts:
            given = None if rows is None or isinstance(rows, str | Path) else rows_of(rows)
            pool = load_prompts(config.data, session.tokenizer, rows=given, longest=context)
            examples += examples_of_prompts(pool.train, session, config.sft.answer)
        examples = fitting(examples, context)
        return run_sft(session, directory, examples, on_log)


def run_sft(session: Session, directory: RunDirectory, examples: list[Example], on_log: OnLog) -> SftResult:
    config = session.config
    identity = fingerprint(examples)
    if directory.config.exists():
        stored, measured = read_stored(directory.config)
        check_resume(stored, config, directory.path, MAY_CHANGE)
        if measured.get("examples") != identity:
            raise InputError(
                f"{directory.path} exists and began with other answers ({measured.get('examples')}, now {identity}); "
                "give another --output or delete it"
            )
        if directory.summary.exists():
            return SftResult(directory.path, json.loads(directory.summary.read_text()))
    else:
        write_whole(directory.config, dump_config(config, {**session.measured, "examples": identity}))
    log, started = MetricsLog(directory.path / "metrics.jsonl"), time.monotonic()
    newest = newest_checkpoint(directory.checkpoints)
    log.truncate(int(newest.rpartition("-")[2]) if newest else -1)

    def report(step: int, metrics: Mapping[str, float]) -> None:
        log.append(step, metrics)
        on_log(step, metrics)

    updates, whole = fine_tune_policy(
        session.policy,
        examples,
        config.sft,
        directory.checkpoints,
        token_budget=config.train.token_budget,
        seed=config.seed,
        pad_token_id=session.tokenizer.pad_token_id or 0,
        on_log=report,
    )
    log.close()
    if not whole:
        raise KeyboardInterrupt
    save_model(session.policy, session.tokenizer, directory.model, merged=True)
    losses = [json.loads(line)["sft/loss"] for line in log.path.read_text().splitlines()]
    summary = {
        "rows": len(examples),
        "updates": updates,
        "answer_tokens": sum(len(example.answer) for example in examples),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "seconds": round(time.monotonic() - started, 2),
        "model": "model",
    }
    directory.write_json(directory.summary, summary)
    return SftResult(directory.path, summary)


def examples_of_prompts(prompts: Iterable[Prompt], session: Session, column: str | None) -> list[Example]:
    """Prompts as the run would read them, each with its row's answer and the token that ends a turn."""
    ends = turn_end(session.tokenizer)
    examples = []
    for prompt in prompts:
        name = column or next((name for name in (*ANSWERS, "gold") if isinstance(prompt.row.get(name), str)), "answer")
        answer = prompt.row.get(name)
        if not isinstance(answer, str):
            raise InputError(
                f"sft.answer: the row {str(prompt.content)[:60]!r} has no text in column {name!r} (it has "
                f"{', '.join(sorted(prompt.row))}); name the column with the answers to imitate"
            )
        stop = ends if prompt.is_conversational and ends else {session.tokenizer.eos_token_id}
        tokens = session.tokenizer(answer, add_special_tokens=False)["input_ids"]
        examples.append(Example(tuple(prompt.token_ids), (*tokens, *stop)))
    return examples


def examples_of_rollouts(
    run: Path, decode: Callable[[Sequence[int]], str], correct_only: bool, per_prompt: int
) -> list[Example]:
    """A run's stored completions as they were sampled, token for token: finished, different, the latest first.

    Raises InputError where the run stored none, none is left, or another tokenizer wrote them.
    """
    if per_prompt < 1:
        raise InputError(f"per_prompt is {per_prompt}; at least one completion of a prompt must be kept")
    store = RolloutStore(run / "rollouts")
    steps = store.steps()
    if not steps:
        raise InputError(f"{run} has no stored rollouts; train it with monitoring.rollouts_every of at least 1")
    kept: dict[str, dict[str, Example]] = {}
    for step in reversed(steps):
        for row in store.read(step, COLUMNS):
            texts = kept.setdefault(row["prompt_key"], {})
            wanted = row["finish"] == "stop" and (row["correct"] is True or not correct_only)
            if not wanted or len(texts) >= per_prompt or row["text"] in texts:
                continue
            if not all(row["loss_mask"]):
                continue  # an environment wrote in between; a prompt and one answer cannot say that
            if decode(row["token_ids"]) != row["text"]:
                raise InputError(f"{run}: step {step} was written with another tokenizer than the recipe's model has")
            texts[row["text"]] = Example(tuple(row["prompt_token_ids"]), tuple(row["token_ids"]))
    examples = [example for texts in kept.values() for example in texts.values()]
    if not examples:
        raise InputError(f"{run} has no finished completion that is {'correct' if correct_only else 'usable'}")
    return examples


def fitting(examples: list[Example], context: int | None) -> list[Example]:
    """Those that the model's context holds whole; a cut answer would teach never to end."""
    kept = [example for example in examples if context is None or len(example) <= context]
    if not kept:
        raise InputError(f"none of the {len(examples)} prompts with answers fits the model's context of {context}")
    return kept


def fingerprint(examples: Sequence[Example]) -> str:
    """A name for the answers, so that a resume with others is noticed."""
    digest = hashlib.sha256(repr([(example.prompt, example.answer) for example in examples]).encode())
    return f"{len(examples)} examples, {digest.hexdigest()[:12]}"


def prompt_rows(config: RunConfig, path: str | Path) -> RunConfig:
    """The configuration with a file's rows in place of its data source, none of them held out."""
    data = replace(config.data, source="file", path=str(path), mixture=(), train_size=None, heldout_size=0,
                   heldout_path=None)  # fmt: skip
    return replace(config, data=data)
