"""Held-out evaluation in real runs: verifiers of its own, a forgetting set, the divergence from the base model."""

import pytest

import assay
from assay.config.load import build_config
from assay.errors import InputError

REWARDS = """
def always(completions, **columns):
    return [1.0 + 0.1 * (len(text) % 3) for text in completions]

def never(completions, **columns):
    return [0.0 for text in completions]

def vowels(completions, **columns):
    return [float(any(letter in "aeiou" for letter in text)) for text in completions]
"""


@pytest.fixture
def run(tiny_folder, tmp_path):
    """run(name, *overrides): two updates of a tiny model with a step size that shows; the lines of metrics.jsonl."""
    (tmp_path / "marks.py").write_text(REWARDS)
    (tmp_path / "general.jsonl").write_text("".join(f'{{"prompt": "tell me about {number}"}}\n' for number in range(9)))

    def train(name, *overrides, lora=False):
        result = assay.train(
            model=str(tiny_folder("llama")),
            dataset=[{"prompt": f"say {number}"} for number in range(20)],
            rewards=[f"{tmp_path / 'marks.py'}:always"],
            name=name,
            output_dir=str(tmp_path / "runs"),
            overrides=["data.format=text", "data.heldout_size=4", "model.dtype=float32", f"model.lora={lora}",
                       "rollout.num_generations=4", "rollout.max_completion_length=6", "train.steps=2",
                       "train.prompts_per_step=2", "train.learning_rate=0.01", "preset=grpo", "eval.samples=4",
                       "eval.prompts=4", "eval.every=1", "monitoring.console=quiet", *overrides],
        )  # fmt: skip
        return [line for line in result.metrics() if "heldout/completions/mean_length" in line], result

    return train


def test_heldout_answers_are_marked_by_their_own_verifiers(run, tmp_path):
    lines, result = run("own", f"eval.rewards={tmp_path / 'marks.py'}:never")
    assert [line["heldout/accuracy"] for line in lines] == [0.0, 0.0, 0.0]
    assert [line["heldout/sampled/reward"] for line in lines] == [0.0, 0.0, 0.0]
    assert all(line["reward"] >= 1.0 for line in result.metrics() if "reward" in line)
    lines, _ = run("same")
    assert [line["heldout/accuracy"] for line in lines] == [1.0, 1.0, 1.0]


def test_a_forgetting_set_is_measured_beside_the_heldout_prompts(run, tmp_path):
    given = (
        f"{{source: file, path: {tmp_path / 'general.jsonl'}, prompts: 7, rewards: ['{tmp_path / 'marks.py'}:vowels']}}"
    )
    lines, result = run("forgetting", f"eval.forgetting={given}", "eval.kl_to_base=true")
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert 0.0 <= line["heldout/forgetting/pass_rate"] <= 1.0
        assert line["heldout/accuracy"] == 1.0  # the first set's own verdict, and the one that picks the best
        assert "heldout/forgetting/kl_to_base" in line
    assert lines[0]["heldout/forgetting/kl_to_base"] == pytest.approx(0.0, abs=1e-5)
    assert result.summary["heldout_before"] == 1.0
    assert result.summary["forgetting_before"] == lines[0]["heldout/forgetting/accuracy"]
    assert result.summary["forgetting_after"] == lines[2]["heldout/forgetting/accuracy"]


def test_without_verifiers_forgetting_is_length_and_divergence_only(run, tmp_path):
    lines, _ = run("plain", f"eval.forgetting={{source: file, path: {tmp_path / 'general.jsonl'}}}", lora=True)
    assert "heldout/forgetting/accuracy" not in lines[-1]
    assert lines[-1]["heldout/forgetting/completions/mean_length"] > 0
    assert lines[-1]["heldout/forgetting/kl_to_base"] != 0.0


@pytest.mark.parametrize(
    ("lora", "words", "measured"),
    [
        (False, [], False),  # it would take a copy of all weights
        (True, [], True),
        (True, ["eval.kl_to_base=false"], False),
        (False, ["objective.beta=0.01"], True),  # the KL term keeps that copy anyway
        (False, ["eval.kl_to_base=true"], True),
        (False, ["eval.kl_to_base=true", "model.reference_device=cpu"], True),
        # A reference that follows the policy is no base model.
        (False, ["eval.kl_to_base=true", "objective.beta=0.01", "objective.sync_ref_model=true",
                 "objective.ref_model_sync_steps=1", "objective.ref_model_mixup_alpha=1.0"], True),
    ],
)  # fmt: skip
def test_divergence_from_the_model_that_the_run_began_with(run, lora, words, measured):
    lines, _ = run("kl", *words, lora=lora)
    found = [line.get("heldout/kl_to_base") for line in lines]
    if not measured:
        assert found == [None, None, None]
        return
    assert found[0] == pytest.approx(0.0, abs=1e-5)
    assert abs(found[2]) > 1e-3


@pytest.mark.parametrize(
    ("forgetting", "message"),
    [
        ({"source": "file"}, r"eval\.forgetting: data\.source is 'file', which needs data\.path"),
        ({"sauce": "task"}, r"eval\.forgetting: unknown key sauce; did you mean source"),
        ({"prompts": 0}, r"eval\.forgetting\.prompts is 0"),
    ],
)
def test_what_is_wrong_with_a_forgetting_set_is_said_before_the_run(forgetting, message):
    with pytest.raises(InputError, match=message):
        build_config({"rewards": ["exact_match"], "eval": {"forgetting": forgetting}})
