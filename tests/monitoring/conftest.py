"""Hand-made rollouts: small enough to compute every expected number on paper."""

import numpy as np
import pytest

from assay.records import Completion, Finish, Group, Judgement, Outcome, Prompt, Segment, VersionSpan


def make_completion(
    tokens=4,
    reward=0.0,
    correct=None,
    finish=Finish.STOP,
    outcome=None,
    name="math",
    text="so 42",
    token_ids=None,
    logps=None,
    versions=None,
    tags=None,
):
    ids = np.arange(tokens) if token_ids is None else np.asarray(token_ids)
    mask = np.ones(len(ids), dtype=bool)
    logps = np.full(len(ids), -0.5) if logps is None else np.asarray(logps)
    if outcome is None:
        outcome = Outcome.CORRECT if correct else Outcome.WRONG
    judgement = Judgement(outcome, reward, extracted="42", span=(3, 5))
    return Completion(
        [Segment(ids, mask, logps)],
        finish,
        text,
        {name: judgement},
        reward,
        correct,
        policy_versions=tuple(versions or (VersionSpan(0, 0),)),
        tags=tags or {},
    )


def make_group(completions, key="k", gold="42"):
    prompt = Prompt("6*7?", (1, 2, 3), {"prompt": "6*7?", "answer": gold}, content_key=key)
    return Group(prompt, list(completions))


@pytest.fixture
def completion():
    return make_completion


@pytest.fixture
def group():
    return make_group
