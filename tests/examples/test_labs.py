"""The labs' toy worlds are what their pages say, and the stages of R1 run at tiny size."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def toy():
    spec = importlib.util.spec_from_file_location("toy", ROOT / "examples" / "labs" / "toy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdicts(name, rows, column="answer"):
    from assay.records import Outcome
    from assay.rewards import load_reward

    verifier = load_reward(name).verifier
    return np.array(
        [verifier.judge(row[column], verifier.gold_of(row), row).outcome is Outcome.CORRECT for row in rows]
    )


def test_digits_err_as_often_as_they_should(toy):
    made = toy.largest(size=3000, heldout=100)
    assert not {row["prompt"] for row in made["train"]} & {row["prompt"] for row in made["heldout"]}
    assert all(row["gold"] == max(row["prompt"][:-1]) for row in made["train"])
    right = verdicts("gsm8k", made["train"])
    odd = np.array([int(row["prompt"][0]) % 2 for row in made["train"]], bool)
    assert right[~odd].mean() == pytest.approx(0.7, abs=0.04)
    assert right[odd].mean() == pytest.approx(0.2, abs=0.04)
    said = np.array([row["answer"].count("hm") for row in made["train"]])
    assert said.mean() == pytest.approx(4, abs=0.4)
    assert abs(np.corrcoef(said, right)[0, 1]) < 0.06  # length says nothing about being right


def test_working_is_right(toy):
    rows = toy.largest(size=200, heldout=0, worked=1.0)["train"]
    assert verdicts("gsm8k", rows).all()
    assert all(row["answer"].startswith(row["prompt"][0] + ",") for row in rows)


def test_word_problems_hold_out_a_kind_of_story(toy):
    made = toy.words(size=300, heldout=50)
    assert all("on Monday" in row["prompt"] for row in made["heldout"])
    assert not any("on Monday" in row["prompt"] for row in made["train"])
    left = next(row for row in made["train"] if "gives away" in row["prompt"])
    numbers = [int(word) for word in left["prompt"].replace(".", "").split() if word.isdigit()]
    assert left["gold"] == str(numbers[0] - numbers[1])


def test_programs_have_the_planted_hack_and_honest_references(toy):
    rows = toy.programs(size=2000, heldout=50, noise=0.4, hacks=0.04)["train"]
    hacks = np.array([row["answer"] == toy.HACK for row in rows])
    assert hacks.mean() == pytest.approx(0.04, abs=0.015)
    assert verdicts("code", rows[:25], "reference_solution").all()
    assert not verdicts("code", [{**row, "answer": toy.HACK} for row in rows[:3]]).any()


@pytest.mark.slow
@pytest.mark.timeout(600)  # seven processes, each of which imports torch
def test_all_stages_of_r1(tiny_folder, tmp_path):
    """Base, R1-Zero, cold start, first run, rejection sampling, second run."""
    base = tmp_path / "base"
    words = [sys.executable, "-m", "assay.cli.main", "sft", "recipes/labs/toy-digits.yaml", "data.options.size=64",
             "sft.epochs=40", "sft.learning_rate=0.01", f"model.path={tiny_folder('llama')}",
             "--output", base]  # fmt: skip
    subprocess.run([str(word) for word in words], cwd=ROOT, check=True, capture_output=True)
    command = [sys.executable, "examples/labs/r1.py", "--seeds", "1", "--steps", "4", "--output", tmp_path / "r1",
               f"model.path={base / 'model'}", "eval.prompts=4", "rollout.max_completion_length=40"]  # fmt: skip
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=560, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line["run"] for line in json.loads(done.stdout)] == ["zero-seed0", "r1-reason-seed0", "r1-final-seed0"]
    assert json.loads((tmp_path / "r1" / "rejection-seed0" / "summary.json").read_text())["rows"] > 0
