"""The prompts of a run: read, rendered, checked, split into training and held-out."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.prompts.media import check_reads_media, media_of
from assay.prompts.options import DataOptions, SourceOptions
from assay.prompts.overlap import Overlap, find_overlap
from assay.prompts.render import Renderer
from assay.prompts.rows import Columns, as_text, find_columns, question_of
from assay.prompts.sources import Rows, describe, read_rows
from assay.records import Prompt
from assay.rewards.gsm8k import gsm8k_gold

LARGEST_HELDOUT_SHARE = 5
RATIONALE = re.compile(r"^#### *\S[^\n]*\s*\Z", re.MULTILINE)


@dataclass
class SourceReport:
    """What became of one source's rows; every row that was read is counted under exactly one of the numbers below."""

    source: str
    read: int = 0
    train: int = 0
    heldout: int = 0
    too_long: int = 0
    without_prompt: int = 0
    overlapping: int = 0
    not_asked_for: int = 0
    columns: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class PoolReport:
    """What a pool holds and what was left out of it and why."""

    sources: list[SourceReport]
    overlap: Overlap
    duplicates: int
    conflicting_gold: int
    prompt_tokens: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The report for a person, one finding a line."""
        lines = [source_line(source) for source in self.sources]
        tokens = self.prompt_tokens
        lines.append(
            f"prompt tokens: mean {tokens['mean']:.0f}, median {tokens['median']:.0f}, longest {tokens['max']:.0f}"
        )
        if self.overlap.shared_passage:
            lines.append(
                f"{self.overlap.shared_passage} held-out prompts share a passage of 13 words with a training prompt"
            )
        if self.overlap.identical_heldout:
            lines.append(f"{self.overlap.identical_heldout} held-out prompts also stood in the training data")
        if self.duplicates:
            lines.append(f"{self.duplicates} training prompts repeat an earlier one; they share its counts")
        if self.conflicting_gold:
            lines.append(f"{self.conflicting_gold} of them have a different gold answer: look at the data")
        return lines + [note for source in self.sources for note in source.notes]


@dataclass
class PromptPool:
    """Training and held-out prompts, the shares of generation by task (None: by number of prompts), and the report."""

    train: list[Prompt]
    heldout: list[Prompt]
    report: PoolReport
    task_weights: dict[str, float] | None = None


def load_prompts(
    options: DataOptions,
    tokenizer: Any,
    *,
    rows: Iterable[Mapping[str, Any]] | None = None,
    heldout_rows: Iterable[Mapping[str, Any]] | None = None,
    longest: int | None = None,
) -> PromptPool:
    """Everything that the `data` section describes, ready to draw from.

    `rows` (and `heldout_rows`) replace the section's source, for datasets that exist in memory. `longest` is the number
    of prompt tokens that the model's context leaves; with `options.max_prompt_tokens`, the smaller limit counts.
    Raises InputError where a source cannot be read, lacks a column, or leaves no training prompt.
    """
    limit = min((size for size in (options.max_prompt_tokens, longest) if size is not None), default=None)
    renderer = Renderer(options, tokenizer)
    loads = []
    for source in options.sources:
        if rows is not None:
            read = Rows(
                [dict(row) for row in rows], None if heldout_rows is None else [dict(row) for row in heldout_rows]
            )
            if not read.train:
                raise InputError("the dataset that was given has no rows; training needs at least one prompt")
        else:
            read = read_rows(source, options.seed)
        loads.append(load_source(source, read, renderer, limit, options.seed))
    overlap = settle_overlap(loads, options.on_overlap)
    train = [prompt for load in loads for prompt in load.train]
    heldout = [prompt for load in loads for prompt in load.heldout]
    report = PoolReport([load.report for load in loads], overlap, *count_duplicates(train), token_summary(train))
    if not train:
        raise InputError("no training prompt is left: " + "; ".join(report.lines()[: len(loads)]))
    return PromptPool(train, heldout, report, task_weights(loads))


@dataclass
class Load:
    """One source on its way into the pool."""

    source: SourceOptions
    report: SourceReport
    train: list[Prompt]
    heldout: list[Prompt]


def load_source(source: SourceOptions, read: Rows, renderer: Renderer, limit: int | None, seed: int) -> Load:
    report = SourceReport(describe(source), read=len(read.train) + len(read.heldout or ()), notes=list(read.notes))
    columns = find_columns(list(read.train[0]), source, report.source)
    report.columns = asdict(columns)
    train_rows, heldout_rows = read.train, read.heldout
    if heldout_rows is None:
        train_rows, heldout_rows = hold_out(read.train, source, seed, columns)
        if len(heldout_rows) < source.heldout_size:
            report.notes.append(
                f"{report.source}: {len(heldout_rows)} prompts held out, a fifth of the rows, "
                f"instead of {source.heldout_size}"
            )
    wanted = len(train_rows) if source.train_size is None else source.train_size
    report.not_asked_for = max(0, len(train_rows) - wanted) + max(0, len(heldout_rows) - source.heldout_size)
    train = [render(row, source, columns, renderer, report, limit) for row in train_rows[:wanted]]
    heldout = [render(row, source, columns, renderer, report, limit) for row in heldout_rows[: source.heldout_size]]
    load = Load(source, report, [prompt for prompt in train if prompt], [prompt for prompt in heldout if prompt])
    report.train, report.heldout = len(load.train), len(load.heldout)
    return load


def render(
    row: dict[str, Any],
    source: SourceOptions,
    columns: Columns,
    renderer: Renderer,
    report: SourceReport,
    limit: int | None,
) -> Prompt | None:
    """The prompt of a row; None, and counted, where the row asks nothing or the prompt is too long."""
    question = question_of(row, columns, source, report.source)
    if question is None:
        report.without_prompt += 1
        return None
    task = source.task or str(row.get(columns.task or "") or source.name or "default")
    kept = dict(row)
    if columns.gold is not None:
        kept["gold"] = gold_of(row.get(columns.gold), report)
    if columns.difficulty is not None:
        kept["difficulty"] = row.get(columns.difficulty)
    folder = Path(source.path).parent if source.path else Path()
    media = media_of(row.get(columns.media), folder, report.source) if columns.media is not None else ()
    check_reads_media(renderer.tokenizer, media, report.source)
    prompt = renderer.prompt(question, {**kept, "task": task}, task, source, media)
    if limit is not None and len(prompt.token_ids) > limit:
        report.too_long += 1
        return None
    return prompt


def gold_of(value: Any, report: SourceReport) -> Any:
    """The reference answer; of a GSM8K rationale what follows its last line's ####, as the verifier reads it."""
    if not isinstance(value, str) or not RATIONALE.search(value):
        return value
    note = f"{report.source}: gold is what follows #### in column {report.columns['gold']}"
    if note not in report.notes:
        report.notes.append(note)
    return gsm8k_gold(value)


