"""The command line as a person meets it: help at once, errors in one line, exit statuses, machine output."""

import importlib
import json
import subprocess
import sys

import pytest
import yaml

from assay.cli import main as cli
from assay.cli.main import COMMANDS


@pytest.fixture
def assay(monkeypatch, capsys):
    """Run `assay WORDS...` in this process: (exit status, stdout, stderr)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, words)])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


def test_help_lists_every_command_without_loading_torch():
    code = "import sys; from assay.cli.main import app; app(['--help'], standalone_mode=False)"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout
    assert "recipes/quickstart.yaml" in done.stdout


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(assay, command):
    module, _, attribute = COMMANDS[command][0].partition(":")
    assert hasattr(importlib.import_module(module), attribute)
    status, out, _ = assay(command, "--help")
    assert status == 0
    assert "Usage" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "absent.yaml"], "'absent.yaml' does not exist"),
        (["train", "."], "config.yaml"),
        (["eval", "absent.yaml"], "does not exist"),
        (["try", "absent"], "no trained model yet"),
        (["export", "absent", "x"], "no trained model yet"),
    ],
)
def test_what_is_wrong_is_one_line_on_stderr_and_status_2(assay, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    status, out, err = assay(*words)
    assert status == 2
    assert says in err
    assert err.count("\n") == 1
    assert out == ""


def test_unknown_command_and_missing_argument(assay):
    assert assay("trian")[0] == 2
    assert assay("train")[0] == 2


def test_debug_shows_the_traceback(monkeypatch, tmp_path):
    command = [sys.executable, "-m", "assay", "--debug", "train", "absent.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "Traceback" in done.stderr


def test_from_a_dataset_to_a_better_model(assay, tiny_folder, tmp_path, monkeypatch):
    """init, train (twice: the second resumes), eval, try, export, as a user types them."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(4) for b in range(4)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, out, _ = assay("init", "sums.jsonl", "--verifier", "math", "--model", tiny_folder("llama"))
    assert (status, "next: assay audit sums.yaml" in out) == (0, True)
    assert assay("init", "sums.jsonl", "--verifier", "math")[0] == 2, "it does not overwrite"
    recipe = yaml.safe_load((tmp_path / "sums.yaml").read_text())
    assert recipe["data"]["fields"] == {"prompt": "question", "gold": "answer"}
    assert recipe["data"]["system_prompt"].endswith("within \\boxed{}."), "math reads marked answers only"
    short = ["rollout.max_completion_length=6", "rollout.num_generations=2", "train.prompts_per_step=2",
             "model.lora_rank=2", "eval.prompts=2", "refill.dynamic_sampling=false", "model.dtype=float32"]  # fmt: skip
    status, out, _ = assay("train", "sums.yaml", "train.steps=1", "--json", "--quiet", *short)
    assert (status, json.loads(out)["steps"]) == (0, 1)
    status, out, _ = assay("train", "sums.yaml", "train.steps=2", "--quiet", *short)
    assert status == 0
    assert "greedy accuracy" in out
    assert "None of the 2 updates had a signal: the model is what it was." in out
    assert "was finished already; raise train.steps" in assay("train", "sums.yaml", "train.steps=2", *short)[2]
    assert assay("check", "sums.yaml", "--prompts", 0)[0] == 2
    assert (tmp_path / "runs/sums/learning_curve.png").stat().st_size > 1000
    status, out, _ = assay("eval", "runs/sums", "--json")
    assert {"base", "trained", "change"} <= json.loads(out).keys()
    status, out, _ = assay("try", "runs/sums", "--json", "--which", "last", "-n", 1)
    assert json.loads(out)["answers"][0]["gold"] is not None
    assert assay("try", "runs/sums", "--prompt", "What is 2 + 2?", "--which", "last")[0] == 0
    assert assay("export", "runs/sums", "merged", "--merge", "--which", "last")[0] == 0
    assert (tmp_path / "merged" / "model.safetensors").exists()
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    assert assay("export", "runs/sums", "merged")[0] == 2, "it does not overwrite"
