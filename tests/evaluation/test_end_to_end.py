"""The commands on runs that `assay train` really made, with a tiny random model."""

import json
import subprocess
import sys

import pytest
import yaml

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    from assay.policy.tiny import save_tiny

    folder = tmp_path_factory.mktemp("sweep")
    model = save_tiny(folder / "model")
    tree = {
        "model": {"path": str(model), "lora": True, "dtype": "float32"},
        "data": {"source": "file", "path": str(folder / "rows.jsonl"), "heldout_size": 8, "format": "text"},
        "rewards": [{"fn": f"{folder / 'reward.py'}:vowels"}],
        "rollout": {"num_generations": 4, "max_completion_length": 8},
        "train": {"steps": 6, "prompts_per_step": 2, "learning_rate": 0.01, "checkpoint_every": 3},
        "eval": {"every": 1, "prompts": 8, "samples": 2},
        "monitoring": {"console": "quiet"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    rows = [{"prompt": f"say {index}", "gold": "a"} for index in range(48)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(
        "def vowels(completions, **columns):\n"
        "    return [float(any(letter in 'aeiouAEIOU' for letter in text)) for text in completions]\n"
    )
    return folder / "recipe.yaml"


def assay(*arguments):
    command = [sys.executable, "-m", "assay.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def runs(recipe):
    out = recipe.parent / "runs"
    done = assay("sweep", recipe, "objective.loss_type=[grpo,dr_grpo]", "--seeds", 1, "--output-dir", out, "--json")
    assert done.returncode == 0, done.stderr
    assert {run["status"] for run in json.loads(done.stdout)["runs"]} == {0}
    return out


def test_sweep_compares_and_resumes(recipe, runs):
    assert (runs / "compare.html").exists()
    lines = (runs / "grpo-seed0" / "metrics.jsonl").read_text()
    again = assay("sweep", recipe, "objective.loss_type=[grpo,dr_grpo]", "--seeds", 1, "--output-dir", runs)
    assert again.returncode == 0, again.stderr
    assert (runs / "grpo-seed0" / "metrics.jsonl").read_text() == lines


def test_compare(runs):
    done = assay("compare", runs / "grpo-seed0", runs / "dr_grpo-seed0", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["metric"], report["step"]) == ("heldout/pass_rate", 6)
    if (runs / "grpo-seed0" / "heldout.jsonl").exists():
        assert report["pairs"][0]["basis"] == "problems, one seed"
    assert {row["setting"] for row in report["settings"]} == {"loss_type=grpo", "loss_type=dr_grpo"}


def test_fit(runs):
    done = assay("fit", runs / "grpo-seed0", "--json")
    assert done.returncode in (0, 1), done.stderr
    (fit,) = json.loads(done.stdout)["fits"].values()
    assert fit["points"] == 7


def test_passk_of_base_and_trained(runs):
    done = assay("passk", runs / "grpo-seed0", "--n", 8, "--problems", 5, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["problems"], report["n"]) == (5, 8)
    assert set(report["pass_at_k"]) == {"base", "trained"}
    texts = [sorted((runs / "grpo-seed0" / "passk" / name).glob("samples-*.parquet")) for name in ("base", "trained")]
    assert [len(found) for found in texts] == [1, 1]
    assert texts[0][0].read_bytes() != texts[1][0].read_bytes()  # the trained adapters did load
    other = assay(
        "passk", runs / "dr_grpo-seed0", "--n", 8, "--problems", 5,
        "--against", runs / "grpo-seed0" / "passk" / "trained", "--json",
    )  # fmt: skip
    assert other.returncode == 0, other.stderr
    assert list(json.loads(other.stdout)["pass_at_k"])[1] == "trained"
    assert json.loads(other.stdout)["change"] is not None
    more = assay("passk", runs / "grpo-seed0", "--n", 8, "--problems", 5, "--seed", 9, "--json")
    assert more.returncode == 2
    assert "begun with seed" in more.stderr
