"""Kill a run for real, start it again, and compare with the run that nobody killed: bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from assay.policy.tiny import save_tiny

HERE = Path(__file__).parent
STEPS = 6
# What a clock or the operating system decides.
NOT_COMPARED = ("time/", "memory/", "verifier/latency", "step_time", "tokens_per_second")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A tiny model, a recipe in which everything with memory is in use, and the run that nobody kills."""
    folder = tmp_path_factory.mktemp("resume")
    save_tiny(folder / "model", "llama")
    recipe = {
        "name": "whole",
        "output_dir": str(folder / "runs"),
        "preset": "skywork_or1",
        "seed": 3,
        "model": {"path": str(folder / "model"), "dtype": "float32", "lora_rank": 4, "lora_dropout": 0.1},
        "data": {"name": "email_json", "train_size": 24, "heldout_size": 4,
                 "options": {"fields": ["order_id"], "shots": 0}},
        "rewards": {"functions": [f"{HERE / 'rewards.py'}:many_letters"], "correct_threshold": 0.25, "workers": 2},
        "curriculum": {"policy": "thompson"},
        "rollout": {"num_generations": 3, "max_completion_length": 8},
        "objective": {"beta": 0.05, "entropy_target": 6.0, "sync_ref_model": True, "ref_model_sync_steps": 2},
        "train": {"steps": STEPS, "prompts_per_step": 2, "steps_per_generation": 2, "learning_rate": 5e-3,
                  "checkpoint_every": 1, "lr_schedule": "cosine", "warmup_steps": 1},
        "eval": {"every": 2, "prompts": 2, "samples": 2},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    assert start(path, "whole").wait() == 0
    return path


def start(recipe, name, *kill):
    """A process of its own that trains `recipe` under another run name."""
    tree = yaml.safe_load(recipe.read_text()) | {"name": name}
    own = recipe.with_name(f"{name}.yaml")
    own.write_text(yaml.safe_dump(tree))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(HERE / "killer.py"), str(own), *map(str, kill)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run_directory(recipe, name):
    return recipe.parent / "runs" / name


def metrics_of(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith(NOT_COMPARED)} for line in lines]


def flat(value, prefix=""):
    """A nested state as {path: leaf}."""
    if isinstance(value, dict):
        return {path: leaf for key in value for path, leaf in flat(value[key], f"{prefix}/{key}").items()}
    if isinstance(value, list | tuple):
        return {
            path: leaf for index, item in enumerate(value) for path, leaf in flat(item, f"{prefix}/{index}").items()
        }
    return {prefix: value}


def assert_same_run(directory, reference):
    for step in sorted(path.name for path in (reference / "checkpoints").glob("step-*")):
        ours, theirs = directory / "checkpoints" / step, reference / "checkpoints" / step
        ours_weights, weights = load_file(ours / "weights.safetensors"), load_file(theirs / "weights.safetensors")
        assert ours_weights.keys() == weights.keys()
        assert all(torch.equal(ours_weights[name], weights[name]) for name in weights), f"weights differ at {step}"
        state, expected = (flat(torch.load(path / "state.pt", weights_only=True)) for path in (ours, theirs))
        clocks = [path for path in expected if path.endswith("train_seconds")]
        assert state.keys() == expected.keys()
        for path in expected.keys() - set(clocks):
            same = (
                torch.equal(state[path], expected[path])
                if torch.is_tensor(expected[path])
                else state[path] == expected[path]
            )
            assert same, f"{path} differs at {step}: {state[path]} instead of {expected[path]}"
    assert metrics_of(directory) == metrics_of(reference)
    names = sorted(path.name for path in (reference / "rollouts").iterdir())
    assert sorted(path.name for path in (directory / "rollouts").iterdir()) == names
    for name in names:
        assert pq.read_table(directory / "rollouts" / name).equals(pq.read_table(reference / "rollouts" / name)), name


def test_the_reference_run_has_something_to_lose(workshop):
    """Otherwise the comparison below would be of nothing."""
    directory = run_directory(workshop, "whole")
    steps = [line for line in metrics_of(directory) if "loss" in line or "skipped_update" in line]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert any(line["grad_norm"] > 0 for line in steps)
    assert any(line.get("groups/frac_mixed", 0) > 0 for line in steps)
    state = torch.load(directory / "checkpoints" / f"step-{STEPS}" / "state.pt", weights_only=True)
    assert state["objective"]["entropy"]["value"] != 0
    assert state["optimizer"]["state"], "the optimiser has moments"
    assert state["producer"]["draws"] > 0
    earlier = torch.load(directory / "checkpoints" / f"step-{STEPS - 2}" / "state.pt", weights_only=True)
    moved = [name for name, weight in state["reference"].items() if not torch.equal(weight, earlier["reference"][name])]
    assert moved, "the reference follows the policy"


@pytest.mark.parametrize(
    ("place", "count"), [("generation", 30), ("backward", 3), ("checkpoint", 1), ("rename", 2), ("metrics", 3)]
)
def test_killed_and_resumed_equals_uninterrupted(workshop, place, count):
    name = f"killed-{place}"
    first = start(workshop, name, place, count)
    first.wait()
    assert first.returncode == -signal.SIGKILL, first.stdout.read().decode()[-2000:]
    assert not (run_directory(workshop, name) / "summary.json").exists()
    second = start(workshop, name)
    assert second.wait() == 0, second.stdout.read().decode()[-2000:]
    assert_same_run(run_directory(workshop, name), run_directory(workshop, "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_random_moments_again_and_again(workshop, seed):
    random_moment, name = random.Random(seed), f"random-{seed}"
    for _ in range(40):
        process = start(workshop, name)
        time.sleep(random_moment.uniform(1.0, 12.0))
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
    else:
        assert start(workshop, name).wait() == 0
    assert_same_run(run_directory(workshop, name), run_directory(workshop, "whole"))


def test_interrupt_leaves_a_resumable_run(workshop):
    """Ctrl-C: the round is finished, a checkpoint written, exit; the same command goes on."""
    process = start(workshop, "interrupted")
    directory = run_directory(workshop, "interrupted")
    deadline = time.monotonic() + 120
    while not (directory / "metrics.jsonl").exists() or '"step": 2' not in (directory / "metrics.jsonl").read_text():
        assert time.monotonic() < deadline, "the run did not get to step 2"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0, process.stdout.read().decode()[-2000:]
    summary = json.loads((directory / "summary.json").read_text())
    assert 2 <= summary["steps"] <= STEPS
    assert start(workshop, "interrupted").wait() == 0
    assert_same_run(directory, run_directory(workshop, "whole"))