def hold_out(rows: list[dict[str, Any]], source: SourceOptions, seed: int, columns: Columns) -> tuple[list, list]:
    """Split by a hash of the question, so that the choice survives new rows, another order and another train_size."""
    count = min(source.heldout_size, len(rows) // LARGEST_HELDOUT_SHARE)

    def rank(index: int) -> str:
        question = (
            rows[index].get(columns.prompt or "") if not source.template else source.template.format(**rows[index])
        )
        return hashlib.sha256(json.dumps([seed, question], default=str, sort_keys=True).encode()).hexdigest()

    held = set(sorted(range(len(rows)), key=rank)[:count])
    return [row for index, row in enumerate(rows) if index not in held], [rows[index] for index in sorted(held)]


def settle_overlap(loads: list[Load], on_overlap: str) -> Overlap:
    """Compare across all sources, then drop, report or refuse training prompts that are held out too."""
    train = [(load, prompt) for load in loads for prompt in load.train]
    overlap = find_overlap(
        [as_text(prompt.content) for _, prompt in train],
        [as_text(prompt.content) for load in loads for prompt in load.heldout],
    )
    if overlap.identical_train and on_overlap == "refuse":
        raise InputError(
            f"{len(overlap.identical_train)} training prompts are held out too, for example "
            f"{overlap.examples[0][0]!r}; clean the data, or set data.on_overlap to drop"
        )
    if on_overlap == "drop":
        gone = set(overlap.identical_train)
        for load in loads:
            load.train = [prompt for index, (owner, prompt) in enumerate(train) if owner is load and index not in gone]
            load.report.overlapping, load.report.train = load.report.train - len(load.train), len(load.train)
    return overlap


def task_weights(loads: list[Load]) -> dict[str, float] | None:
    """Shares of generation by task: a source's weight is divided among its tasks by number of prompts."""
    given = [load.source.weight for load in loads]
    if all(weight is None for weight in given):
        return None
    if any(weight is None for weight in given) or not sum(weight or 0 for weight in given):
        raise InputError(f"data.mixture weights are {given}; give every source a weight, at least one above 0, or none")
    weights: dict[str, float] = {}
    for load in loads:
        for task, count in Counter(prompt.task for prompt in load.train).items():
            weights[task] = weights.get(task, 0.0) + (load.source.weight or 0.0) * count / len(load.train)
    return weights


def count_duplicates(prompts: list[Prompt]) -> tuple[int, int]:
    """How many prompts repeat an earlier one, and how many of those with another gold answer."""
    first: dict[str, Any] = {}
    repeats = [prompt for prompt in prompts if first.setdefault(prompt.content_key, prompt) is not prompt]
    conflicts = sum(prompt.row.get("gold") != first[prompt.content_key].row.get("gold") for prompt in repeats)
    return len(repeats), conflicts


def token_summary(prompts: list[Prompt]) -> dict[str, float]:
    lengths = np.array([len(prompt.token_ids) for prompt in prompts] or [0])
    return {"mean": float(lengths.mean()), "median": float(np.median(lengths)), "max": float(lengths.max())}


def source_line(report: SourceReport) -> str:
    left_out = {
        "too long": report.too_long,
        "without a prompt": report.without_prompt,
        "also held out": report.overlapping,
        "beyond the sizes asked for": report.not_asked_for,
    }
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
    line = f"{report.source}: {report.train} training and {report.heldout} held-out prompts of {report.read} rows"
    return f"{line} (left out: {reasons})" if reasons else line
