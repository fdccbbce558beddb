"""What the sampler computed serves the update: the same log-probs and gradients, while the weights are the same."""

import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.policy import ModelOptions, ScoringBatch, load_policy
from assay.policy.fused_lora import FusedLoraLinear
from assay.policy.recording import Recording
from assay.rollouts import Request, Sampling, TransformersEngine, TransformersEngineOptions, generate
from assay.rollouts.recorder import Recorder
from assay.training.rows import micro_batches

KEEP = TransformersEngineOptions(keep_outputs_gib=1.0)
# Rows end at different steps, some after their first token.
STOPS = tuple(range(0, 260, 9))


def make_policy(folder, **options):
    policy = load_policy(ModelOptions(path=str(folder), dtype="float32", **options), device="cpu")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.05, generator=generator)
    return policy


def write(engine, *, lengths=(3, 17, 1), n=6, tokens=14, for_update=True):
    """What the engine wrote, as a batch with traces."""
    random = np.random.default_rng(0)
    prompts = [random.integers(0, 256, length) for length in lengths]
    requests = [
        Request(tuple(prompt.tolist()), Sampling(tokens), n, 40 + number, (), STOPS, for_update)
        for number, prompt in enumerate(prompts)
    ]
    done = [completion for group in generate(engine, requests) for completion in group]
    rows = tuple(completion.segments[0].token_ids for completion in done)
    owners = tuple(number for number in range(len(prompts)) for _ in range(n))
    return ScoringBatch(tuple(prompts), rows, owners, traces=tuple(completion.trace for completion in done))


def gradients(policy, batch):
    weights = torch.randn(*batch.shape, generator=torch.Generator().manual_seed(1))
    policy.zero_grad()
    logps = policy(batch).logps
    (weights * logps).sum().backward()
    return logps.detach(), {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.fixture
def taken(monkeypatch):
    """Names of the layers whose output came from a recording."""
    names = []
    original = Recording.take
    monkeypatch.setattr(Recording, "take", lambda self, name, index: names.append(name) or original(self, name, index))
    return names


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "gemma3"])
def test_replayed_scoring_is_scoring(tiny_folder, architecture, taken):
    policy = make_policy(tiny_folder(architecture))
    engine = TransformersEngine.from_policy(policy, [], KEEP)
    taken.clear()
    batch = write(engine)
    assert len({len(row) for row in batch.rows}) > 3
    assert all(trace is not None for trace in batch.traces)
    logps, found = gradients(policy, batch)
    adapted = [name for name, layer in policy.transformer.named_modules() if type(layer) is FusedLoraLinear]
    assert sorted(taken) == sorted(adapted)
    plain, expected = gradients(policy, replace(batch, traces=()))
    torch.testing.assert_close(logps, plain, rtol=0, atol=2e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=2e-5 * max(1.0, float(gradient.abs().max())))
    # Any part of the batch, in any order.
    some = batch.select([11, 2, 7, 1])
    torch.testing.assert_close(policy(some).logps, policy(replace(some, traces=())).logps, rtol=0, atol=2e-5)


def test_as_many_groups_are_recorded_as_fit(tiny_folder):
    policy = make_policy(tiny_folder("llama"))
    engine = TransformersEngine.from_policy(policy, [], KEEP)
    assert engine.recorder is not None
    # The first two groups at their longest: prompts of 3 and 17 tokens, twice six rows of 13 tokens that are read.
    engine.recorder.limit = (3 + 17 + 2 * 6 * 13) * engine.recorder.token_bytes
    batch = write(engine)
    assert [trace is not None for trace in batch.traces] == [True] * 12 + [False] * 6
    assert sum(tensor.nbytes for tensor in engine.recorder.recording.storage.values()) <= engine.recorder.limit
    assert micro_batches(batch, 10_000, shared=True) == [list(range(12)), list(range(12, 18))]
    assert micro_batches(replace(batch, traces=()), 10_000, shared=True) == [list(range(18))]
    assert micro_batches(batch.select([]), 10_000, shared=True) == []
    recorded, mixed = batch.select(range(12)), batch.select(range(6, 18))
    for part in (recorded, mixed):
        torch.testing.assert_close(policy(part).logps, policy(replace(part, traces=())).logps, rtol=0, atol=2e-5)


def test_bytes_by_hand(tiny_folder):
    """Two layers of width 64 with 4 query and 2 key heads of 16, feed-forward 128: outputs of all seven products."""
    policy = make_policy(tiny_folder("llama"))
    config = policy.config
    heads, wide = config.num_attention_heads, config.intermediate_size
    size = config.hidden_size // heads
    each = heads * size + 2 * config.num_key_value_heads * size + config.hidden_size + 2 * wide + config.hidden_size
    engine = TransformersEngine.from_policy(policy, [], KEEP)
    assert engine.recorder.token_bytes == 4 * config.num_hidden_layers * each


