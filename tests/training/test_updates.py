"""What an update must not depend on, and what it must refuse."""

import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import assay
from assay.errors import InputError, RunError
from assay.objectives import Objective
from assay.policy.recording import Recording
from assay.rollouts import TransformersEngine
from assay.training.options import TrainOptions
from assay.training.schedule import learning_rate

ROWS = [{"question": f"Say {'x' * n}.", "answer": "x"} for n in range(1, 9)]


def letters(completions, **kwargs):
    texts = [completion[-1]["content"] for completion in completions]
    return [len({letter for letter in text if letter.isalpha()}) / 4 for text in texts]


def every_other(completions, **kwargs):
    """A signal whatever the text is."""
    return [float(index % 2) for index in range(len(completions))]


def takes(monkeypatch):
    """Names of the layers whose output was taken from a recording, as they come."""
    taken = []
    original = Recording.take
    monkeypatch.setattr(Recording, "take", lambda self, name, index: taken.append(name) or original(self, name, index))
    return taken


@pytest.fixture
def weights(tiny_folder, tmp_path):
    """The trained parameters after two updates; keywords go on top."""

    def train(name, **keys):
        settings = {
            "model": str(tiny_folder("llama")), "dataset": ROWS, "rewards": [letters], "preset": "dapo", "name": name,
            "output_dir": str(tmp_path), "num_generations": 4, "max_completion_length": 10, "prompts_per_step": 4,
            "steps": 2, "learning_rate": 1e-2, "dtype": "float32", "lora_rank": 2, "console": "quiet",
            "heldout_size": 0,
        }  # fmt: skip
        result = assay.train(**(settings | keys))
        last = result.summary["steps"]
        return load_file(result.directory / "checkpoints" / f"step-{last}" / "weights.safetensors"), result

    return train


CUTS = (
    {"token_budget": 60},
    {"token_budget": 60, "prefix_sharing": False},
    {"gradient_checkpointing": True},
    {"token_budget": 1},
)


@pytest.mark.parametrize("preset", ["dapo", "scalerl", "gspo"])
def test_the_cut_does_not_change_the_weights(weights, preset):
    one, result = weights("one", preset=preset, token_budget=100_000, dynamic_sampling=False, steps_per_generation=1)
    assert any(line.get("grad_norm", 0) > 0 for line in result.metrics())
    for number, keys in enumerate(CUTS):
        cut, _ = weights(f"cut-{number}", preset=preset, dynamic_sampling=False, steps_per_generation=1, **keys)
        for name, tensor in one.items():
            off = float((cut[name] - tensor).abs().max())
            assert off <= 2e-6, f"{name} is off by {off:.2g} with {keys}"


@pytest.mark.parametrize("keys", [{}, {"preset": "grpo", "beta": 0.1}, {"preset": "reinforce_pp"}], ids=str)
def test_reusing_what_the_sampler_computed_does_not_change_the_weights(weights, monkeypatch, keys):
    taken = takes(monkeypatch)
    settings = {"dynamic_sampling": False, "steps_per_generation": 1, **keys}
    plain, _ = weights("plain", keep_outputs_gib=0.0, **settings)
    assert not taken
    reused, result = weights("reused", **settings)
    # Two layers of seven products, in the check at start and in each of the two updates.
    assert len(taken) >= 3 * 14
    assert any(line.get("grad_norm", 0) > 0 for line in result.metrics())
    for name, tensor in plain.items():
        torch.testing.assert_close(reused[name], tensor, rtol=0, atol=2e-6)


def test_nothing_is_reused_where_a_round_has_several_updates(weights, monkeypatch):
    taken = takes(monkeypatch)
    weights("twice", num_iterations=2, dynamic_sampling=False, steps_per_generation=1)
    assert not taken


def sparse(completions, log_extra, **kwargs):
    """Right in one answer of five, whatever it says; leaves numpy values behind."""
    texts = [completion[-1]["content"] for completion in completions]
    log_extra("letters", np.array([len(text) for text in texts]))
    return [float(zlib.crc32(text.encode()) % 5 == 0) for text in texts]


def test_resume_is_exact_where_groups_wait_and_outputs_are_reused(tiny_folder, tmp_path, monkeypatch):
    """Dynamic sampling leaves groups for the next round: written by earlier weights, they must be computed again, in
    the same micro-batches whether or not the run was interrupted."""
    taken = takes(monkeypatch)

    def train(folder, steps):
        return assay.train(
            model=str(tiny_folder("llama")), dataset=ROWS * 3, rewards=[sparse], preset="dapo", name="r", steps=steps,
            output_dir=str(tmp_path / folder), num_generations=2, max_completion_length=8, prompts_per_step=4,
            learning_rate=1e-2, dtype="float32", lora_rank=2, console="quiet", heldout_size=0, checkpoint_every=1,
            keep_checkpoints=9,
        )  # fmt: skip

    whole = train("whole", 6)
    lines = {line["step"]: line for line in whole.metrics() if line["step"]}
    waited = [step for step, line in lines.items() if line["refill/from_surplus"]]
    assert waited, "otherwise this test is of nothing"
    cut = waited[-1] - 1
    train("cut", cut)
    taken.clear()
    train("cut", 6)
    assert len(taken) >= (1 + 6 - cut) * 14, "groups that wait do not keep fresh ones from being reused"
    for step in range(cut, 7):
        one, other = (
            load_file(tmp_path / folder / "r" / "checkpoints" / f"step-{step}" / "weights.safetensors")
            for folder in ("whole", "cut")
        )
        assert all(torch.equal(one[name], other[name]) for name in one), f"weights differ at step {step}"


