"""The e-mail verifiers on a part of the five fields."""

import json

import pytest

from assay.errors import InputError
from assay.records import Outcome
from assay.rewards import load_reward

GOLD = {"customer_name": "Ann Lee", "order_id": "ORD-12345"}
ROW = {"task": "email_json"}
FIELDS = {"fields": ["customer_name", "order_id"]}


def judge(name, answer):
    verifier = load_reward({"fn": name, "options": FIELDS}).verifier
    return verifier.judge(json.dumps(answer), GOLD, ROW)


def test_a_part_of_the_fields_is_asked_for_and_no_more():
    assert judge("email_schema", GOLD).outcome is Outcome.CORRECT
    assert judge("email_schema", GOLD | {"sentiment": "neutral"}).outcome is Outcome.WRONG
    assert judge("email_schema", GOLD | {"order_id": "12345"}).outcome is Outcome.WRONG
    assert judge("email_fields", GOLD | {"order_id": "ORD-54321"}).reward == 0.5
    assert judge("email_fields", GOLD).reward == 1.0


def test_an_unknown_field_is_refused():
    with pytest.raises(InputError, match="no field 'colour'"):
        load_reward({"fn": "email_schema", "options": {"fields": ["colour"]}})
