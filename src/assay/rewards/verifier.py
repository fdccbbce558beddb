"""What a verifier is: one method from text and gold to a judgement, callable under TRL's contract as well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import InputError
from assay.records import Judgement, Outcome


def completion_text(completion: Any) -> str:
    """The text to mark: the string itself, or what the assistant said in a list of messages."""
    if isinstance(completion, str):
        return completion
    parts = (message.get("content") for message in completion if message.get("role", "assistant") == "assistant")
    return "\n".join(part if isinstance(part, str) else content_text(part) for part in parts if part is not None)


def content_text(content: Any) -> str:
    """The text parts of multimodal message content."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content)


class Verifier(ABC):
    """Marks one completion against gold.

    Subclasses implement `judge`, which must return a `Judgement` for any text whatever and raise only where the
    installation or the dataset is at fault. An instance is also a reward function under TRL's contract.
    """

    gives_verdicts: bool = True
    """Whether judgements say correct or wrong, rather than only a number."""

    gold_column: str = "gold"
    """The dataset column that holds the reference answer."""

    needs_gold: bool = True

    auditable: bool = True
    """False where neither gold nor a non-answer says anything about it: a term of length or language."""

    checks_answer: bool = True
    """False where the verdict is about the form alone; another function's verdict then sets `correct`, if any."""

    @property
    def __name__(self) -> str:
        return str(getattr(self, "name", type(self).__qualname__))

    @abstractmethod
    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        """Mark `text` (the completion) against `gold`; `row` is the dataset row with every other column."""

    def gold_of(self, row: Mapping[str, Any]) -> Any:
        """The reference answer of a row; InputError where the column is missing."""
        if self.gold_column in row or not self.needs_gold:
            return row.get(self.gold_column)
        raise InputError(
            f"reward {self.__name__!r}: the dataset row has no column {self.gold_column!r} "
            f"(it has {', '.join(sorted(row)) or 'none'}); name the column that holds the reference answer"
        )

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        """A model completion that states `gold` in the format this verifier asks for; `assay audit` marks it."""
        return str(gold)

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """TRL's contract: one float or None per completion, from lists of dataset columns."""
        rewards: list[float | None] = []
        log_extra = columns.pop("log_extra", None)
        judgements = []
        for index, completion in enumerate(completions):
            row = {key: value[index] for key, value in columns.items() if is_column(value, len(completions))}
            judgements.append(self.judge(completion_text(completion), self.gold_of(row), row))
            rewards.append(judgements[-1].reward)
        if log_extra is not None:
            log_extra(f"{self.__name__}_outcome", [str(judgement.outcome) for judgement in judgements])
            log_extra(f"{self.__name__}_extracted", [judgement.extracted or "" for judgement in judgements])
        return rewards

    def flags(self, judgement: Judgement) -> list[str] | None:
        """Signs of tampering in what was marked, by kind; None where this verifier does not look for any."""
        return None

    def start(self) -> None:  # noqa: B027 - most verifiers hold nothing
        """Begin starting worker processes, so that the first completion does not wait for them."""

    def close(self) -> None:  # noqa: B027 - most verifiers hold nothing
        """Release worker processes and connections."""


def is_column(value: Any, length: int) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == length


def correct(reward: float = 1.0, **fields: Any) -> Judgement:
    return Judgement(Outcome.CORRECT, reward, **fields)


def wrong(detail: str = "", reward: float = 0.0, **fields: Any) -> Judgement:
    return Judgement(Outcome.WRONG, reward, detail=detail, **fields)


def unparsable(detail: str = "", **fields: Any) -> Judgement:
    """The completion's fault: it earns what a wrong answer earns."""
    return Judgement(Outcome.UNPARSABLE, 0.0, detail=detail, **fields)


def failed(detail: str, **fields: Any) -> Judgement:
    """Our fault (a dead worker, an unreadable gold): no reward, the completion leaves its group."""
    return Judgement(Outcome.ERROR, None, detail=detail, **fields)


def not_applicable(detail: str = "") -> Judgement:
    return Judgement(Outcome.NOT_APPLICABLE, None, detail=detail)
