"""Every recipe of the repository is a valid run whose reward functions exist, and takes a step with a tiny model."""

from pathlib import Path

import pytest

from assay.config.load import load_recipe
from assay.evaluation.sweep import read_sweep
from assay.rewards import load_rewards

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "recipes").rglob("*.yaml"))
SWEEPS = [path for path in FILES if read_sweep(path) is not None]
RECIPES = [path for path in FILES if path not in SWEEPS]
GSM8K = ROOT / "tests" / "data" / "gsm8k_style.jsonl"
# Small enough for seconds: two prompts, two answers of two tokens, one update, one held-out prompt before and after.
SMALL = [
    "rollout.engine=transformers", "rollout.num_generations=2", "rollout.max_completion_length=2",
    "train.steps=1", "train.prompts_per_step=1", "train.steps_per_generation=1", "train.num_iterations=1",
    "eval.prompts=1", "eval.samples=1", "eval.best_by=null", "refill.max_rounds=1", "model.lora_rank=2",
    "model.dtype=float32", "monitoring.console=quiet", "data.max_prompt_tokens=null",
]  # fmt: skip


def name_of(path):
    return str(path.relative_to(ROOT / "recipes").with_suffix(""))


def test_there_is_a_recipe_for_everything_that_the_lecture_runs():
    wanted = {"quickstart", "gsm8k", "dapo", "gspo-moe", "scalerl", "email-json", "email-json-gdpo", "code", "r1",
              "multiple-choice", "reasoning-gym"}  # fmt: skip
    assert wanted <= {name_of(path) for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_recipe_is_valid(path):
    config = load_recipe(path)
    names = [function.name for function in load_rewards(config.rewards.functions)]
    assert names
    assert not config.rewards.primary or config.rewards.primary in names
    load_rewards(config.eval.rewards)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_recipe_says_in_its_first_lines_what_it_needs(path):
    head = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#")).lower()
    assert any(word in head for word in ("gpu", "cpu", "docs/labs/")), "a header comment names the hardware"


@pytest.mark.parametrize("path", SWEEPS, ids=name_of)
def test_every_run_of_a_sweep_is_valid(path):
    from assay.cli.sweep import build

    plan = build(read_sweep(path), path, [], None, None)
    configs = [load_recipe(plan.recipe, run.overrides) for run in plan.runs()]
    assert len({config.name for config in configs}) == len(configs) >= 2
    for config in configs:
        assert load_rewards(config.rewards.functions)


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_recipe_takes_a_step(path, tiny_folder, tmp_path, monkeypatch):
    """Data, rewards, objective and evaluation together; what needs the hub reads six rows in GSM8K's format instead."""
    import assay

    monkeypatch.chdir(ROOT)
    config = load_recipe(path)
    architecture = "qwen3_moe" if "moe" in path.stem else "llama"
    folder = tiny_folder(architecture, max_position_embeddings=8192)
    words = [*SMALL, f"model.path={folder}", f"output_dir={tmp_path}"]
    if config.data.source == "hub":
        words += ["data.source=file", f"data.path={GSM8K}", "data.heldout_size=1", "data.heldout_split=null"]
    else:
        words += ["data.train_size=8", "data.heldout_size=2"]
        if config.data.source == "python":
            words += ["data.options.size=40", "data.options.heldout=8"]
    result = assay.train(path, overrides=words)
    assert result.summary["steps"] == 1
    assert result.model.is_dir()
    assert all(line["step"] <= 1 for line in result.metrics())
