"""The teaching script runs at its smoke size, and its checks can fail."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "examples" / "grpo_from_scratch.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("grpo_from_scratch", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_smoke():
    done = subprocess.run([sys.executable, SCRIPT, "--smoke"], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "all four learn" in done.stdout


def test_short_and_without_a_second_copy_of_the_maths():
    text = SCRIPT.read_text()
    assert len(text.splitlines()) < 150
    for formula in ("std(", "clamp(", "torch.exp(", ".mean(1)"):
        assert formula not in text


def test_verifier_pays_for_the_sum_and_nothing_else(example):
    problems = [(4, 4), (4, 0)]
    tokens = torch.full((2 * example.GROUP, example.LENGTH), example.END)
    tokens[0, 0] = 8  # "8" END: right
    tokens[1, :2] = torch.tensor([8, 8])  # "88": wrong
    tokens[2] = torch.tensor([8, 8, 8, 8])  # never ends: wrong
    tokens[example.GROUP, 0] = 4
    rewards = example.verify(tokens, problems)
    assert rewards.nonzero().flatten().tolist() == [0, example.GROUP]


def test_mask_ends_with_the_first_end(example):
    logits = torch.full((1, example.LENGTH, example.VOCABULARY), -100.0)
    logits[0, 0, 7] = logits[0, 1, example.END] = logits[0, 2, 3] = logits[0, 3, 3] = 100.0
    tokens, mask = example.sample(logits, torch.Generator().manual_seed(0))
    assert tokens[0].tolist() == [7, example.END, 3, 3]
    assert mask[0].tolist() == [True, True, False, False]


def test_mixed_groups_do_have_a_gradient(example):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(25, example.LENGTH, example.VOCABULARY, generator=generator).requires_grad_()
    tokens, mask = example.sample(logits, generator)
    rewards = torch.tensor([1.0, 0.0] * (len(tokens) // 2))
    loss, _, _ = example.update(logits, logits.detach(), tokens, mask, rewards, example.OBJECTIVES["dr_grpo"])
    loss.backward()
    assert logits.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--loss-type", "dr_grpo", "--scale-rewards", "none"], ("dr_grpo", "none", "token", 0.2, 1)),
        (["--is-level", "sequence"], ("grpo", "group", "sequence", 3e-4, 8)),
    ],
)
def test_full_asks_for_the_run_that_it_describes(example, monkeypatch, arguments, expected):
    """Everything up to the training itself: the keys are known, the values fit together."""
    import assay.api.run

    seen = []

    def stop(config, **rest):
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(assay.api.run, "run", stop)
    options = example.parse(["--full", "--max-steps", "12", "--report-to", "trackio", *arguments])
    with pytest.raises(KeyboardInterrupt):
        example.full(options)
    objective, train = seen[0].objective, seen[0].train
    found = (objective.loss_type, objective.scale_rewards, objective.importance_sampling_level, objective.epsilon)
    assert (*found, train.steps_per_generation) == expected
    assert (train.steps, seen[0].monitoring.trackers) == (12, ("trackio",))
    assert objective.mask_truncated_completions
    assert (seen[0].data.heldout_split, seen[0].data.heldout_size) == ("test", 200)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_full_runs_to_its_end(tiny_folder, tmp_path, level):
    """The whole of --full: rows in GSM8K's layout from a folder, a tiny model, one update, held-out figures."""
    rows = (SCRIPT.parents[1] / "tests" / "data" / "gsm8k_style.jsonl").read_text()
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    for split, text in (("train", rows), ("test", rows.replace("?", ", please?"))):
        (folder / f"{split}.jsonl").write_text(text)
    files = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in ("train", "test"))
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n")
    model = tiny_folder("llama", max_position_embeddings=4096)
    command = [sys.executable, SCRIPT, "--full", "--model", model, "--dataset", folder, "--max-steps", "1",
               "--loss-type", "dr_grpo", "--scale-rewards", "none", "--is-level", level]  # fmt: skip
    done = subprocess.run(
        [str(word) for word in command], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "held-out accuracy 0.000 ->" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == f"gsm8k-{'grpo' if level == 'sequence' else 'dr_grpo'}-none-{level}"
    assert (run / "model" / "last").is_dir()
