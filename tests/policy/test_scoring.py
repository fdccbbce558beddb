"""Every fast way of scoring equals the plain one: transformers' own forward, one sequence at a time, log_softmax."""

import contextlib

import numpy as np
import pytest
import torch
from peft.tuners import lora

from assay.policy import ModelOptions, ScoringBatch, load_policy, structured
from assay.policy.fused_lora import FusedLoraLinear
from assay.policy.tiny import ARCHITECTURES

BATCHES = {
    "two groups": ([7, 12], [3, 1, 6, 2, 9], [0, 0, 1, 1, 1]),
    "one-token prompts and rows": ([1, 1], [1, 1, 4], [0, 1, 1]),
    "rows out of order, a prompt longer than the window": ([15, 2, 4], [8, 2, 5, 1], [2, 0, 1, 0]),
    "a group of one": ([5], [10], [0]),
}


def make_batch(name):
    random = np.random.default_rng(3)
    prompts, rows, row_prompt = BATCHES[name]
    draw = lambda sizes: tuple(random.integers(0, 260, size) for size in sizes)  # noqa: E731
    return ScoringBatch(draw(prompts), draw(rows), tuple(row_prompt))


def make_policy(folder, *, dtype=torch.float64, seed=0, **options):
    policy = load_policy(ModelOptions(path=str(folder), dtype="float32", **options), device="cpu", seed=seed)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name or "value_head" in name:
                parameter.normal_(0.0, 0.05, generator=generator)
    return make_exact(policy.double()) if dtype == torch.float64 else policy


def make_exact(model):
    """transformers' norms and expert kernels compute in float32 at most; in a float64 test they are to be exact."""
    model.config._experts_implementation = "eager"
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            offset = 1.0 if type(module).__name__.startswith("Gemma") else 0.0
            eps = getattr(module, "variance_epsilon", None) or module.eps

            def forward(x, module=module, offset=offset, eps=eps):
                return (offset + module.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

            module.forward = forward
    return model


@contextlib.contextmanager
def pefts_own_layers(policy):
    fused = [module for module in policy.modules() if type(module) is FusedLoraLinear]
    for module in fused:
        module.__class__ = lora.Linear
    yield
    for module in fused:
        module.__class__ = FusedLoraLinear


def truth(policy, batch, temperature):
    """[B, T] log-probs and entropies, sequence by sequence, through the model's whole forward and all its logits."""
    logps, entropies = torch.zeros(batch.shape, dtype=torch.float64), torch.zeros(batch.shape, dtype=torch.float64)
    for number, (row, prompt) in enumerate(zip(batch.rows, batch.row_prompt)):
        ids = torch.tensor(np.concatenate([batch.prompts[prompt], row]))
        distribution = (policy.transformer(ids[None]).logits[0, :-1] / temperature).log_softmax(-1)[-len(row) :]
        logps[number, : len(row)] = distribution.gather(1, ids[-len(row) :, None])[:, 0]
        entropies[number, : len(row)] = -(distribution.exp() * distribution).sum(-1)
    return logps, entropies


def gradients(policy, loss):
    policy.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.requires_grad}


