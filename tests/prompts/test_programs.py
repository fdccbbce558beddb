"""The built-in programming tasks: references pass their own hidden tests in the sandbox, and nearly right ones fail."""

import itertools
import json

import pytest

from assay.prompts.tasks import task_rows
from assay.prompts.tasks.programs import TEMPLATES


@pytest.fixture(scope="module")
def verifier():
    from assay.rewards import load_reward

    return load_reward("code").verifier


def test_rows_differ_and_no_prompt_is_in_both_parts():
    train, heldout = task_rows("programs", {}, 200, 50, seed=3)
    prompts = [row["prompt"] for row in train + heldout]
    assert (len(train), len(heldout), len(set(prompts))) == (200, 50, 250)
    assert task_rows("programs", {}, 200, 50, seed=3)[0] == train
    assert task_rows("programs", {}, 200, 50, seed=4)[0] != train


def test_references_pass_and_other_tasks_fail(verifier):
    rows, _ = task_rows("programs", {}, 8 * len(TEMPLATES), 0, seed=0)
    for row, other in itertools.pairwise(rows[:25]):
        tests = json.loads(row["tests"])
        assert verifier.judge(verifier.render_gold(tests, row), tests, row).reward == 1.0, row["prompt"]
        assert verifier.judge(verifier.render_gold(tests, other), tests, row).reward == 0.0, row["prompt"]
