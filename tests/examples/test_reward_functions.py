"""The reward script runs at its smoke size, its full mode offline, and its functions train unchanged."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "reward_functions.py"
ROWS = ROOT / "tests" / "data" / "gsm8k_style.jsonl"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("reward_functions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    from assay.policy.tiny import tiny_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


def run(*arguments):
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_smoke():
    done = run("--smoke")
    assert done.returncode == 0, done.stderr
    assert "all as expected" in done.stdout


def test_smoke_can_fail(example, monkeypatch):
    monkeypatch.setitem(example.MARKED, "I counted eggs and I think it is 72", 1.0)
    with pytest.raises(AssertionError, match="I counted eggs"):
        example.smoke()
    monkeypatch.undo()
    monkeypatch.setattr(example, "HONEST", [*example.HONEST, example.CHEATS[0]])
    with pytest.raises(AssertionError, match="wrongly flagged"):
        example.smoke()


def test_full_pays_every_gold(tokenizer_folder):
    done = run("--full", "--model", tokenizer_folder, "--rows", ROWS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 paid" in done.stdout
    assert "answers that are none: 0 of" in done.stdout


def test_full_finds_a_broken_gold(tokenizer_folder, tmp_path):
    broken = tmp_path / "rows.jsonl"
    broken.write_text(ROWS.read_text().replace("#### 22", "so 22"))
    done = run("--full", "--model", tokenizer_folder, "--rows", broken)
    assert done.returncode == 1
    assert "5 of 6 paid" in done.stdout
    assert "gold unreadable" in done.stdout


def test_functions_run_in_the_scorer_by_their_file_names():
    import numpy as np

    from assay.records import Completion, Finish, Group, Outcome, Prompt, Segment
    from assay.rewards import Scorer

    def group(text, **row):
        segment = Segment(np.arange(3), np.ones(3, bool), np.zeros(3))
        return Group(Prompt("question", (1,), row), [Completion([segment], Finish.STOP, text)])

    answer = "It is 70+2=<<70+2=72>>72.\n#### 72"
    groups = [
        group("<think>70+2</think>\\boxed{72}", task="gsm8k", answer=answer, gold=None),
        group("an essay", task="essay", answer=answer, gold=None),
    ]
    with Scorer([f"{SCRIPT}:correctness_reward", f"{SCRIPT}:format_reward"]) as scorer:
        scorer.score(groups)
    first, second = (group.completions[0] for group in groups)
    assert first.reward == pytest.approx(1.1)
    assert second.reward is None
    assert {judgement.outcome for judgement in second.judgements.values()} == {Outcome.NOT_APPLICABLE}
