"""The `data`, `curriculum` and `refill` sections: where prompts come from and which deserve generation."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from assay.errors import InputError

Source = Literal["task", "file", "hub", "reasoning_gym", "python"]


@dataclass(frozen=True)
class FieldOptions:
    """Which columns of a dataset hold what; None looks for the usual names and the report says which were found."""

    prompt: Annotated[str | None, "Column with the question, as text or as a list of messages."] = None
    gold: Annotated[str | None, "Column with the reference answer that verifiers mark against."] = None
    task: Annotated[str | None, "Column that names each row's task, if one dataset mixes several."] = None
    difficulty: Annotated[str | None, "Column with a difficulty number, larger is harder; two policies can use it."] = (
        None
    )
    media: Annotated[
        str | None, "Column with paths of images, sounds or videos that belong to the prompt; `none` leaves it out."
    ] = None


@dataclass(frozen=True)
class SourceOptions:
    """One source of rows. A mixture has several, and each may override the dialogue around its prompts."""

    source: Annotated[
        Source,
        "Kind of source: a built-in task, a local file, a hub dataset, a reasoning-gym task or a Python function.",
    ] = "task"
    name: Annotated[
        str | None, "Name of the task, hub dataset or reasoning-gym task, or file.py:function for a Python source."
    ] = None
    config: Annotated[str | None, "Configuration of a hub dataset that has several."] = None
    split: Annotated[str, "Split of a hub dataset to train on."] = "train"
    path: Annotated[str | None, "JSONL, JSON, CSV or parquet file with the training rows."] = None
    options: Annotated[
        Mapping[str, Any], "Arguments of the task or function, such as the fields of the e-mail task."
    ] = field(default_factory=dict)
    streaming: Annotated[
        bool, "Read a hub dataset row by row instead of downloading all of it; set train_size too."
    ] = False
    fields: Annotated[FieldOptions, "Which columns hold what."] = FieldOptions()
    task: Annotated[
        str | None, "Name under which this source's metrics appear and by which verifiers know its rows."
    ] = None
    weight: Annotated[
        float | None,
        "Share of generation in a mixture; without shares the curriculum looks for signal in all sources alike.",
    ] = None
    template: Annotated[
        str | None, "Text of the prompt with {column} placeholders, if no column holds it ready-made."
    ] = None
    system_prompt: Annotated[str | None, "System message put before every prompt."] = None
    few_shot: Annotated[
        tuple[Mapping[str, str], ...], "Worked examples put before every prompt, each with `prompt` and `answer`."
    ] = ()
    train_size: Annotated[
        int | None, "How many training prompts to keep or generate; None keeps all (a task makes 512)."
    ] = None
    heldout_size: Annotated[
        int, "How many prompts are held out; at most a fifth where they are split off the training rows."
    ] = 128
    heldout_split: Annotated[
        str | None, "Split of a hub dataset to hold out instead of a part of the training rows."
    ] = None
    heldout_path: Annotated[str | None, "File with held-out rows to use instead of a part of the training rows."] = None

    def __post_init__(self) -> None:
        needs = "path" if self.source == "file" else "name"
        if self.source != "task" and getattr(self, needs) is None:
            raise InputError(f"data.source is {self.source!r}, which needs data.{needs}; it is not set")
        if self.heldout_size < 0 or (self.train_size is not None and self.train_size < 1):
            raise InputError(
                f"data.train_size is {self.train_size} and data.heldout_size {self.heldout_size}; "
                "at least one training prompt is needed, and a held-out size of 0 or more"
            )
        if self.weight is not None and self.weight < 0:
            raise InputError(f"data.weight is {self.weight}; a share of generation cannot be negative")
        for number, example in enumerate(self.few_shot):
            if set(example) != {"prompt", "answer"}:
                raise InputError(
                    f"data.few_shot[{number}] has keys {sorted(example)}; it needs exactly prompt and answer"
                )


@dataclass(frozen=True)
class DataOptions(SourceOptions):
    """The `data` section: one source (by default the e-mail task), or a `mixture` of several."""

    mixture: Annotated[
        tuple[Mapping[str, Any], ...],
        "Several sources with the same keys as this section; keys set here are their defaults.",
    ] = ()
    max_prompt_tokens: Annotated[
        int | None, "Longer prompts are left out and counted; None keeps what fits the model."
    ] = None
    format: Annotated[
        Literal["auto", "chat", "text"],
        "Whether text prompts become a user message; auto does so if the tokenizer has a chat template.",
    ] = "auto"
    chat_template: Annotated[str | None, "Jinja file to use in place of the tokenizer's own chat template."] = None
    template_options: Annotated[
        Mapping[str, Any], "Options of the chat template, such as enable_thinking: false for Qwen3."
    ] = field(default_factory=dict)
    on_overlap: Annotated[
        Literal["drop", "report", "refuse"], "What to do with training prompts whose text is also held out."
    ] = "drop"
    seed: Annotated[int, "Decides the held-out rows and what procedural tasks generate."] = 0

    def __post_init__(self) -> None:
        if not self.mixture:
            super().__post_init__()
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise InputError(f"data.max_prompt_tokens is {self.max_prompt_tokens}; it must be at least 1")

    @property
    def sources(self) -> list[SourceOptions]:
        """The sources that make up the pool, the mixture's with this section's values as defaults."""
        shared = {item.name: getattr(self, item.name) for item in fields(SourceOptions)}
        return [mixture_source(shared, number, item) for number, item in enumerate(self.mixture)] or [
            SourceOptions(**shared)
        ]


def mixture_source(shared: Mapping[str, Any], number: int, item: Mapping[str, Any]) -> SourceOptions:
    """Entry `number` of a mixture on top of the section's own values; an unknown key is an InputError."""
    for key in item:
        if key not in shared:
            close = difflib.get_close_matches(key, shared, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(shared)}"
            raise InputError(f"unknown key data.mixture[{number}].{key}; {hint}")
    values = {**shared, **item}
    if isinstance(values["fields"], Mapping):
        values["fields"] = FieldOptions(**values["fields"])
    values["few_shot"] = tuple(values["few_shot"])
    return SourceOptions(**values)


