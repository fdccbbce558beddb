"""The nouns that every room shares: prompts, completions, groups and what happened to them.

A leaf: dataclasses and enums over the standard library and numpy, without behaviour beyond small derived properties.
Token arrays are one-dimensional numpy arrays; nothing here knows about torch, models or files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

Messages = list[dict[str, Any]]


class Finish(StrEnum):
    """Why the engine stopped writing; said by the engine, never guessed from the last token."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Outcome(StrEnum):
    """What a reward function found. Only `correct`, `wrong` and `scored` carry a number that the policy may learn from.

    `unparsable` is the completion's fault and earns the reward of a wrong answer; `timeout` and `error` are ours and
    count as None; `not_applicable` means that the row was not meant for this function.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    SCORED = "scored"
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    ERROR = "error"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True)
class Media:
    """A reference to an image, sound or video that belongs to a prompt; the bytes stay where they are."""

    kind: str
    reference: str
    sha256: str


@dataclass(frozen=True)
class Prompt:
    """One thing to answer: what the model reads (`token_ids`), and the dataset row that verifiers mark against.

    `content` is text or a list of messages as the dataset gave it; `token_ids` is that content through the chat
    template, with media placeholders expanded. `content_key` identifies the prompt across runs and resumes.
    """

    content: str | Messages
    token_ids: tuple[int, ...]
    row: Mapping[str, Any] = field(default_factory=dict)
    media: tuple[Media, ...] = ()
    task: str = "default"
    content_key: str = ""

    @property
    def is_conversational(self) -> bool:
        return not isinstance(self.content, str)


def content_key(content: str | Messages, media: tuple[Media, ...] = ()) -> str:
    """A stable 16-hex-digit identity of a prompt's text and media."""
    payload = json.dumps([content, [item.sha256 for item in media]], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(payload.encode()).hexdigest()[:16]


@dataclass
class Segment:
    """One token sequence of a trajectory, as it follows the prompt's tokens.

    All three arrays have length T. `loss_mask` is True where the policy wrote the token and False where a tool or an
    environment did; `sampling_logps` (nats, from the distribution that was actually sampled) is NaN where it is False.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    sampling_logps: np.ndarray

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class VersionSpan:
    """Tokens from `start` on (an index into the policy-authored tokens) were written by policy `version`."""

    start: int
    version: int


@dataclass(frozen=True)
class Judgement:
    """What one reward function said of one completion.

    `reward` is None where the function does not apply or we could not judge (`timeout`, `error`). `extracted` is the
    answer that was found and `span` its (start, end) character range in the completion's text.
    """

    outcome: Outcome
    reward: float | None = None
    extracted: str | None = None
    span: tuple[int, int] | None = None
    detail: str = ""


@dataclass
class Completion:
    """One trajectory: what the policy wrote for a prompt, how it ended, and what it was worth.

    `content` is the decoded text, or the list of messages where the prompt was conversational. `segments` has one entry
    unless a template rewrote earlier turns. `judgements` is keyed by reward-function name. `trace` is what an engine in
    this process remembers of having written it (see `assay.policy.recording`); it is never stored.
    """

    segments: list[Segment]
    finish: Finish
    content: str | Messages = ""
    judgements: dict[str, Judgement] = field(default_factory=dict)
    reward: float | None = None
    correct: bool | None = None
    advantage: float = 0.0
    policy_versions: tuple[VersionSpan, ...] = (VersionSpan(0, 0),)
    tags: dict[str, Any] = field(default_factory=dict)
    trace: Any = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The completion as one string; the assistant's messages joined where it is conversational."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(message["content"]) for message in self.content if message["role"] == "assistant")

    @property
    def num_tokens(self) -> int:
        """Policy-authored tokens; what tools and environments wrote does not count."""
        return int(sum(segment.loss_mask.sum() for segment in self.segments))

    @property
    def truncated(self) -> bool:
        return self.finish is not Finish.STOP


@dataclass
class Group:
    """A prompt and the G completions that are compared with one another; `draw` numbers the draws of a run."""

    prompt: Prompt
    completions: list[Completion]
    draw: int = 0
