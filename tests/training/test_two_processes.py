"""Two processes under a launcher are the same run as one: gradients, metrics, weights, and the resume."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

REWARDS = Path(__file__).parents[1] / "resilience" / "rewards.py"
# What a clock decides, and what is a property of one process.
NOT_COMPARED = ("time/", "memory/", "verifier/latency", "step_time", "tokens_per_second")


@pytest.fixture(scope="module", params=[2, pytest.param(1, marks=pytest.mark.slow)], ids="passes-{}".format)
def runs(request, tiny_folder, tmp_path_factory):
    """The same recipe with one process, with two, and with two that were started as one and went on as two.

    With one pass over a round the update uses what the sampler computed, with two it does not.
    """
    folder = tmp_path_factory.mktemp("ranks")
    recipe = {
        "output_dir": str(folder),
        "preset": "gdpo",
        "model": {"path": str(tiny_folder("llama")), "dtype": "float32", "lora_rank": 4},
        "data": {"name": "email_json", "train_size": 24, "heldout_size": 3,
                 "options": {"fields": ["order_id"], "shots": 0}},
        "rewards": {"functions": [{"fn": f"{REWARDS}:many_letters"}, {"fn": f"{REWARDS}:many_letters", "weight": 0.5}]},
        "rollout": {"num_generations": 4, "max_completion_length": 8},
        "objective": {"beta": 0.05, "top_entropy_quantile": 0.5, "entropy_coef": 0.01},
        "train": {"steps": 4, "prompts_per_step": 3, "num_iterations": request.param, "learning_rate": 1e-2,
                  "token_budget": 400, "checkpoint_every": 1, "keep_checkpoints": 9},
        "eval": {"every": 2, "prompts": 3, "samples": 2},
        "monitoring": {"console": "quiet"},
    }  # fmt: skip
    (folder / "r.yaml").write_text(yaml.safe_dump(recipe))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}

    def start(name, processes, *overrides):
        launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2",
                    "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
                    "--main_process_port", "0", "-m", "assay"]  # fmt: skip
        command = launcher if processes == 2 else [sys.executable, "-m", "assay"]
        words = ["train", str(folder / "r.yaml"), f"name={name}", *overrides]
        done = subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return folder / name

    one = start("one", 1)
    # As it was when one process had come half way.
    shutil.copytree(one, folder / "mixed")
    stored = folder / "mixed" / "config.yaml"
    stored.write_text(stored.read_text().replace("name: one\n", "name: mixed\n"))
    (folder / "mixed" / "summary.json").unlink()
    for checkpoint in (folder / "mixed" / "checkpoints").glob("step-[34]"):
        shutil.rmtree(checkpoint)
    return {"one": one, "two": start("two", 2), "mixed": start("mixed", 2)}


def lines(directory):
    found = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith(NOT_COMPARED)} for line in found]


@pytest.mark.parametrize("name", ["two", "mixed"])
def test_weights_are_the_same(runs, name):
    moved = False
    for step in (2, 4):
        one = load_file(runs["one"] / "checkpoints" / f"step-{step}" / "weights.safetensors")
        other = load_file(runs[name] / "checkpoints" / f"step-{step}" / "weights.safetensors")
        assert one.keys() == other.keys()
        for key in one:
            torch.testing.assert_close(other[key], one[key], rtol=0, atol=1e-6)
            moved |= bool(one[key].abs().max() > 1e-4) and "lora_B" in key
    assert moved, "training did something"


@pytest.mark.parametrize("name", ["two", "mixed"])
def test_metrics_are_the_same(runs, name):
    one, other = lines(runs["one"]), lines(runs[name])
    assert [line["step"] for line in one] == [line["step"] for line in other]
    for ours, theirs in zip(other, one, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, rel=1e-4, abs=1e-6), (theirs["step"], key)
