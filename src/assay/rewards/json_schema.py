"""Structured output: valid under a JSON Schema, and how many fields are right."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from assay.errors import InputError
from assay.records import Judgement, Outcome
from assay.rewards.verifier import Verifier, correct, failed, not_applicable, unparsable, wrong

EMAIL_TASK = "email_json"
EMAIL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string"},
        "order_id": {"type": "string", "pattern": r"^ORD-[0-9]{5}\Z"},
        "issue_type": {"enum": ["refund", "shipping", "defect", "account", "other"]},
        "refund_requested": {"type": "boolean"},
        "sentiment": {"enum": ["positive", "neutral", "negative"]},
    },
    "required": ["customer_name", "order_id", "issue_type", "refund_requested", "sentiment"],
    "additionalProperties": False,
}
FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
MAX_CHARS = 100_000


class DuplicateKey(ValueError):
    """One key twice: two answers where one was asked for."""


def parse_object(text: str) -> tuple[Any, tuple[int, int]]:
    """The JSON value that is the whole text, or the whole content of the one fence that is the whole text.

    Returns the value and its character span. Raises ValueError where there is none, where something else stands
    around it, where a key occurs twice, or where it holds NaN or Infinity, which JSON does not know.

    >>> parse_object('```json\\n{"a": 1}\\n```')
    ({'a': 1}, (8, 16))
    """
    start, end = bare_span(text, 0, len(text))
    fence = FENCE.fullmatch(text, start, end)
    if fence and "```" not in fence.group(1):
        start, end = bare_span(text, fence.start(1), fence.end(1))
    if end - start > MAX_CHARS:
        raise ValueError(f"longer than {MAX_CHARS} characters")
    try:
        value = json.loads(text[start:end], object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value, (start, end)


def bare_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without surrounding white space."""
    inner = text[start:end]
    return start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise DuplicateKey("a key occurs twice")
    return dict(pairs)


def refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class JsonTask(Verifier):
    """What the JSON verifiers share: rows of other tasks are skipped, reasoning before `</think>` is set aside."""

    def __init__(self, gold_column: str = "gold", task: str = ""):
        self.gold_column, self.task = gold_column, task

    def skips(self, row: Mapping[str, Any]) -> bool:
        return bool(self.task) and row.get("task") not in (None, "", "default", self.task)

    def read(self, text: str) -> tuple[Any, tuple[int, int]]:
        """The value after any reasoning block, with its span in the whole text."""
        offset = text.rfind("</think>") + len("</think>") if "</think>" in text else 0
        value, (start, end) = parse_object(text[offset:])
        return value, (start + offset, end + offset)

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        return json.dumps(gold_object(gold), ensure_ascii=False)


class JsonSchema(JsonTask):
    """1.0 where the completion is exactly one JSON value valid under `schema` (a mapping or a path), else 0.0."""

    needs_gold = False
    checks_answer = False

    def __init__(self, schema: Mapping[str, Any] | str, gold_column: str = "gold", task: str = ""):
        super().__init__(gold_column, task)
        self.schema = load_schema(schema)
        kind = jsonschema.validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(self.schema)
        except jsonschema.SchemaError as error:
            raise InputError(f"rewards: json_schema: the schema itself is invalid: {error.message}") from error
        self.validator = kind(self.schema)

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        if self.skips(row):
            return not_applicable("a row of another task")
        try:
            value, span = self.read(text)
        except ValueError as error:
            return unparsable(f"not one JSON value: {error}")
        problem = next(self.validator.iter_errors(value), None)
        found: dict[str, Any] = {"extracted": text[slice(*span)], "span": span}
        if problem is None:
            return correct(**found)
        return wrong(f"{problem.json_path}: {problem.message[:200]}", **found)