@dataclass(frozen=True)
class CurriculumOptions:
    """The `curriculum` section: which prompts of the pool the next round generates for."""

    policy: Annotated[
        str, "How prompts are chosen: uniform, easy_to_hard, mid_range, thompson, greso, adarft, or module:function."
    ] = "thompson"
    exploration: Annotated[
        float, "Share of every draw that goes to the longest unseen prompts, so that none is forgotten."
    ] = 0.1
    target: Annotated[float, "Pass rate that thompson and adarft aim at; half right is where groups teach most."] = 0.5
    discount: Annotated[
        float, "Weight kept by older counts when a prompt is seen again; lower it when the model improves quickly."
    ] = 0.5
    retire_at: Annotated[
        float | None, "Expected pass rate from which a prompt rests as solved; None never retires one."
    ] = 0.9
    reward_weights: Annotated[
        Mapping[str, Mapping[str, Any]],
        "Weights that change with the step, by reward name: {start, end, to_step, ...}.",
    ] = field(default_factory=dict)
    limits: Annotated[
        Mapping[str, Mapping[str, Any]],
        "Limits that change with the step, like weights; max_completion_length never exceeds rollout's.",
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("exploration", "discount", "target"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"curriculum.{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if self.retire_at is not None and not 0 < self.retire_at <= 1:
            raise InputError(
                f"curriculum.retire_at is {self.retire_at}; it must lie above 0 and at most at 1, or be null"
            )


@dataclass(frozen=True)
class RefillOptions:
    """The `refill` section: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2)."""

    dynamic_sampling: Annotated[
        bool, "Drop groups in which all completions earned the same and draw more prompts until the batch is full."
    ] = False
    max_rounds: Annotated[
        int, "Rounds of generation after which a batch is taken as it is; bounds the cost of hard data."
    ] = 5
    max_oversample: Annotated[
        float, "Largest number of prompts asked for at once, as a multiple of those still missing."
    ] = 4.0
    fallback: Annotated[
        Literal["short", "pad", "stop"],
        "When rounds run out: train on fewer groups, pad with uniform groups (no signal), or end the run.",
    ] = "short"
    keep_surplus: Annotated[bool, "Keep mixed groups beyond the batch for the next one; they are one update older."] = (
        True
    )
    max_surplus_age: Annotated[int, "Batches after which kept groups are too old to train on and are discarded."] = 1
    screen: Annotated[
        int, "First write this many completions and continue only if they differ (SPEED); 0 writes all at once."
    ] = 0

    def __post_init__(self) -> None:
        if self.max_rounds < 1:
            raise InputError(f"refill.max_rounds is {self.max_rounds}; it must be at least 1")
        if self.max_oversample < 1:
            raise InputError(f"refill.max_oversample is {self.max_oversample}; it must be at least 1")
        if self.max_surplus_age < 1:
            raise InputError(
                f"refill.max_surplus_age is {self.max_surplus_age}; set keep_surplus to false to keep none"
            )
        if self.screen < 0 or self.screen == 1:
            raise InputError(
                f"refill.screen is {self.screen}; two completions are the fewest that can differ, 0 is off"
            )
