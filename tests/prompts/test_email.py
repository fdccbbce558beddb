"""The e-mail task: what it says is what gold says, and nothing of the held-out half is seen in training."""

import dataclasses
import json
import re

import numpy as np
import pytest

from assay.errors import InputError
from assay.prompts import email_rows, email_schema
from assay.prompts.tasks.email import FIELDS, compose
from assay.prompts.tasks.email_parts import HELDOUT, ISSUE_TYPES, SENTIMENTS, TRAIN
from assay.rewards.json_schema import EMAIL_SCHEMA, EmailFields, EmailSchema


def phrases(parts):
    """Every phrase of a half, by table, without its placeholders' values."""
    for entry in dataclasses.fields(parts):
        table = getattr(parts, entry.name)
        for value in table.values() if isinstance(table, dict) else [table]:
            yield from ((entry.name, phrase) for phrase in value if phrase)


def test_no_phrase_or_name_is_in_both_halves():
    train, held = dict.fromkeys(phrases(TRAIN)), dict.fromkeys(phrases(HELDOUT))
    assert not set(train) & set(held)
    names = set(TRAIN.first_names) | set(TRAIN.last_names)
    assert not names & (set(HELDOUT.first_names) | set(HELDOUT.last_names))
    bodies = [
        text for table, text in train if table not in ("layouts", "first_names", "last_names", "greetings", "sign_offs")
    ]
    for row in email_rows(300, seed=5, heldout=True):
        for text in bodies:
            core = max(text.split("{order}"), key=len).strip()
            assert len(core) < 12 or core not in row["email"], (core, row["email"])


def test_no_phrase_stands_in_two_classes():
    """A phrase that means two issue types, two moods, or both a request and none would make gold a coin toss."""
    for parts in (TRAIN, HELDOUT):
        bodies = [body for kind in ISSUE_TYPES for body in parts.bodies[kind]] + list(parts.settled_refunds)
        assert len(set(bodies)) == len(bodies)
        moods = [mood for kind in SENTIMENTS for mood in parts.moods[kind]]
        assert len(set(moods)) == len(moods)
        assert not set(parts.refund_requests) & {text for texts in parts.requests.values() for text in texts}
        assert all(body.count("{order}") == 1 for body in bodies)
        assert set(parts.bodies) == set(parts.requests) == set(ISSUE_TYPES)


def test_labels_are_those_of_the_schema():
    properties = EMAIL_SCHEMA["properties"]
    assert list(ISSUE_TYPES) == properties["issue_type"]["enum"]
    assert list(SENTIMENTS) == properties["sentiment"]["enum"]
    assert set(FIELDS) == {"customer_name", "order_id", "issue_type", "refund_requested", "sentiment"}


@pytest.mark.parametrize("heldout", [False, True])
def test_gold_is_in_the_message_and_earns_full_reward(heldout):
    parts = HELDOUT if heldout else TRAIN
    verifiers = (EmailSchema(), EmailFields())
    for row in email_rows(400, seed=1, heldout=heldout):
        gold, email = row["gold"], row["email"]
        assert row["prompt"][-1] == {"role": "user", "content": email}
        assert gold["customer_name"] in email
        assert re.findall(r"ORD-\d{5}\b", email) == [gold["order_id"]]
        assert gold["refund_requested"] == any(text in email for text in parts.refund_requests)
        assert gold["sentiment"] == next(
            (mood for mood in ("positive", "negative") if any(text in email for text in parts.moods[mood])), "neutral"
        )
        text = json.dumps(gold)
        for verifier in verifiers:
            assert verifier.judge(text, gold, row).reward == 1.0


def test_every_value_and_many_messages_occur():
    rows = list(email_rows(600, seed=2, heldout=False))
    assert {row["gold"]["issue_type"] for row in rows} == set(ISSUE_TYPES)
    assert {row["gold"]["sentiment"] for row in rows} == set(SENTIMENTS)
    assert {row["gold"]["refund_requested"] for row in rows if row["gold"]["issue_type"] == "refund"} == {True, False}
    assert len({row["email"] for row in rows}) == 600
    skeletons = {re.sub(r"ORD-\d+", "", row["email"].replace(row["gold"]["customer_name"], "")) for row in rows}
    assert len(skeletons) > 550


def test_rows_depend_on_seed_split_and_index_only():
    few, many = list(email_rows(5, 3, False)), list(email_rows(9, 3, False))
    assert few == many[:5]
    assert few != list(email_rows(5, 4, False))


def test_fields_follow_the_choice():
    row = next(email_rows(1, 0, False, fields=["order_id", "sentiment"]))
    assert list(row["gold"]) == ["order_id", "sentiment"]
    assert row["schema"] == email_schema(["order_id", "sentiment"])
    assert list(json.loads(row["prompt"][2]["content"])) == ["order_id", "sentiment"]
    assert "customer_name" not in row["prompt"][0]["content"]
    assert EmailFields(task="email_json").fields == FIELDS


@pytest.mark.parametrize("fields", [[], ["order"], ["order_id", "order_id"]])
def test_wrong_fields_are_named(fields):
    with pytest.raises(InputError, match="fields of email_json"):
        next(email_rows(1, 0, False, fields=fields))


def test_example_of_the_prompt_is_valid_and_not_a_training_message():
    row = next(email_rows(1, 0, False))
    example = json.loads(row["prompt"][2]["content"])
    assert EmailSchema().judge(json.dumps(example), None, row).reward == 1.0
    first, last = example["customer_name"].split()
    for parts in (TRAIN, HELDOUT):
        assert first not in parts.first_names
        assert last not in parts.last_names


def test_compose_leaves_no_empty_or_double_spaced_line():
    for seed in range(300):
        text, _ = compose(TRAIN, np.random.default_rng(seed))
        assert "  " not in text
        assert all(line.strip() == line and line for line in text.split("\n"))
