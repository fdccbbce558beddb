"""Customer e-mail to JSON: the running task of the quick start, generated, with phrases and names held out.

A message is put together from a layout, a greeting, a body (which decides the issue type), a request (which decides
whether money back is asked for), a mood sentence (which decides the sentiment), a sign-off and a name. Training and
held-out messages share no phrase and no name, so held-out accuracy measures extraction and not recall.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.prompts.tasks.email_parts import HELDOUT, ISSUE_TYPES, SENTIMENTS, TRAIN, Parts
from assay.rewards.json_schema import EMAIL_SCHEMA
from assay.rewards.json_schema import email_schema as rewards_schema

FIELDS = tuple(EMAIL_SCHEMA["properties"])
CHOICES = {
    "issue_type": f" ({', '.join(ISSUE_TYPES)})",
    "refund_requested": " (true, false)",
    "sentiment": f" ({', '.join(SENTIMENTS)})",
}
REFUND_SHARE = {"refund": 0.8, "shipping": 0.5, "defect": 0.5, "account": 0.0, "other": 0.0}
EXAMPLE = (
    "Hello, I'm Sara Lind. The radio from ORD-52907 is broken. I want a refund. I am not happy at all.",
    {
        "customer_name": "Sara Lind",
        "order_id": "ORD-52907",
        "issue_type": "defect",
        "refund_requested": True,
        "sentiment": "negative",
    },
)


def email_schema(fields: Sequence[str] = FIELDS) -> dict[str, Any]:
    """JSON Schema of the answer: exactly these fields, order_id as ORD- and five digits.

    >>> email_schema(["order_id"])["required"]
    ['order_id']
    """
    return rewards_schema(checked_fields(fields))


def checked_fields(fields: Sequence[str]) -> list[str]:
    unknown = [name for name in fields if name not in FIELDS]
    if unknown or not fields or len(set(fields)) != len(fields):
        raise InputError(
            f"data.options.fields of email_json is {list(fields)}; choose distinct names from {', '.join(FIELDS)}"
        )
    return list(fields)


def email_rows(
    size: int, seed: int, heldout: bool, fields: Sequence[str] = FIELDS, shots: int = 1
) -> Iterator[dict[str, Any]]:
    """`size` rows with columns prompt (messages), email, gold (a dict), schema and task.

    Row i depends only on (seed, heldout, i), so a larger pool begins with the smaller one. `fields` may be any subset
    of the five; gold, schema, instruction and example follow it. `shots` is 0 or 1 worked example.
    """
    fields = checked_fields(fields)
    if shots not in (0, 1):
        raise InputError(f"data.options.shots of email_json is {shots}; it has one worked example, so 0 or 1")
    schema = email_schema(fields)
    for index in range(size):
        rng = np.random.default_rng([seed, int(heldout), index])
        email, facts = compose(HELDOUT if heldout else TRAIN, rng)
        gold = {name: facts[name] for name in fields}
        yield {
            "prompt": dialogue(email, fields, shots),
            "email": email,
            "gold": gold,
            "schema": schema,
            "task": "email_json",
        }


def dialogue(email: str, fields: Sequence[str], shots: int) -> list[dict[str, str]]:
    """The messages that the model reads, short because every step pays for each token."""
    instruction = "Reply with JSON: " + ", ".join(name + CHOICES.get(name, "") for name in fields) + "."
    messages = [{"role": "system", "content": instruction}]
    if shots:
        answer = json.dumps({name: EXAMPLE[1][name] for name in fields})
        messages += [{"role": "user", "content": EXAMPLE[0]}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": email}]


def compose(parts: Parts, rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """One message and the facts that a careful reader finds in it."""

    def pick(options: Sequence[str]) -> str:
        return str(options[int(rng.integers(len(options)))])

    issue, sentiment = pick(ISSUE_TYPES), pick(SENTIMENTS)
    wants_refund = bool(rng.random() < REFUND_SHARE[issue])
    name = f"{pick(parts.first_names)} {pick(parts.last_names)}"
    order = f"ORD-{rng.integers(100_000):05d}"
    bodies = parts.settled_refunds if issue == "refund" and not wants_refund else parts.bodies[issue]
    text = pick(parts.layouts).format(
        greeting=pick(parts.greetings),
        body=pick(bodies).format(order=order),
        request=pick(parts.refund_requests if wants_refund else parts.requests[issue]),
        mood=pick(parts.moods[sentiment]),
        sign_off=pick(parts.sign_offs),
        name=name,
    )
    lines = (" ".join(line.split()) for line in text.splitlines())
    facts = {
        "customer_name": name,
        "order_id": order,
        "issue_type": issue,
        "refund_requested": wants_refund,
        "sentiment": sentiment,
    }
    return "\n".join(line for line in lines if line), facts
