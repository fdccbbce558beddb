"""Whole runs: with vLLM in the process, and with servers that die and come back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_helpers import free_ports, kill_server, serving

from assay.errors import RunError

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2000)]

ROWS = [
    {"question": f"Say {word}.", "answer": word}
    for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
]


def vowels(completions, **kwargs):
    """Paid for vowels; random text has some, so groups differ."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [sum(letter in "aeiouAEIOU" for letter in text) / 4 for text in texts]


def settings(folder, runs, **keys):
    return {
        "model": str(folder),
        "dataset": ROWS,
        "rewards": [vowels],
        "preset": "grpo",
        "output_dir": str(runs),
        "name": "r",
        "num_generations": 4,
        "max_completion_length": 8,
        "prompts_per_step": 2,
        "steps": 3,
        "learning_rate": 1e-2,
        "dtype": "float32",
        "prefix_sharing": True,
        "lora_rank": 4,
        "console": "quiet",
        "heldout_size": 2,
        "kv_cache_gib": 0.1,
    } | keys


def updates(result):
    return [line for line in result.metrics() if line.get("grad_norm")]


@pytest.mark.parametrize("lora", [True, False])
def test_a_run_with_vllm_in_the_process_trains_on_what_it_sampled(folder_of, tmp_path, lora):
    """In a process of its own: vLLM and the trainer share it, as they do for a user."""
    script = Path(__file__).with_name("train_here.py")
    keys = {**settings(folder_of("tied"), tmp_path, lora=lora), "engine": "vllm", "rewards": f"{__file__}:vowels"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(keys)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in json.loads(done.stdout.splitlines()[-1]) if line.get("grad_norm")]
    assert len(lines) >= 2
    for line in lines:
        assert line["sampling/missing_frac"] == 0
        assert line["sampling/sampling_logp_difference/max"] < 1e-4, "weights lag behind, or are others"


def test_a_run_whose_server_dies_goes_on_where_its_checkpoint_is(folder_of, tmp_path):
    import assay

    port = free_ports(1)
    keys = settings(folder_of("tied"), tmp_path, steps=5, checkpoint_every=1)
    keys |= {"engine": "vllm-server", "rollout.vllm.urls": [f"http://127.0.0.1:{port}"]}
    with serving(folder_of("tied"), tmp_path, port=port) as [(url, pid)]:

        def kill_after_two(step, metrics):
            if step == 2:
                kill_server(pid)

        with pytest.raises(RunError, match=f"no vLLM server is left .*{url}"):
            assay.train(**keys, on_step=kill_after_two)
    kept = sorted(path.name for path in (tmp_path / "r" / "checkpoints").glob("step-*"))
    assert kept
    with serving(folder_of("tied"), tmp_path, port=port):
        result = assay.train(**keys)
    assert result.summary["steps"] == 5
    assert [line["step"] for line in result.metrics() if "grad_norm" in line] == [1, 2, 3, 4, 5]
    for line in updates(result):
        assert line["sampling/sampling_logp_difference/max"] < 1e-4


def test_a_run_that_writes_ahead_is_never_staler_than_it_may_be(folder_of, tmp_path):
    import assay

    with serving(folder_of("tied"), tmp_path) as [(url, _)]:
        keys = settings(folder_of("tied"), tmp_path, steps=6, max_completion_length=24)
        keys |= {"engine": "vllm-server", "rollout.vllm.urls": [url], "rollout.max_staleness": 1}
        result = assay.train(**keys)
    assert result.summary["steps"] == 6
    stalest = [line["staleness/max"] for line in result.metrics() if "staleness/max" in line]
    assert len(stalest) == 6
    assert max(stalest) == 1, "nothing was written ahead, or it was too old"
