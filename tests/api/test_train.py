"""`assay.train` as a user calls it: arguments, functions as rewards, results, refusals that lose nothing."""

import json

import pytest
import torch

from assay.config.load import load_recipe
from assay.errors import InputError, RunError
from assay.prompts import load_prompts

ROWS = [
    {"question": f"Say {word}.", "answer": word}
    for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
]


def vowels(completions, **kwargs):
    """Paid for vowels; random text has some, so groups differ."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [sum(letter in "aeiouAEIOU" for letter in text) / 4 for text in texts]


@pytest.fixture
def run(train_tiny):
    """Train a tiny model in a fresh run directory; keywords go on top."""
    return lambda **keys: train_tiny(**({"dataset": ROWS, "rewards": [vowels], "heldout_size": 2} | keys))


def test_a_run_is_a_directory_with_a_better_model_in_it(run):
    seen = []
    result = run(on_step=lambda step, metrics: seen.append((step, metrics["learning_rate"])))
    assert seen == [(1, 1e-2), (2, 1e-2)]
    directory = result.directory
    assert {"config.yaml", "metrics.jsonl", "rollouts", "checkpoints", "model", "summary.json"} <= {
        path.name for path in directory.iterdir()
    }
    assert (directory / "checkpoints" / "step-2").is_dir()
    for key in ("heldout_before", "heldout_after", "train_seconds", "steps", "seed"):
        assert key in result.summary
    assert json.loads((directory / "summary.json").read_text()) == result.summary
    lines = [line for line in result.metrics() if "grad_norm" in line]
    assert [line["step"] for line in lines] == [1, 2]
    assert "test_train:vowels" in (directory / "config.yaml").read_text()


def test_the_saved_model_is_the_trained_one(run, tiny_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result = run(steps=3, learning_rate=5e-2)
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    trained = AutoModelForCausalLM.from_pretrained(result.model, dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tiny_folder("llama"), dtype=torch.float32)
    ids = torch.tensor([tokenizer("Say one.")["input_ids"]])
    with torch.no_grad():
        moved = (trained(ids).logits - base(ids).logits).abs().max()
    assert moved > 1e-3


def test_full_fine_tuning_saves_a_whole_model(run):
    from transformers import AutoModelForCausalLM

    result = run(lora=False, learning_rate=1e-3)
    assert (result.model / "model.safetensors").exists()
    AutoModelForCausalLM.from_pretrained(result.model)


def test_finished_run_is_not_trained_again_and_more_steps_go_on(run):
    first = run()
    stamp = (first.directory / "checkpoints" / "step-2" / "weights.safetensors").stat().st_mtime_ns
    assert run().summary == first.summary
    assert (first.directory / "checkpoints" / "step-2" / "weights.safetensors").stat().st_mtime_ns == stamp
    longer = run(steps=3)
    assert longer.summary["steps"] == 3
    assert [line["step"] for line in longer.metrics() if "grad_norm" in line] == [1, 2, 3]


def test_rows_that_were_in_memory_are_asked_for(run):
    result = run()
    with pytest.raises(InputError, match=r"rows that Python held in memory .* data\.source=file"):
        load_prompts(load_recipe(result.directory / "config.yaml").data, None)


def test_resume_with_another_experiment_is_refused(run):
    run()
    with pytest.raises(InputError, match=r"began with train\.learning_rate"):
        run(learning_rate=1e-3, steps=4)
    with pytest.raises(InputError, match=r"data\.name"):
        run(dataset=[*ROWS, {"question": "Say zero.", "answer": "zero"}], steps=4)


def test_second_process_on_the_same_run_is_refused(run):
    from assay.training.rundir import RunDirectory

    directory = RunDirectory(run().directory)
    with directory.lock(), pytest.raises(InputError, match="in use by process"):
        run(steps=5)


def test_metrics_speak_of_all_that_was_written_where_groups_are_dropped(run):
    """Every other prompt is solved at every try: half of what is written is dropped, and must not vanish from view."""
    marked = []

    def easy_or_mixed(prompts, completions, completion_ids, trainer_state, **kwargs):
        found = []
        for prompt, ids in zip(prompts, completion_ids, strict=True):
            easy = "seven" in prompt[-1]["content"]
            found.append(1.0 if easy else float(sum(ids) % 2))
            marked.append((trainer_state.global_step, len(ids), found[-1]))
        return found

    result = run(
        dataset=[{"question": f"Say {word} {n} times.", "answer": ""} for n in range(8) for word in ("seven", "one")],
        rewards=[easy_or_mixed], preset="dapo", num_generations=4, prompts_per_step=4, steps=4, heldout_size=0,
    )  # fmt: skip
    lines = [line for line in result.metrics() if "grad_norm" in line]
    assert sum(line["refill/all_correct"] for line in lines) > 0, "otherwise this test is of nothing"
    tokens = 0
    for step, line in enumerate(lines):
        if not line["refill/completions"]:
            # The groups that had waited were enough.
            assert line["num_tokens"] == tokens
            assert not line.keys() & {"accuracy", "reward", "completions/count"}
            continue
        lengths, rewards = zip(*((length, reward) for when, length, reward in marked if when == step), strict=True)
        assert line["completions/count"] == line["refill/completions"] == len(rewards)
        assert line["accuracy"] == pytest.approx(sum(rewards) / len(rewards))
        assert line["reward"] == pytest.approx(line["accuracy"])
        assert line["groups/frac_all_correct"] == line["refill/all_correct"] / line["refill/generated"]
        assert line["completions/total_tokens"] == sum(lengths)
        tokens += line["num_prompt_tokens"] + sum(lengths)
        assert line["num_tokens"] == tokens


def test_a_round_without_signal_moves_nothing(run):
    def nothing(completions, **kwargs):
        return [0.0] * len(completions)

    result = run(rewards=[nothing], steps=2)
    lines = [line for line in result.metrics() if "skipped_update" in line]
    assert [line["skipped_update"] for line in lines] == [1.0, 1.0]
    from safetensors.torch import load_file

    weights = load_file(result.directory / "checkpoints" / "step-2" / "weights.safetensors")
    assert all(not tensor.any() for name, tensor in weights.items() if "lora_B" in name)


def test_a_reward_that_raises_names_itself_and_the_run_goes_on_afterwards(run):
    broken = {"now": True}

    def sometimes(completions, **kwargs):
        if broken["now"]:
            raise KeyError("gold_answer")
        return vowels(completions)

    with pytest.raises(InputError, match=r"sometimes.*gold_answer"):
        run(rewards=[sometimes])
    broken["now"] = False
    assert run(rewards=[sometimes]).summary["steps"] == 2


def test_full_disk_keeps_the_last_checkpoint_and_says_how_to_go_on(run, monkeypatch):
    import errno

    from assay.training import checkpoint

    def full(tensors, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    run(steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(RunError, match=r"No space left.*step-2 is whole"):
            run(steps=4)
    assert run(steps=4).summary["steps"] == 4


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"dataset": []}, "has no rows"),
        ({"dataset": [{"x": 1}]}, "column"),
        ({"rewards": []}, "no reward function"),
        ({"rewards": ["mathh"]}, "did you mean 'math'"),
        ({"max_completion_length": 100000}, "context"),
        ({"model": "/nowhere/at/all"}, "no such folder"),
        ({"steps": -1}, "train.steps is -1"),
        ({"preset": "ppo"}, None),
        ({"num_generatons": 4}, "num_generations"),
        ({"dataset": 7}, "give rows"),
    ],
)
def test_bad_arguments_are_one_line_that_teaches(run, keys, says):
    if says is None:
        assert run(**keys).summary["steps"] == 2
        return
    with pytest.raises(InputError) as caught:
        run(**keys)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unwritable_output_directory(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written|in the way"):
        run(output_dir=str(tmp_path / "file"))


def test_the_sandbox_level_that_was_witnessed_is_stored_with_the_run(run):
    import yaml

    tests = {"kind": "calls", "entry": "f", "cases": [{"args": [1], "expected": 2}]}
    rows = [{"question": f"Write f, version {n}.", "tests": tests} for n in range(8)]
    result = run(dataset=rows, rewards=["code"], heldout_size=0, steps=1)
    measured = yaml.safe_load((result.directory / "config.yaml").read_text())["measured"]
    assert measured["verifiers"]["code"]["level"] in ("isolated", "restricted")
