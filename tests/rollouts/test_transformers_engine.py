"""The transformers engine: the right distribution, the same bits, and honest bookkeeping."""

import threading

import numpy as np
import pytest
import torch
from scipy import stats

from assay.errors import InputError
from assay.policy import ModelOptions, ScoringBatch, load_policy
from assay.policy.tiny import ARCHITECTURES
from assay.records import Finish
from assay.rollouts import Request, Sampling, TransformersEngine, TransformersEngineOptions, generate
from assay.rollouts.decoders import GeneralDecoder
from assay.rollouts.shared_cache import SharedCacheDecoder

STOP = 259


def make_policy(folder, **options):
    options = {"dtype": "float32", **options}
    policy = load_policy(ModelOptions(path=str(folder), **options), device="cpu")
    disturb(policy)
    return policy


def disturb(policy, seed=5):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def make_requests(sampling, *, n=5, lengths=(3, 17, 1)):
    random = np.random.default_rng(0)
    prompts = [tuple(random.integers(0, 256, length).tolist()) for length in lengths]
    return [Request(prompt, sampling, n, seed=40 + number) for number, prompt in enumerate(prompts)]


def flat(results):
    return [completion.segments[0] for group in results for completion in group]


def tokens_of(results):
    return [segment.token_ids.tolist() for segment in flat(results)]


def score(policy, requests, results, temperature=1.0):
    """The policy's log-probs and entropies of what the engine wrote: two lists of arrays."""
    batch = ScoringBatch(
        tuple(np.array(request.token_ids) for request in requests),
        tuple(segment.token_ids for segment in flat(results)),
        tuple(number for number, group in enumerate(results) for _ in group),
    )
    with torch.no_grad():
        outputs = policy(batch, temperature=temperature, entropies="value")
    lengths = [len(row) for row in batch.rows]
    return tuple([x[:n].numpy() for x, n in zip(side, lengths)] for side in (outputs.logps, outputs.entropies))