class JsonFields(JsonTask):
    """The share of gold's fields whose value is equal in the completion; correct where all are and nothing is added."""

    def __init__(
        self,
        fields: tuple[str, ...] | list[str] = (),
        gold_column: str = "gold",
        task: str = "",
        casefold: bool = False,
    ):
        super().__init__(gold_column, task)
        self.fields, self.casefold = tuple(fields), casefold

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        if self.skips(row):
            return not_applicable("a row of another task")
        try:
            reference = gold_object(gold)
        except ValueError as error:
            return failed(f"gold unreadable: {error}")
        fields = self.fields or tuple(reference)
        if missing := [name for name in fields if name not in reference]:
            return failed(f"gold unreadable: it has no field {', '.join(missing)}")
        try:
            value, span = self.read(text)
        except ValueError as error:
            return unparsable(f"not one JSON value: {error}")
        found: dict[str, Any] = {"extracted": text[slice(*span)], "span": span}
        if not isinstance(value, dict):
            return unparsable(f"a JSON {type(value).__name__}, not an object", **found)
        misses = [name for name in fields if name not in value or not self.same(value[name], reference[name])]
        reward = round((len(fields) - len(misses)) / len(fields), 12)
        if misses or set(value) - set(reference):
            extra = sorted(set(value) - set(reference))
            detail = f"wrong or missing: {', '.join(misses)}" if misses else f"not asked for: {', '.join(extra)}"
            return Judgement(Outcome.WRONG, reward, detail=detail[:300], **found)
        return correct(reward, **found)

    def same(self, value: Any, reference: Any) -> bool:
        """Equal as JSON values: true is not 1, "1" is not 1, 1.0 is 1; strings without surrounding white space."""
        if isinstance(value, str) and isinstance(reference, str):
            value, reference = value.strip(), reference.strip()
            return value.casefold() == reference.casefold() if self.casefold else value == reference
        if isinstance(value, bool) or isinstance(reference, bool):
            return value is reference
        if isinstance(value, dict) and isinstance(reference, dict):
            return set(value) == set(reference) and all(self.same(value[key], reference[key]) for key in value)
        if isinstance(value, list) and isinstance(reference, list):
            return len(value) == len(reference) and all(map(self.same, value, reference))
        return (type(value) is type(reference) and value == reference) or is_number(value, reference)


def email_schema(fields: Sequence[str] = ()) -> dict[str, Any]:
    """The e-mail task's schema, or its part for some of the five fields.

    >>> email_schema(["order_id"])["required"]
    ['order_id']
    """
    if unknown := [name for name in fields if name not in EMAIL_SCHEMA["properties"]]:
        raise InputError(
            f"rewards: the e-mail task has no field {unknown[0]!r}; it has {', '.join(EMAIL_SCHEMA['required'])}"
        )
    names = list(fields or EMAIL_SCHEMA["required"])
    return {**EMAIL_SCHEMA, "properties": {name: EMAIL_SCHEMA["properties"][name] for name in names}, "required": names}


class EmailSchema(JsonSchema):
    """The support-email task: exactly the five keys (or those of `fields`), each of its type; rows of another task are
    not applicable."""

    def __init__(self, fields: Sequence[str] = (), gold_column: str = "gold", task: str = EMAIL_TASK):
        super().__init__(email_schema(fields), gold_column, task)


class EmailFields(JsonFields):
    """The support-email task: an equal share (0.2 for all five) for each field that equals gold's."""

    def __init__(
        self, fields: Sequence[str] = (), gold_column: str = "gold", task: str = EMAIL_TASK, casefold: bool = False
    ):
        super().__init__(tuple(email_schema(fields)["required"]), gold_column, task, casefold)


def is_number(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values) and values[0] == values[1]


def gold_object(gold: Any) -> dict[str, Any]:
    """Gold as an object: a mapping, or JSON text. Raises ValueError for anything else, and for an empty object."""
    value = gold
    if isinstance(gold, str):
        value, _ = parse_object(gold)
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"expected a JSON object, got {str(gold)[:80]!r}")
    return dict(value)


def load_schema(schema: Mapping[str, Any] | str) -> dict[str, Any]:
    if isinstance(schema, Mapping):
        return dict(schema)
    path = Path(schema)
    if not path.is_file():
        raise InputError(f"rewards: json_schema: the file {path} does not exist; give a path or the schema itself")
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"rewards: json_schema: {path} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise InputError(f"rewards: json_schema: {path} holds {type(loaded).__name__}, not a schema object")
    return loaded
