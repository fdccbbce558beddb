"""Rollouts, flags and the doctor on real runs: a random two-layer model, the real trainer, real files, seconds each."""

import numpy as np
import pytest

from assay.monitoring.sources import open_run
from assay.monitoring.viewer.query import tokens_of

ROWS = [{"question": f"Say {word}.", "answer": word} for word in ("one", "two", "three", "four", "five", "six")]


def texts(completions):
    return [item if isinstance(item, str) else item[-1]["content"] for item in completions]


def vowels(completions, **kwargs):
    """Paid for vowels; random text has some, so groups differ."""
    return [sum(letter in "aeiouAEIOU" for letter in text) / 4 for text in texts(completions)]


@pytest.fixture
def train(train_tiny):
    """Train the tiny model; keywords go on top. Returns the run directory."""
    usual = {"dataset": ROWS, "rewards": [vowels], "heldout_size": 0, "checkpoint_every": 1000}
    return lambda **keys: train_tiny(**(usual | keys)).directory


@pytest.mark.parametrize("extra", [{}, {"num_iterations": 2}, {"steps_per_generation": 2}])
def test_rollouts_hold_what_the_trainer_saw_of_every_trained_token(train, extra):
    run = open_run(train(token_entropies=True, **extra))
    rows = [row for step in run.rollouts.steps() for row in run.rollouts.read(step)]
    trained = [row for row in rows if row["old_logps"] is not None]
    assert trained
    # All rows of the first window that had a signal were forwarded; with an old pass, all rows of the round.
    assert all(row["old_logps"] is not None for row in rows) or not extra.get("num_iterations")
    for row in trained:
        assert len(row["old_logps"]) == row["num_tokens"]
        # The tiny model samples and trains in float32: what the sampler said and the trainer says is the same.
        assert np.allclose(row["old_logps"], row["sampling_logps"], atol=1e-4)
    entropies = [value for row in trained if row["entropies"] for value in row["entropies"]]
    assert entropies
    assert 0 < min(entropies) <= max(entropies) <= np.log(260) + 1e-4
    assert "entropy" in run.history
    row = trained[0]
    shown = tokens_of(run.rollouts, row["step"], row["group"], row["sample"])
    assert all(value is not None for value in shown["old_logps"])


def test_entropies_are_left_out_unless_asked_for(train):
    run = open_run(train())
    rows = run.rollouts.read(1)
    assert any(row["old_logps"] for row in rows)
    assert all(row["entropies"] is None for row in rows)
    assert "sampling/entropy" in run.history


def test_the_run_card_of_a_real_run(train):
    from assay.monitoring.doctor import diagnose
    from assay.monitoring.report.card import run_card
    from assay.monitoring.report.data import ReportData

    directory = train(heldout_size=1)
    run = open_run(directory)
    card = dict(run_card(ReportData(run, diagnose(run), price=2.0)))
    assert card["training data"].startswith("5 prompts, sha256 ")
    assert card["held-out data"].startswith("1 prompts, sha256 ")
    changed = card["differs from grpo in"]
    assert "rollout.num_generations=4" in changed
    assert "train.learning_rate=0.01" in changed
    assert "weight_decay" not in changed
    assert "machine-hours" in card["cost"]
    assert card["cost"].endswith("at 2 an hour")


def test_equal_data_has_an_equal_hash_in_any_order():
    from assay.api.facts import data_hash
    from assay.records import Prompt

    prompts = [Prompt(f"p{i}", (i,), {"gold": str(i)}, content_key=f"k{i}") for i in range(3)]
    assert data_hash(prompts) == data_hash(prompts[::-1])
    assert data_hash(prompts) != data_hash([*prompts[:2], Prompt("p2", (2,), {"gold": "9"}, content_key="k2")])


def test_an_export_is_compared_with_the_policy_and_the_doctor_reads_it(train, tmp_path):
    """Of a run whose rows were in memory: its rollouts are enough."""
    import shutil

    from assay.cli.export import export
    from assay.monitoring.doctor import diagnose
    from assay.policy.tiny import save_tiny

    directory = train(learning_rate=5e-2, steps=3)
    before = diagnose(open_run(directory))
    assert "assay export" in {item.id: item.needs for item in before.not_checkable}["EV03"]
    export(directory, tmp_path / "merged", merge=True, which="last", as_json=False)
    run = open_run(directory)
    assert run.history.last("export/disagreement") == 0.0
    assert "EV03" in {item.id for item in diagnose(run).clear}
    # A model that is not the trained one is told apart.
    from assay.api.models import disagreement, load_trained
    from assay.api.session import Session
    from assay.config.load import load_recipe

    shutil.rmtree(tmp_path / "merged")
    with Session(load_recipe(directory)) as session:
        load_trained(session, directory / "model" / "last")
        assert disagreement(session, save_tiny(tmp_path / "other", seed=7), directory) > 0.5