def compare(policy, batch, tolerance, temperature=0.7):
    """Log-probs, entropies, and the gradients of a random linear functional of both."""
    weights = torch.randn(2, *batch.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights *= torch.from_numpy(batch.mask())
    with pefts_own_layers(policy):
        logps, entropies = truth(policy, batch, temperature)
        expected = gradients(policy, (weights[0] * logps + weights[1] * entropies).sum())
    outputs = policy(batch, temperature=temperature, entropies="grad")
    found = gradients(policy, (weights[0] * outputs.logps + weights[1] * outputs.entropies).sum())
    torch.testing.assert_close(outputs.logps.double(), logps, rtol=0, atol=tolerance)
    torch.testing.assert_close(outputs.entropies.double(), entropies, rtol=0, atol=tolerance)
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        worst = float((found[name] - gradient).abs().max()) / scale
        assert worst <= tolerance, f"gradient of {name} is off by {worst:.2g}"


def test_an_adapted_layer_takes_no_tokens_too(tiny_folder):
    """An expert that the router gave none."""
    layer = make_policy(tiny_folder("llama")).transformer.model.layers[0].mlp.gate_proj
    assert type(layer) is FusedLoraLinear
    none = torch.zeros(0, layer.in_features, dtype=layer.weight.dtype, requires_grad=True)
    out = layer(none)
    out.sum().backward()
    assert (out.shape, none.grad.shape) == ((0, layer.out_features), none.shape)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_shared_prefix_scoring_equals_plain_forward(tiny_folder, architecture, lora):
    policy = make_policy(tiny_folder(architecture), lora=lora)
    assert policy.shares_prefixes == (architecture != "gemma2")
    # The router's softmax is float32 whatever the model's dtype.
    tolerance = 1e-6 if architecture == "qwen3_moe" else 1e-9
    for name in BATCHES:
        compare(policy, make_batch(name), tolerance)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3_moe"])
def test_padded_scoring_equals_plain_forward(tiny_folder, architecture):
    policy = make_policy(tiny_folder(architecture), prefix_sharing=False)
    for name in BATCHES:
        compare(policy, make_batch(name), 1e-6 if architecture == "qwen3_moe" else 1e-9)


@pytest.mark.parametrize(
    "options", [{"lora_rank": 1}, {"gradient_checkpointing": True}, {"fp32_lm_head": True}], ids=str
)
def test_options_do_not_change_the_numbers(tiny_folder, options):
    compare(make_policy(tiny_folder("qwen3"), **options), make_batch("two groups"), 1e-9)
    full = {"gradient_checkpointing": True, "lora": False}
    compare(make_policy(tiny_folder("llama"), **full), make_batch("two groups"), 1e-9)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral"])
def test_float32_agrees_to_single_precision(tiny_folder, architecture):
    compare(make_policy(tiny_folder(architecture), dtype=torch.float32), make_batch("two groups"), 1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_blocks_of_queries_do_not_change_the_gradient(tiny_folder, monkeypatch, architecture):
    monkeypatch.setattr(structured, "_BLOCK_ELEMENTS", 1)
    random = np.random.default_rng(4)
    prompts, rows = (tuple(random.integers(0, 260, size) for size in sizes) for sizes in ((37, 50), (20, 35, 18, 3)))
    compare(make_policy(tiny_folder(architecture)), ScoringBatch(prompts, rows, (0, 0, 1, 1)), 1e-9)


def test_sub_groups_and_micro_batches_do_not_change_the_gradient(tiny_folder):
    policy = make_policy(tiny_folder("llama"))
    batch = make_batch("two groups")
    whole = gradients(policy, policy(batch).logps.sum())
    policy.zero_grad()
    for part in ([0], [1, 3], [4, 2]):
        policy(batch.select(part)).logps.sum().backward()
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, whole[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("critic", ["none", "head", "model"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_empty_batch_touches_every_trainable_parameter_with_zero(tiny_folder, lora, critic):
    policy = make_policy(tiny_folder("llama"), lora=lora, critic=critic)
    outputs = policy(ScoringBatch((), (), ()), entropies="grad")
    assert outputs.logps.shape == (0, 1)
    loss = outputs.logps.sum() + outputs.entropies.sum()
    if critic != "none":
        loss = loss + outputs.values.sum()
    for gradient in gradients(policy, loss).values():
        assert not gradient.any()


def test_entropies_as_values_leave_the_gradient_alone(tiny_folder):
    policy = make_policy(tiny_folder("llama"))
    batch = make_batch("two groups")
    plain = gradients(policy, policy(batch).logps.sum())
    outputs = policy(batch, entropies="value")
    assert not outputs.entropies.requires_grad
    for name, gradient in gradients(policy, outputs.logps.sum()).items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("critic", ["head", "model"])
def test_values_belong_to_the_state_before_each_token(tiny_folder, critic):
    policy = make_policy(tiny_folder("llama"), critic=critic)
    batch = make_batch("two groups")
    values = policy(batch).values
    trunk = policy.transformer.base_model if critic == "head" else policy.critic
    for number, (row, prompt) in enumerate(zip(batch.rows, batch.row_prompt)):
        ids = torch.tensor(np.concatenate([batch.prompts[prompt], row[:-1]]))
        states = trunk(ids[None])[0][0, -len(row) :]
        torch.testing.assert_close(values[number, : len(row)], policy.value_head(states)[:, 0], rtol=0, atol=1e-9)
    assert not values[~torch.from_numpy(batch.mask())].any()


def test_critic_trunk_learns_apart_from_the_policy_and_shares_frozen_memory(tiny_folder):
    policy = make_policy(tiny_folder("llama"), critic="model")
    policy(make_batch("two groups")).values.sum().backward()
    learns = {name for name, p in policy.named_parameters() if p.grad is not None and p.grad.any()}
    assert learns
    assert all(name.startswith(("critic.", "value_head.")) for name in learns)
    frozen = {p.data_ptr() for p in policy.model.parameters() if not p.requires_grad}
    assert all(p.requires_grad or p.data_ptr() in frozen for p in policy.critic.parameters())


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_reference_stays_while_the_policy_learns(tiny_folder, lora):
    policy = load_policy(ModelOptions(path=str(tiny_folder("llama")), lora=lora, dtype="float32"), device="cpu")
    policy.keep_reference()
    batch = make_batch("two groups")
    start = policy(batch).logps.detach()
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        (-policy(batch).logps.sum()).backward()
        optimizer.step()
    assert (policy(batch).logps - start).abs().max() > 0.05
    reference = policy.reference(batch)
    assert not reference.requires_grad
    torch.testing.assert_close(reference, start, rtol=0, atol=2e-6)
    assert policy.reference(ScoringBatch((), (), ())).shape == (0, 1)


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "gpt2"])
def test_full_weights_are_the_adapted_model(tiny_folder, tmp_path, architecture):
    import transformers

    policy = make_policy(tiny_folder(architecture))
    policy.save_merged(tmp_path)
    plain = make_exact(transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64))
    tolerance = 1e-6 if architecture == "qwen3_moe" else 1e-9
    ids = torch.arange(20)[None]
    torch.testing.assert_close(plain(ids).logits, policy.transformer(ids).logits, rtol=0, atol=tolerance)
    with policy.model.disable_adapter():
        assert (plain(ids).logits - policy.transformer(ids).logits).abs().max() > 0.01
    names = [name for name, _ in policy.named_full_weights()]
    assert len(names) == len(set(names)) == len(list(plain.named_parameters()))


def test_trainable_state_round_trips_exactly(tiny_folder):
    from assay.errors import InputError

    policy = make_policy(tiny_folder("llama"), critic="head")
    state = policy.trainable_state_dict()
    other = make_policy(tiny_folder("llama"), critic="head", seed=9)
    other.load_trainable_state_dict(state)
    batch = make_batch("two groups")
    assert torch.equal(other(batch).logps, policy(batch).logps)
    state.popitem()
    with pytest.raises(InputError, match="do not fit"):
        other.load_trainable_state_dict(state)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_base_trains_float32_adapters(tiny_folder, dtype):
    exact = make_policy(tiny_folder("llama"), dtype=torch.float32)
    half = load_policy(ModelOptions(path=str(tiny_folder("llama")), dtype=dtype), device="cpu")
    half.load_trainable_state_dict(exact.trainable_state_dict())
    assert sum(type(module) is FusedLoraLinear for module in half.modules()) == 14
    batch = make_batch("two groups")
    expected = gradients(exact, exact(batch).logps.sum())
    outputs = half(batch)
    assert outputs.logps.dtype == torch.float32
    found = gradients(half, outputs.logps.sum())
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0)
        assert cosine > 0.98, f"{name}: {cosine}"


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_full_fine_tuning_in_half_precision_keeps_float32_weights(tiny_folder, dtype):
    policy = load_policy(ModelOptions(path=str(tiny_folder("llama")), lora=False, dtype=dtype), device="cpu")
    exact = load_policy(ModelOptions(path=str(tiny_folder("llama")), lora=False, dtype="float32"), device="cpu")
    batch = make_batch("two groups")
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    found, expected = (gradients(p, p(batch).logps.sum()) for p in (policy, exact))
    for name, gradient in found.items():
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0)
        assert cosine > 0.98, f"{name}: {cosine}"


def test_fused_experts_get_adapters(tiny_folder):
    policy = make_policy(tiny_folder("qwen3_moe"))
    adapted = {name for name in policy.trainable_state_dict() if ".experts." in name}
    assert adapted
    merged = dict(policy.named_full_weights())
    for part in ("gate_up_proj", "down_proj"):
        name = f"model.layers.0.mlp.experts.{part}"
        assert not torch.equal(merged[name], policy.transformer.get_parameter(plain_name(policy, name)))


def plain_name(policy, name):
    (found,) = (n for n, _ in policy.transformer.named_parameters() if n.replace(".base_layer", "") == name)
    return found