def test_only_what_is_meant_for_the_update_is_kept(tiny_folder):
    engine = TransformersEngine.from_policy(make_policy(tiny_folder("llama")), [], KEEP)
    assert write(engine, for_update=False).traces == (None,) * 18
    assert engine.recorder.recording.tokens == 0
    batch = write(engine)
    before = engine.recorder.recording.tokens
    write(engine, for_update=False)
    assert engine.recorder.recording.tokens == before > 0
    assert all(trace.recording.alive for trace in batch.traces)


def test_nothing_is_taken_once_the_weights_have_changed(tiny_folder, taken):
    policy = make_policy(tiny_folder("llama"))
    engine = TransformersEngine.from_policy(policy, [], KEEP)
    batch = write(engine)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
    engine.push(policy.named_full_weights(), 1)
    assert not any(trace.recording.alive for trace in batch.traces)
    taken.clear()
    torch.testing.assert_close(policy(batch).logps, policy(replace(batch, traces=())).logps, rtol=0, atol=0)
    assert not taken
    # A push in the middle of a wave: what was written by two versions has no trace.
    prompt = tuple(batch.prompts[1].tolist())
    engine.submit(Request(prompt, Sampling(1), 2, 1, for_update=True))
    engine.submit(Request(prompt, Sampling(9), 2, 1, for_update=True))
    traces = []
    for _, completions in engine.completed():
        traces.append([completion.trace for completion in completions])
        if len(traces) == 1:
            engine.push(policy.named_full_weights(), 2)
    assert not traces[0][0].recording.alive
    assert traces[1] == [None, None]


def test_the_reference_is_never_replayed(tiny_folder, taken):
    policy = make_policy(tiny_folder("llama"))
    batch = write(TransformersEngine.from_policy(policy, [], KEEP))
    taken.clear()
    torch.testing.assert_close(policy.reference(batch), policy.reference(replace(batch, traces=())), rtol=0, atol=0)
    assert not taken


@pytest.mark.parametrize(
    "options",
    [{"gradient_checkpointing": True}, {"prefix_sharing": False}, {"lora_dropout": 0.1}, {"lora": False}],
    ids=str,
)
def test_where_it_cannot_work_nothing_is_recorded(tiny_folder, options):
    engine = TransformersEngine.from_policy(make_policy(tiny_folder("llama"), **options), [], KEEP)
    assert engine.recorder is None
    assert write(engine).traces == (None,) * 18


def test_a_model_that_changes_outputs_in_place_is_found_out(tiny_folder, caplog):
    policy = make_policy(tiny_folder("llama"))
    for layer in policy.transformer.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda module, inputs, output: output.mul_(3.0))
    with caplog.at_level(logging.WARNING):
        engine = TransformersEngine.from_policy(policy, [], KEEP)
    assert engine.recorder is None
    assert "updates compute all layers again" in caplog.text


def test_layers_that_do_not_put_out_one_row_a_token_are_left_out():
    """An expert that is given some tokens only, one that no token reaches, and a layer that is used twice."""
    layers = torch.nn.ModuleDict({name: torch.nn.Linear(4, 3) for name in ("every", "some", "none", "twice")})
    recorder = Recorder(layers, layers.keys(), 10**6)
    recorder.wanted = True
    recorder.begin([5, 2], [1, 1], 3)
    tokens = torch.randn(1, 7, 4)
    for limit in (10**6, 8 * recorder.token_bytes):
        recorder.forget()
        recorder.limit = limit
        recorder.begin([5, 2], [1, 1], 3)
        recorder.prompts([5, 2])
        (
            layers["every"](tokens),
            layers["some"](tokens[0, ::2]),
            layers["twice"](layers["twice"](tokens)[..., [0, 1, 2, 0]]),
        )
        recorder.step([1, 0])
        layers["every"](tokens[:, :2]), layers["some"](tokens[0, :2]), layers["none"](tokens[:, :2])
        index = torch.tensor([5, 0])
        taken = recorder.recording.take("every", index)
        assert taken is not None
        whole = torch.cat([layers["every"](tokens)[0], layers["every"](tokens[:, :2])[0]])
        torch.testing.assert_close(taken, whole[[5, 0]] if limit == 10**6 else whole[[8, 0]])
        assert [recorder.recording.take(name, index) for name in ("some", "none", "twice")] == [None] * 3


def test_a_trace_means_nothing_elsewhere(tiny_folder):
    batch = write(TransformersEngine.from_policy(make_policy(tiny_folder("llama")), [], KEEP))
    assert pickle.loads(pickle.dumps(batch.traces)) == (None,) * 18
