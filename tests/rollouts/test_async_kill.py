"""An asynchronous run in a process of its own, ended from outside: no admitted group is lost, nothing hangs."""

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

HERE = Path(__file__).parent
REWARDS = HERE.parent / "resilience" / "rewards.py"
STEPS = 10


@pytest.fixture(scope="module")
def start(tiny_folder, tmp_path_factory):
    """`start(name, tick)`: the process and its run directory; the same name again resumes."""
    folder = tmp_path_factory.mktemp("async")
    recipe = {
        "output_dir": str(folder), "preset": "dapo", "seed": 3,
        "model": {"path": str(tiny_folder("llama")), "dtype": "float32", "lora_rank": 2},
        "data": {"name": "email_json", "train_size": 24, "heldout_size": 0,
                 "options": {"fields": ["order_id"], "shots": 0}},
        "rewards": {"functions": [f"{REWARDS}:many_letters"], "workers": 2},
        "curriculum": {"policy": "uniform"},
        "rollout": {"engine": "vllm-server", "max_staleness": 2, "num_generations": 4, "max_completion_length": 12},
        "refill": {"dynamic_sampling": False},
        "train": {"steps": STEPS, "prompts_per_step": 3, "learning_rate": 5e-3, "checkpoint_every": 1},
    }  # fmt: skip

    def start(name, tick):
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(recipe | {"name": name}))
        command = [sys.executable, str(HERE / "async_worker.py"), str(path), str(tick)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return process, folder / name

    return start


def finish(process):
    told = process.communicate(timeout=120)[0].decode()[-3000:]
    assert process.returncode == 0, told


def wait_for_step(process, directory, step):
    while not any((directory / "checkpoints").glob(f"step-{step}")):
        assert process.poll() is None, process.stdout.read().decode()[-3000:]
        time.sleep(0.005)


def trained(directory):
    """{draw: (prompt, tokens of its completions)}, and the steps' draws in order."""
    groups, order = {}, []
    for path in sorted((directory / "rollouts").glob("*.parquet")):
        columns = ["draw", "sample", "prompt_key", "token_ids", "policy_versions"]
        for row in pq.read_table(path, columns=columns).to_pylist():
            group = groups.setdefault(row["draw"], (row["prompt_key"], [], []))
            group[1].append(row["token_ids"])
            group[2].append([(span["start"], span["version"]) for span in row["policy_versions"]])
            order += [row["draw"]] if row["sample"] == 0 else []
    return groups, order


def kill(start, name, step, tick=0.02):
    """SIGKILL soon after the checkpoint of `step`; the newest checkpoint's state."""
    process, directory = start(name, tick)
    wait_for_step(process, directory, step)
    time.sleep(random.Random(step).uniform(0, 0.05))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    newest = max((directory / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    return torch.load(newest / "state.pt", weights_only=True)


def test_killed_and_resumed_loses_no_admitted_group(start):
    state = kill(start, "killed", 3)
    queue = {entry["group"]["draw"]: entry for entry in state["producer"]["queue"]}
    assert list(queue) == list(range(3 * state["step"], state["producer"]["draws"]))
    assert "writing" in {entry["stage"] for entry in queue.values()}, "nothing was in flight: nothing would be proved"
    process, directory = start("killed", 0.0)
    finish(process)
    found, order = trained(directory)
    assert order == list(range(3 * STEPS)), "every draw once, in order"
    for draw, entry in queue.items():
        assert found[draw][0] == entry["group"]["prompt"]
        if entry["stage"] == "waiting":
            kept = entry["group"]["completions"]
            assert found[draw][1] == [item["segments"][0]["token_ids"].tolist() for item in kept]
            assert found[draw][2] == [item["policy_versions"] for item in kept], "it was not written again"


@pytest.mark.slow
def test_killed_again_and_again_trains_on_the_same_stream(start):
    process, whole = start("whole", 0.0)
    finish(process)
    for step in (1, 3, 6):
        kill(start, "often", step)
    process, directory = start("often", 0.0)
    finish(process)
    found, order = trained(directory)
    assert order == list(range(3 * STEPS))
    for draw, (key, tokens, _) in trained(whole)[0].items():
        assert found[draw][:2] == (key, tokens), "the same prompt, written with the same random stream"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_the_run_with_a_checkpoint_and_no_thread_that_hangs(start, number):
    process, directory = start(f"signal-{number}", 0.01)
    wait_for_step(process, directory, 2)
    process.send_signal(number)
    finish(process)
    last = max(int(path.name[5:]) for path in (directory / "checkpoints").glob("step-*"))
    assert 2 <= last < STEPS
    state = torch.load(directory / "checkpoints" / f"step-{last}" / "state.pt", weights_only=True)["producer"]
    assert [entry["group"]["draw"] for entry in state["queue"]] == list(range(3 * last, state["draws"]))