@pytest.mark.parametrize("decoder", ["chosen", "general"])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_sampler_and_policy_agree_on_every_token(tiny_folder, architecture, decoder):
    policy = make_policy(tiny_folder(architecture))
    engine = TransformersEngine.from_policy(policy, [STOP])
    assert isinstance(engine.decoder, GeneralDecoder if architecture == "gemma2" else SharedCacheDecoder)
    if decoder == "general":
        engine.decoder = GeneralDecoder(engine.model, engine.decoder.head.rule)
    # More stop tokens than one, so that rows finish at different steps and leave the batch.
    requests = [
        Request(r.token_ids, r.sampling, r.n, r.seed, stop_token_ids=tuple(range(0, 260, 9)))
        for r in make_requests(Sampling(14, temperature=0.8))
    ]
    results = generate(engine, requests)
    logps, entropies = score(policy, requests, results, temperature=0.8)
    assert len({len(segment) for segment in flat(results)}) > 3
    for segment, expected in zip(flat(results), logps):
        np.testing.assert_allclose(segment.sampling_logps, expected, rtol=0, atol=5e-5)
    for completion, expected in zip((c for group in results for c in group), entropies):
        assert completion.tags["sampling_entropy"] == pytest.approx(expected.mean(), abs=5e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3", "gpt2", "mistral"])
def test_greedy_tokens_are_those_of_transformers_generate(tiny_folder, architecture):
    policy = make_policy(tiny_folder(architecture), lora=False)
    engine = TransformersEngine.from_policy(policy, [STOP])
    requests = make_requests(Sampling(20, temperature=0.0), n=2)
    results = generate(engine, requests)
    for request, group in zip(requests, results):
        plain = policy.transformer.generate(
            torch.tensor([request.token_ids]), max_new_tokens=20, do_sample=False, eos_token_id=STOP
        )[0, len(request.token_ids) :]
        for completion in group:
            assert completion.segments[0].token_ids.tolist() == plain.tolist()


def test_forked_cache_draws_from_the_models_distribution(tiny_folder):
    """Chi-square over all two-token completions of a ten-token vocabulary, against the enumerated probabilities."""
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    policy = make_policy(tiny_folder("llama", vocab_size=10, **ids))
    engine = TransformersEngine.from_policy(policy, [])
    prompt, count = (3, 4, 5), 8_000
    (group,) = generate(engine, [Request(prompt, Sampling(2), count, seed=1)])
    observed = np.zeros((10, 10))
    for completion in group:
        observed[tuple(completion.segments[0].token_ids)] += 1
    with torch.no_grad():
        first = policy.transformer(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        second = policy.transformer(torch.tensor([[*prompt, token] for token in range(10)])).logits[:, -1].softmax(-1)
    expected = count * (first[:, None] * second).double().numpy()
    expected *= count / expected.sum()
    rare = expected < 5
    assert (~rare).sum() > 50
    cells = [np.append(table[~rare], table[rare].sum()) for table in (observed, expected)]
    assert stats.chisquare(*cells).pvalue > 1e-3


def test_same_requests_give_the_same_bits(tiny_folder):
    results = []
    for _ in range(2):
        engine = TransformersEngine.from_policy(make_policy(tiny_folder("qwen3")), [STOP])
        results.append(generate(engine, make_requests(Sampling(12))))
    for first, second in zip(flat(results[0]), flat(results[1])):
        assert np.array_equal(first.token_ids, second.token_ids)
        assert np.array_equal(first.sampling_logps, second.sampling_logps)


def test_a_completion_does_not_depend_on_its_company(tiny_folder):
    policy = make_policy(tiny_folder("llama"))
    requests = make_requests(Sampling(12))
    together = tokens_of(generate(TransformersEngine.from_policy(policy, [STOP]), requests))
    engine = TransformersEngine.from_policy(policy, [STOP])
    apart = [tokens for request in reversed(requests) for tokens in tokens_of(generate(engine, [request]))[::-1]][::-1]
    assert together == apart
    small = TransformersEngine.from_policy(policy, [STOP], TransformersEngineOptions(max_rows=2))
    assert tokens_of(generate(small, requests)) == together
    poor = TransformersEngine.from_policy(policy, [STOP], TransformersEngineOptions(kv_cache_gib=1e-6))
    assert tokens_of(generate(poor, requests)) == together


def test_completions_of_a_prompt_and_seeds_differ(tiny_folder):
    engine = TransformersEngine.from_policy(make_policy(tiny_folder("llama")), [])
    requests = [Request((1, 2, 3), Sampling(16), 6, seed) for seed in (0, 1)]
    assert len({tuple(tokens) for tokens in tokens_of(generate(engine, requests))}) == 12


def test_finish_says_why(tiny_folder):
    engine = TransformersEngine.from_policy(make_policy(tiny_folder("llama")), range(0, 260, 12))
    results = generate(engine, make_requests(Sampling(10), n=8))
    seen = set()
    for completion in (c for group in results for c in group):
        (segment,) = completion.segments
        last = int(segment.token_ids[-1])
        stopped = last % 12 == 0
        assert completion.finish is (Finish.STOP if stopped else Finish.LENGTH)
        assert stopped or len(segment) == 10
        assert not any(token % 12 == 0 for token in segment.token_ids[:-1])
        assert segment.loss_mask.all()
        assert completion.content == ""
        seen.add(completion.finish)
    assert seen == {Finish.STOP, Finish.LENGTH}


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_training_reaches_the_sampler_by_push_alone(tiny_folder, lora):
    policy = make_policy(tiny_folder("llama"), lora=lora)
    engine = TransformersEngine.from_policy(policy, [STOP])
    requests = make_requests(Sampling(8))
    before = generate(engine, requests)
    disturb(policy, seed=6)
    assert tokens_of(generate(engine, requests)) == tokens_of(before)
    engine.push(policy.named_full_weights(), version=3)
    after = generate(engine, requests)
    logps, _ = score(policy, requests, after)
    for segment, expected in zip(flat(after), logps):
        np.testing.assert_allclose(segment.sampling_logps, expected, rtol=0, atol=5e-5)
    assert {span for group in after for c in group for span in c.policy_versions} == {after[0][0].policy_versions[0]}
    assert after[0][0].policy_versions[0].version == 3
    trained = {name: p.detach().clone() for name, p in policy.named_parameters()}
    engine.push(((name, tensor * 0) for name, tensor in list(policy.named_full_weights())), version=4)
    assert all(torch.equal(p, trained[name]) for name, p in policy.named_parameters())


def test_frozen_weights_are_not_copied(tiny_folder):
    policy = make_policy(tiny_folder("llama"))
    engine = TransformersEngine.from_policy(policy, [STOP])
    policy_memory = {p.data_ptr() for p in policy.parameters()}
    names = {name for name, p in engine.model.named_parameters() if p.data_ptr() in policy_memory}
    assert names == set(policy.frozen_weight_names())
    assert "model.embed_tokens.weight" in names
    assert not any("proj" in name for name in names)


def test_weights_may_change_inside_a_completion(tiny_folder):
    policy = make_policy(tiny_folder("llama"))
    engine = TransformersEngine.from_policy(policy, [])
    engine.submit(Request((1, 2), Sampling(3), 2, seed=0))
    engine.submit(Request((5, 6, 7), Sampling(9), 2, seed=1))
    completed = engine.completed()
    _, short = next(completed)
    disturb(policy, seed=7)
    engine.push(policy.named_full_weights(), version=8)
    _, long = next(completed)
    assert [(s.start, s.version) for s in short[0].policy_versions] == [(0, 0)]
    assert [(s.start, s.version) for s in long[0].policy_versions] == [(0, 0), (3, 8)]
    assert list(completed) == []


def test_a_float32_copy_of_the_head_does_not_outlive_a_push(tiny_folder):
    """In the middle of a wave, with all weights trained and the head multiplied in float32."""
    policy = make_policy(tiny_folder("llama"), lora=False, dtype="bfloat16", fp32_lm_head=True)
    engine = TransformersEngine.from_policy(policy, [])
    engine.submit(Request((1, 2), Sampling(2), 1, seed=0))
    engine.submit(Request((5, 6, 7), Sampling(4), 1, seed=1))
    completed = engine.completed()
    next(completed)
    with torch.no_grad():
        policy.transformer.get_output_embeddings().weight.zero_()
    engine.push(policy.named_full_weights(), version=1)
    _, [late] = next(completed)
    uniform = -np.log(policy.config.vocab_size)
    assert late.segments[0].sampling_logps[:2] != pytest.approx(uniform, abs=1e-5)
    assert late.segments[0].sampling_logps[2:] == pytest.approx(uniform, abs=1e-5)


def test_cancelled_requests_never_come_back(tiny_folder):
    engine = TransformersEngine.from_policy(make_policy(tiny_folder("llama")), [])
    handles = [engine.submit(Request((1, 2), Sampling(length), 2, seed=0)) for length in (2, 6, 4, 3)]
    engine.cancel([handles[3]])
    completed = engine.completed()
    assert next(completed)[0] == handles[0]
    engine.cancel([handles[1]])
    assert [handle for handle, _ in completed] == [handles[2]]
    assert list(engine.completed()) == []


def test_pause_stops_before_the_next_token(tiny_folder):
    engine = TransformersEngine.from_policy(make_policy(tiny_folder("llama")), [])
    engine.submit(Request((1, 2), Sampling(5), 1, seed=0))
    engine.pause()
    done = threading.Event()
    worker = threading.Thread(target=lambda: (list(engine.completed()), done.set()))
    worker.start()
    assert not done.wait(0.2)
    engine.resume()
    worker.join(20)
    assert done.is_set()


def test_policy_keeps_its_mode_and_gradients(tiny_folder):
    policy = make_policy(tiny_folder("llama"), lora_dropout=0.3)
    policy.train()
    engine = TransformersEngine.from_policy(policy, [STOP])
    generate(engine, make_requests(Sampling(4)))
    assert policy.training
    assert not engine.model.training
    assert all(p.grad is None for p in policy.parameters())
    assert {p.requires_grad for p in policy.parameters()} == {True, False}


def test_unsupported_model_falls_back_and_says_so(tiny_folder, caplog):
    TransformersEngine.from_policy(make_policy(tiny_folder("gemma2")), [STOP])
    assert any("cached once per completion" in message and "softcap" in message for message in caplog.messages)


def test_impossible_requests_are_refused(tiny_folder):
    engine = TransformersEngine.from_policy(make_policy(tiny_folder("llama")), [STOP])
    with pytest.raises(InputError, match="exceed the model's 512 positions"):
        engine.submit(Request((1,) * 500, Sampling(13), 1, seed=0))
    with pytest.raises(InputError, match="at least one prompt token"):
        engine.submit(Request((), Sampling(13), 1, seed=0))
    with pytest.raises(KeyError):
        engine.push([("no.such.weight", torch.zeros(1))], version=1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_models_sample(tiny_folder, dtype):
    policy = make_policy(tiny_folder("llama"), dtype=dtype)
    assert {p.dtype for p in policy.parameters() if p.requires_grad} == {torch.float32}
    engine = TransformersEngine.from_policy(policy, [STOP])
    requests = make_requests(Sampling(8))
    results = generate(engine, requests)
    logps, _ = score(policy, requests, results)
    difference = np.concatenate([s.sampling_logps - e for s, e in zip(flat(results), logps)])
    assert np.abs(difference).mean() < 0.1
