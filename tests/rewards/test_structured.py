"""JSON verifiers: the lecture's email task, and any schema."""

import json
import random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.records import Outcome
from assay.rewards.json_schema import EmailFields, EmailSchema, JsonFields, JsonSchema

GOLD = {
    "customer_name": "Ana Silva", "order_id": "ORD-12345", "issue_type": "refund", "refund_requested": True,
    "sentiment": "negative",
}  # fmt: skip
ROW = {"task": "email_json"}
SCHEMA, FIELDS = EmailSchema(), EmailFields()


def test_schema_reward_of_the_running_task():
    assert SCHEMA.judge(json.dumps(GOLD), None, ROW).reward == 1.0
    assert SCHEMA.judge(f"```json\n{json.dumps(GOLD, indent=2)}\n```", None, ROW).reward == 1.0
    assert SCHEMA.judge(f"  \n{json.dumps(GOLD)}\n", None, ROW).reward == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"order_id": "ORD-1234"}, {"order_id": "ORD-123456"}, {"order_id": "ord-12345"}, {"order_id": "xORD-12345"},
        {"order_id": "ORD-12345\n"}, {"order_id": 12345}, {"issue_type": "Refund"}, {"issue_type": "billing"},
        {"sentiment": "angry"}, {"refund_requested": "true"}, {"refund_requested": 1}, {"customer_name": None},
        {"customer_name": 5}, {"extra": "key"},
    ],
)  # fmt: skip
def test_what_the_schema_refuses(change):
    judged = SCHEMA.judge(json.dumps(GOLD | change), None, ROW)
    assert judged.outcome is Outcome.WRONG
    assert judged.reward == 0.0


@pytest.mark.parametrize("missing", list(GOLD))
def test_every_key_is_required(missing):
    assert SCHEMA.judge(json.dumps({k: v for k, v in GOLD.items() if k != missing}), None, ROW).reward == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "", "not json", "null", "[]", f"Here you go: {json.dumps(GOLD)}", f"{json.dumps(GOLD)} {json.dumps(GOLD)}",
        f"```json\n{json.dumps(GOLD)}\n```\n```json\n{json.dumps(GOLD)}\n```", f"```python\n{json.dumps(GOLD)}\n```",
        json.dumps(GOLD)[:-1], json.dumps(GOLD)[:-1] + ', "order_id": "ORD-99999"}', '{"a": NaN}',
        "{" * 10_000, "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_answer(text):
    for verifier, gold in ((SCHEMA, None), (FIELDS, GOLD)):
        judged = verifier.judge(text, gold, ROW)
        assert judged.outcome in (Outcome.UNPARSABLE, Outcome.WRONG)
        assert judged.reward == 0.0


def test_field_accuracy_goes_in_steps_of_a_fifth():
    wrong = {
        "customer_name": "Bo", "order_id": "ORD-00000", "issue_type": "other", "refund_requested": False,
        "sentiment": "neutral",
    }  # fmt: skip
    for count in range(6):
        answer = GOLD | dict(list(wrong.items())[:count])
        judged = FIELDS.judge(json.dumps(answer), GOLD, ROW)
        assert judged.reward == pytest.approx(1 - count / 5)
        assert judged.outcome is (Outcome.WRONG if count else Outcome.CORRECT)
    assert FIELDS.judge(json.dumps(GOLD | {"more": 1}), GOLD, ROW).outcome is Outcome.WRONG
    assert FIELDS.judge(json.dumps(GOLD), json.dumps(GOLD), ROW).reward == 1.0


def test_rows_of_another_task_are_not_applicable():
    for verifier in (SCHEMA, FIELDS):
        judged = verifier.judge(json.dumps(GOLD), GOLD, {"task": "gsm8k"})
        assert (judged.outcome, judged.reward) == (Outcome.NOT_APPLICABLE, None)
    assert SCHEMA(completions=["x", json.dumps(GOLD)], task=["gsm8k", "email_json"]) == [None, 1.0]


def test_json_types_are_told_apart():
    verifier = JsonFields()
    for gold, answer, right in (
        ({"a": True}, {"a": 1}, False), ({"a": 1}, {"a": True}, False), ({"a": 1}, {"a": 1.0}, True),
        ({"a": "1"}, {"a": 1}, False), ({"a": None}, {"a": None}, True), ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": {"b": [True]}}, {"a": {"b": [1]}}, False), ({"a": "x"}, {"a": " x "}, True),
        ({"a": "x"}, {"a": "X"}, False),
    ):  # fmt: skip
        assert (verifier.judge(json.dumps(answer), gold, {}).outcome is Outcome.CORRECT) == right, (gold, answer)
    assert verifier.judge("{}", "not json", {}).outcome is Outcome.ERROR
    assert verifier.judge("{}", {}, {}).detail.startswith("gold unreadable")


def test_reasoning_before_the_answer_is_set_aside():
    judged = FIELDS.judge(f"<think>{{}} hm</think>\n{json.dumps(GOLD)}", GOLD, ROW)
    assert judged.outcome is Outcome.CORRECT
    text = f"<think>x</think>\n{json.dumps(GOLD)}"
    start, end = FIELDS.judge(text, GOLD, ROW).span
    assert text[start:end] == json.dumps(GOLD)


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_any_schema_agrees_with_jsonschema(value, source: random.Random):
    schema = source.choice([
        {"type": "object", "minProperties": 1}, {"type": ["array", "string"], "maxLength": 3}, {"enum": [None, 1, "a"]},
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "boolean"}]},
    ])  # fmt: skip
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert JsonSchema(schema).judge(json.dumps(value), None, {}).reward == float(expected)


def test_a_broken_schema_is_the_users_error(tmp_path):
    with pytest.raises(InputError, match="schema itself is invalid"):
        JsonSchema({"type": "objct"})
    with pytest.raises(InputError, match="does not exist"):
        JsonSchema("nowhere.json")
    (tmp_path / "s.json").write_text('{"type": "array"}')
    assert JsonSchema(str(tmp_path / "s.json")).judge("[1]", None, {}).reward == 1.0
