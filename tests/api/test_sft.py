"""`assay sft`: the loss counts answers only, a killed command ends with the same bits, the model can be trained on."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

from assay.api.sft import examples_of_rollouts, fine_tune
from assay.config.load import build_config
from assay.errors import InputError, RunError
from assay.training.sft import IGNORED, Example, collate, newest_checkpoint


def config(tmp_path, tiny_folder, **changes):
    tree = {
        "name": "small",
        "output_dir": str(tmp_path / "runs"),
        "model": {"path": str(tiny_folder("llama")), "dtype": "float32", "lora": False},
        "data": {"source": "file", "path": "unused.jsonl", "heldout_size": 0, "format": "text"},
        "rewards": ["exact_match"],
        "sft": {"epochs": 8, "batch_size": 8, "learning_rate": 0.01, "checkpoint_every": 3},
    }
    return build_config(tree, overrides=changes)


ROWS = [{"prompt": f"say {letter}", "answer": letter * 3} for letter in "abcdefgh"]


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_labels_are_the_answer_and_its_end():
    batch = collate([Example((5, 6), (7, 8)), Example((9,), (1,))], pad_token_id=0)
    assert batch["labels"].tolist() == [[IGNORED, IGNORED, 7, 8], [IGNORED, 1, IGNORED, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8], [9, 1, 0, 0]]


def test_a_loss_that_is_not_finite_ends_the_command(tmp_path, tiny_folder):
    import shutil

    from safetensors.torch import load_file, save_file

    broken = shutil.copytree(tiny_folder("llama"), tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RunError, match=r"update 1: the loss is nan; .*lower sft.learning_rate"):
        fine_tune(config(tmp_path, tiny_folder, model={"path": str(broken)}), rows=ROWS)


@pytest.mark.parametrize("lora", [False, True])
def test_the_model_says_the_answers_afterwards_and_stops(tmp_path, tiny_folder, lora):
    import transformers

    rate = 0.02 if lora else 0.01
    asked = config(
        tmp_path, tiny_folder, model={"lora": lora, "lora_rank": 32}, sft={"learning_rate": rate, "epochs": 60}
    )
    result = fine_tune(asked, rows=ROWS)
    assert result.summary["rows"] == 8
    assert result.summary["loss_last"] < 0.2 < result.summary["loss_first"]
    model = transformers.AutoModelForCausalLM.from_pretrained(result.model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(result.model)
    ids = tokenizer("say c", return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    assert tokenizer.decode(written) == "ccc" + tokenizer.eos_token


def test_gradient_does_not_depend_on_the_micro_batch(tmp_path, tiny_folder):
    whole = fine_tune(config(tmp_path, tiny_folder, sft={"epochs": 1}), rows=ROWS, output=tmp_path / "whole")
    cut = config(tmp_path, tiny_folder, sft={"epochs": 1}, train={"token_budget": 10})
    pieces = fine_tune(cut, rows=ROWS, output=tmp_path / "pieces")
    for name, tensor in weights(whole.model).items():
        torch.testing.assert_close(weights(pieces.model)[name], tensor, atol=2e-4, rtol=1e-3, msg=name)


def test_a_finished_command_does_nothing_and_other_rows_are_refused(tmp_path, tiny_folder):
    asked = config(tmp_path, tiny_folder)
    first = fine_tune(asked, rows=ROWS)
    assert fine_tune(asked, rows=ROWS).summary == first.summary
    with pytest.raises(InputError, match="other answers"):
        fine_tune(asked, rows=ROWS[:4])
    with pytest.raises(InputError, match=r"sft\.epochs=8"):
        fine_tune(config(tmp_path, tiny_folder, sft={"epochs": 9}), rows=ROWS)


def test_rows_without_an_answer_are_refused(tmp_path, tiny_folder):
    with pytest.raises(InputError, match=r"no text in column 'reply' \(it has answer, gold, prompt, task"):
        fine_tune(config(tmp_path, tiny_folder, sft={"answer": "reply"}), rows=ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_stopped_command_goes_on_to_the_same_bits(tmp_path, tiny_folder, how, status):
    tree = {
        "model": {"path": str(tiny_folder("llama")), "dtype": "float32", "lora": False},
        "data": {"format": "text", "heldout_size": 0},
        "rewards": ["exact_match"],
        "sft": {"epochs": 30, "batch_size": 4, "learning_rate": 0.003, "checkpoint_every": 4},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def command(name):
        words = [
            "sft",
            tmp_path / "recipe.yaml",
            "--rows",
            tmp_path / "rows.jsonl",
            "--output",
            tmp_path / name,
            "--json",
        ]
        return [sys.executable, "-m", "assay.cli.main", *map(str, words)]

    assert subprocess.run(command("whole"), check=False, capture_output=True).returncode == 0
    process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while newest_checkpoint(tmp_path / "killed" / "checkpoints") is None and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(how)
    assert process.wait() == status
    assert not (tmp_path / "killed" / "summary.json").exists(), "the signal came too late to prove anything"
    again = subprocess.run(command("killed"), check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    whole, killed = (weights(tmp_path / name / "model") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 61))


def test_rejection_sampling_from_a_run(tmp_path, tiny_folder):
    """Only finished, correct, different completions, the latest first, token for token as they were sampled."""
    import assay

    (tmp_path / "reward.py").write_text(
        "def vowels(completions, **columns):\n"
        "    return [float(any(letter in 'aeiou' for letter in text)) for text in completions]\n"
    )
    run = assay.train(
        model=str(tiny_folder("llama")),
        dataset=[{"prompt": f"say {index}"} for index in range(12)],
        rewards=[f"{tmp_path / 'reward.py'}:vowels"],
        output_dir=str(tmp_path / "runs"),
        overrides=["data.format=text", "data.heldout_size=0", "model.dtype=float32", "model.lora=false",
                   "rollout.num_generations=16", "rollout.max_completion_length=24", "train.steps=2",
                   "train.prompts_per_step=6", "refill.dynamic_sampling=false", "monitoring.console=quiet"],
    )  # fmt: skip
    from assay.monitoring.store import RolloutStore
    from assay.policy.tiny import tiny_tokenizer

    def decode(ids):
        return tiny_tokenizer().decode(ids, skip_special_tokens=True)

    stored = {}
    for step, rows in RolloutStore(run.directory / "rollouts").iterate():
        for row in rows:
            if row["finish"] == "stop" and row["correct"]:
                stored.setdefault(row["prompt_key"], {})[row["text"]] = (step, tuple(row["token_ids"]))
    one = examples_of_rollouts(run.directory, decode, True, 1)
    many = examples_of_rollouts(run.directory, decode, True, 100)
    assert len(one) == len(stored) > 0
    assert len(many) == sum(map(len, stored.values()))
    answers = {tokens for texts in stored.values() for _, tokens in texts.values()}
    assert {example.answer for example in one} <= answers
    assert {len(example.answer) for example in examples_of_rollouts(run.directory, decode, False, 100)} != set()
    with pytest.raises(InputError, match="another tokenizer"):
        examples_of_rollouts(run.directory, lambda ids: "?", True, 1)
    asked = config(tmp_path, tiny_folder, sft={"epochs": 1})
    result = fine_tune(asked, from_rollouts=[run.directory], per_prompt=1)
    assert result.summary["rows"] == len(one)
    again = assay.train(
        model=str(result.model),
        dataset=[{"prompt": f"say {index}"} for index in range(12)],
        rewards=[f"{tmp_path / 'reward.py'}:vowels"],
        name="second",
        output_dir=str(tmp_path / "runs"),
        overrides=["data.format=text", "data.heldout_size=0", "model.dtype=float32", "rollout.num_generations=4",
                   "rollout.max_completion_length=8", "train.steps=1", "train.prompts_per_step=2",
                   "monitoring.console=quiet"],
    )  # fmt: skip
    assert again.summary["steps"] == 1
