"""reasoning-gym: every task by name, its gold paid by its own scorer, nothing executed."""

import json
import os
import subprocess
import sys

import pytest

from assay.errors import InputError
from assay.records import Outcome
from assay.rewards.gym import ReasoningGym, dataset_names, gym_rows, is_safe, pack, row_of, unpack

reasoning_gym = pytest.importorskip("reasoning_gym")


@pytest.fixture(scope="module")
def verifier():
    made = ReasoningGym(workers=1)
    yield made
    made.close()


def test_every_task_pays_for_its_own_gold(verifier):
    names = dataset_names()
    assert len(names) > 100
    unpaid = []
    for name in names:
        entry = reasoning_gym.create_dataset(name, size=1, seed=3)[0]
        row = row_of(name, json.loads(json.dumps(pack(entry))))
        assert unpack(json.loads(row["reasoning_gym"])["entry"]) == entry
        assert row["task"] == name
        assert json.dumps(row)
        judged = verifier.judge(verifier.render_gold(row["gold"], row), row["gold"], row)
        assert judged.outcome is not Outcome.ERROR, (name, judged)
        bare = {"task": name, "entry": entry}
        assert verifier.judge(verifier.render_gold(row["gold"], row), None, bare).outcome is judged.outcome
        if row["gold"] and judged.outcome is not Outcome.CORRECT:
            unpaid.append((name, judged.detail))
    assert unpaid == []


def test_no_partial_credit_for_holding_the_answer(verifier):
    (row,) = gym_rows("basic_arithmetic", 1, seed=1)
    assert verifier.judge(f"<answer>maybe {row['gold']} or 7</answer>", None, row).reward == 0.0
    partial = ReasoningGym(partial=True, workers=1)
    assert 0 < partial.judge(f"<answer>maybe {row['gold']} or 7</answer>", None, row).reward < 1
    partial.close()
    assert verifier.judge(row["gold"], None, row).outcome is Outcome.UNPARSABLE
    assert verifier.judge("<answer>1</answer>", None, {}).outcome is Outcome.ERROR


@pytest.mark.parametrize(
    "task", ["countdown", "n_queens", "spiral_matrix", "polynomial_multiplication", "string_insertion"]
)
def test_answers_are_never_executed(verifier, task, tmp_path):
    target = tmp_path / "touched"
    (row,) = gym_rows(task, 1, seed=2)
    for payload in (
        f"open('{target}', 'w')", f"[open('{target}', 'w')]", f"__import__('os').system('touch {target}')",
        f"(lambda: open('{target}','w'))()", f"[x for x in [open('{target}','w')]]", f"print(open('{target}','w'))",
    ):  # fmt: skip
        judged = verifier.judge(f"<answer>{payload}</answer>", None, row)
        assert judged.reward == 0.0
        assert not is_safe(payload)
    assert not target.exists()


def test_a_power_tower_is_the_answers_fault():
    quick = ReasoningGym(score_s=1.5, workers=1)
    (row,) = gym_rows("countdown", 1, seed=2)
    judged = quick.judge("<answer>9**9**9**9</answer>", None, row)
    assert (judged.outcome, judged.reward) == (Outcome.WRONG, 0.0)
    assert quick.judge(f"<answer>{row['gold']}</answer>", None, row).outcome is Outcome.CORRECT
    quick.close()


def test_unknown_tasks_and_settings_are_refused():
    with pytest.raises(InputError, match="no task 'nothing'"):
        gym_rows("nothing", 1)
    with pytest.raises(InputError, match="refuses"):
        gym_rows("countdown", 1, no_such_setting=3)


@pytest.mark.slow
def test_rows_are_the_same_in_every_process():
    """polynomial_multiplication iterates over a set: without a fixed hash seed each process would get other rows."""
    code = (
        "import json; from assay.rewards.gym import gym_rows; "
        "print(json.dumps(gym_rows('polynomial_multiplication', 3, seed=3)))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
