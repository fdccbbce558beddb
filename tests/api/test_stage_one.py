"""A*-PO in a run: optimal values from the starting model's answers, then regression on what is above them."""

import json
import math

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from assay.errors import InputError, RunError

ROWS = [{"question": f"Say {word} {n} times."} for n in range(12) for word in ("yes", "never")]


POWER = {"answers": 10**9}


def parity(prompts, completion_ids, **kwargs):
    """Odd sums of token ids are right; no answer to a `never` is. Breaks after so many answers."""
    POWER["answers"] -= len(prompts)
    if POWER["answers"] < 0:
        raise KeyError("the power went")
    pairs = zip(prompts, completion_ids, strict=True)
    return [0.0 if "never" in prompt[-1]["content"] else float(sum(ids) % 2) for prompt, ids in pairs]


@pytest.fixture
def run(train_tiny):
    settings = {"dataset": ROWS, "rewards": [parity], "preset": "a_star_po", "num_generations": 1, "steps": 3,
                "prompts_per_step": 4, "heldout_size": 0, "stage1_samples": 4, "learning_rate": 1e-3,
                "checkpoint_every": 1, "keep_checkpoints": 9}  # fmt: skip
    return lambda **keys: train_tiny(**(settings | keys))


def stored(result):
    lines = (result.directory / "optimal_values.jsonl").read_text().splitlines()
    return {line["prompt"]: line["rewards"] for line in map(json.loads, lines)}


def signed(completion_ids, trainer_state, **kwargs):
    """1 or -1, by parity; wrong answers are punished. Reads the state as TRL's functions may."""
    assert 0 <= trainer_state.global_step < trainer_state.max_steps == 3
    return [1.0 if sum(ids) % 2 else -1.0 for ids in completion_ids]


def test_advantages_are_what_is_above_the_optimal_value(run):
    result = run()
    rewards = stored(result)
    assert len(rewards) == len(ROWS)
    assert all(len(found) == 4 for found in rewards.values())
    rows = [
        row for path in sorted((result.directory / "rollouts").iterdir()) for row in pq.read_table(path).to_pylist()
    ]
    assert len(rows) == 3 * 4
    for row in rows:
        assert "never" not in row["prompt"], "prompts that were never solved are left out"
        found = rewards[row["prompt_key"]]
        best = 0.5 * math.log(sum(math.exp(reward / 0.5) for reward in found) / 4)
        assert row["advantage"] == pytest.approx(row["reward"] - best, abs=1e-6)
    assert any(line.get("grad_norm", 0) > 0 for line in result.metrics())
    first = next(line for line in result.metrics() if line["step"] == 1)
    assert "time/stage_one" in first
    steps = sum(line["step_time"] for line in result.metrics() if "grad_norm" in line)
    assert result.summary["train_seconds"] == pytest.approx(first["time/stage_one"] + steps, abs=0.3)


def test_punished_answers_solve_nothing(run):
    """One answer to each prompt: half of them are wrong and worth -1, which is neither nothing nor a solution."""
    result = run(rewards=[signed], stage1_samples=1)
    found = stored(result)
    assert {reward for rewards in found.values() for reward in rewards} == {1.0, -1.0}
    tables = [pq.read_table(path) for path in sorted((result.directory / "rollouts").iterdir())]
    trained = {row["prompt_key"] for table in tables for row in table.to_pylist()}
    assert {reward for key in trained for reward in found[key]} == {1.0}


def test_single_answers_are_not_called_uniform(run):
    result = run(steps=8)
    lines = [line for line in result.metrics() if "grad_norm" in line]
    assert all("accuracy" in line for line in lines)
    assert not any(line.keys() & {"frac_reward_zero_std", "groups/frac_mixed"} for line in lines)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"reward_weights": {"parity": {"start": 1.0, "end": 0.5, "to_step": 2}}}, "rewards with the step"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "normalize_then_sum ignores it"),
        ({"dynamic_sampling": True}, "every group would be dropped"),
    ],
    ids=str,
)
def test_what_cannot_go_together_is_refused(run, keys, reason):
    with pytest.raises(InputError, match=reason):
        run(**keys)


def test_a_stage_that_was_cut_short_goes_on_and_changes_nothing(run, monkeypatch):
    whole = run(name="whole")
    monkeypatch.setattr("assay.api.stage_one.CHUNK", 5)
    monkeypatch.setitem(POWER, "answers", 48)
    with pytest.raises(InputError, match="the power went"):
        run(name="cut")
    file = whole.directory.with_name("cut") / "optimal_values.jsonl"
    assert 0 < len(file.read_text().splitlines()) < len(ROWS)
    with open(file, "a") as half:
        half.write('{"prompt": "half a li')
    monkeypatch.setitem(POWER, "answers", 10**9)
    cut = run(name="cut")
    assert stored(cut) == stored(whole)
    one, other = (load_file(x.directory / "checkpoints" / "step-3" / "weights.safetensors") for x in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_values_are_never_taken_from_a_model_that_has_learned(run):
    file = run().directory / "optimal_values.jsonl"
    kept = file.read_text()
    file.write_text(kept[: len(kept) // 2])
    with pytest.raises(RunError, match=r"lacks 1\d of 24 training prompts"):
        run(steps=4)
    file.write_text(kept)
    assert run(steps=4).summary["steps"] == 4


def test_nothing_reachable_is_one_line(run):
    with pytest.raises(InputError, match="0 of 12 prompts were solved in 4 tries; take easier data"):
        run(dataset=[row for row in ROWS if "never" in row["question"]])
