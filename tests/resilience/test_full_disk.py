"""A disk that is really full: a small tmpfs in a mount namespace of its own, made larger afterwards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REWARDS = Path(__file__).with_name("rewards.py")
SCRIPT = """
mount -t tmpfs -o size=400k tmpfs "$1" || exit 77
"$2" -m assay train "$3"; echo "first $?"
ls "$1/full/checkpoints"
mount -o remount,size=64m "$1"
"$2" -m assay train "$3"; echo "second $?"
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting a small disk needs root")
def test_a_full_disk_ends_the_run_in_one_line_and_room_lets_it_go_on(tiny_folder, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    recipe = {
        "name": "full",
        "output_dir": str(disk),
        "preset": "grpo",
        "model": {"path": str(tiny_folder("llama")), "dtype": "float32", "lora_rank": 2},
        "data": {"name": "email_json", "train_size": 16, "heldout_size": 0, "options": {"fields": ["order_id"]}},
        "rewards": [f"{REWARDS}:many_letters"],
        "rollout": {"num_generations": 4, "max_completion_length": 8},
        "train": {"steps": 40, "prompts_per_step": 4, "checkpoint_every": 1, "keep_checkpoints": 2},
        "monitoring": {"console": "quiet"},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    command = ["unshare", "-m", "sh", "-c", SCRIPT, "sh", str(disk), sys.executable, str(tmp_path / "r.yaml")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)
    if done.returncode == 77:
        pytest.skip(f"this host refuses to mount a tmpfs: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    assert "first 2" in lines, done.stdout + done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("assay: ")]
    assert "No space left on device" in said
    assert "is whole" in said
    assert any(line.startswith("step-") for line in lines), "a checkpoint was kept"
    assert "second 0" in lines, done.stdout + done.stderr