def test_the_gap_to_the_sampler_is_measured_on_rows_that_were_computed_afresh(weights, monkeypatch):
    """Four groups a step, all of them reused: one row a step is scored without. Rows that are not reused all count."""
    rows = []
    original = Objective.__call__

    def call(self, outputs, tensors, denominators):
        loss, metrics = original(self, outputs, tensors, denominators)
        rows.append((len(tensors.mask), float(metrics.means["sampling/sampling_logp_difference/mean"][1])))
        return loss, metrics

    monkeypatch.setattr(Objective, "__call__", call)
    settings = {"dynamic_sampling": False, "steps_per_generation": 1, "rewards": [every_other], "steps": 1}
    _, result = weights("probe", mask_truncated_completions=False, **settings)
    assert [count for count, _ in rows] == [16, 0, 1]
    table = pq.read_table(result.directory / "rollouts" / "step-000001.parquet").to_pylist()
    measured = [row for row in table if row["old_logps"]]
    assert len(measured) == 1
    gaps = np.abs(np.array(measured[0]["old_logps"]) - np.array(measured[0]["sampling_logps"]))
    line = result.metrics()[-1]
    assert len(gaps) == rows[2][1]
    assert line["sampling/sampling_logp_difference/mean"] == pytest.approx(gaps.mean(), abs=1e-9)
    assert line["sampling/sampling_logp_difference/max"] == pytest.approx(gaps.max(), abs=1e-9)
    rows.clear()
    _, result = weights("plain", keep_outputs_gib=0.0, **settings)
    assert [count for count, _ in rows] == [16]
    table = pq.read_table(result.directory / "rollouts" / "step-000001.parquet").to_pylist()
    assert all(row["old_logps"] for row in table)


def test_a_sampler_with_other_weights_is_seen_though_its_outputs_are_reused(weights, monkeypatch):
    def gaps():
        _, result = weights(f"run-{len(seen)}", dynamic_sampling=False, steps_per_generation=1, rewards=[every_other])
        return [line["sampling/sampling_logp_difference/mean"] for line in result.metrics() if line["step"]]

    seen = []
    seen.append(gaps())
    original = TransformersEngine.push

    def push(self, named, version):
        wrong = ((name, tensor * 1.5 if version and "v_proj" in name else tensor) for name, tensor in named)
        original(self, wrong, version)

    monkeypatch.setattr(TransformersEngine, "push", push)
    seen.append(gaps())
    assert max(seen[0]) < 1e-4
    assert seen[1][0] < 1e-4
    assert seen[1][1] > 1e-2


def test_a_critic_learns_with_the_policy(weights):
    trained, _ = weights("ppo", preset="ppo", num_generations=2, num_iterations=1)
    assert trained["value_head.weight"].abs().max() > 0


@pytest.mark.parametrize(
    ("step", "reason", "keys"),
    [
        # The weights grow to 1e30 in the first step, and the second overflows.
        (2, "is not finite", {"weight_decay": 1e30}),
        (1, "left weights that are not finite", {"weight_decay": 1e42}),
    ],
)
def test_what_is_not_finite_ends_the_run_with_the_batch_in_a_file(weights, tmp_path, step, reason, keys):
    with pytest.raises(RunError, match=rf"step {step}: .*{reason}.*nan-step-{step}-rank-0\.pt"):
        weights("nan", rewards=[every_other], preset="grpo", learning_rate=1.0, max_grad_norm=0.0, **keys)
    dump = torch.load(tmp_path / "nan" / f"nan-step-{step}-rank-0.pt", weights_only=True)
    assert dump["step"] == step
    assert len(dump["tokens"]) == len(dump["row_prompt"])
    assert not (tmp_path / "nan" / "checkpoints" / f"step-{step}").exists()


def test_a_step_size_beyond_all_reason_is_refused():
    with pytest.raises(InputError, match=r"learning_rate is 3\.0; it must be above 0 and at most 1"):
        TrainOptions(learning_rate=3.0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1]),
        ("linear", [0.5, 1, 0.75, 0.25]),
        ("cosine", [0.5, 1, 0.853553, 0.146447]),
    ],
)
def test_learning_rate_by_hand(schedule, expected):
    options = TrainOptions(steps=6, warmup_steps=2, lr_schedule=schedule)
    rates = [learning_rate(step, options, 1.0) for step in (0, 1, 3, 5)]
    assert rates == pytest.approx(expected, abs=1e-6)


def test_the_default_step_size_knows_lora_from_full():
    options = TrainOptions()
    assert options.peak_learning_rate(lora=True) == pytest.approx(10 * options.peak_learning_rate(lora=False))
    assert TrainOptions(learning_rate=3e-4).peak_learning_rate(lora=False) == 3e-4
