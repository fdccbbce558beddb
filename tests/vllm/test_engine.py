"""vLLM in this process: what it writes, with which weights, and that it cannot silently write with others."""

import numpy as np
import pytest
import torch
from vllm_helpers import (
    STOP,
    disturb,
    greedy_reference,
    largest_difference,
    make_policy,
    prompts,
    requests,
    scored,
    tokens_of,
)

from assay.errors import InputError, RunError
from assay.ranks import Ranks
from assay.records import Finish, VersionSpan
from assay.rollouts.canary import prove
from assay.rollouts.options import RolloutOptions
from assay.rollouts.protocol import Request, Sampling, generate

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

KINDS = [("tied", True), ("tied", False), ("untied", False)]
ROLLOUT = RolloutOptions(engine="vllm", kv_cache_gib=0.1)


@pytest.fixture(scope="module", params=KINDS, ids=["tied-lora", "tied-full", "untied-full"])
def started(request, folder_of):
    """(policy, engine) once for all tests of a kind; every test pushes what it needs."""
    from assay.rollouts.vllm_engine import VllmEngine

    kind, lora = request.param
    policy = make_policy(folder_of(kind), lora=lora)
    engine = VllmEngine.from_policy(policy, [STOP], ROLLOUT)
    yield policy, engine
    engine.close()


@pytest.fixture
def fresh(started):
    """The policy and engine with the policy's first weights; whatever a test changes is undone."""
    policy, engine = started
    kept = policy.trainable_state_dict()
    engine.push(policy.named_full_weights(), 0)
    yield policy, engine
    policy.load_trainable_state_dict(kept)


def test_completions_are_whole_and_say_what_they_are(fresh):
    _, engine = fresh
    asked = requests(n=4, tokens=60)
    results = generate(engine, asked)
    assert [len(group) for group in results] == [4, 4, 4]
    seen = {item.finish for group in results for item in group}
    assert seen == {Finish.STOP, Finish.LENGTH}
    for item in (item for group in results for item in group):
        (segment,) = item.segments
        assert (segment.token_ids[-1] == STOP) == (item.finish is Finish.STOP)
        assert STOP not in segment.token_ids[:-1]
        assert len(segment) == 60 or item.finish is Finish.STOP
        assert segment.sampling_logps.dtype == np.float32
        assert item.policy_versions == (VersionSpan(0, 0),)
    assert len({tuple(tokens) for tokens in tokens_of(results)}) > 9, "completions of a group must differ"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampling_log_probs_are_transformers(fresh, temperature):
    policy, engine = fresh
    asked = requests(temperature=temperature)
    results = generate(engine, asked)
    assert largest_difference(policy, asked, results, temperature) < 1e-4


def test_greedy_tokens_are_transformers(fresh):
    policy, engine = fresh
    asked = requests(n=1, tokens=12, temperature=0.0)
    for request, (item,) in zip(asked, generate(engine, asked), strict=True):
        assert item.segments[0].token_ids.tolist() == greedy_reference(policy, request.token_ids, 12)


def test_seeds_repeat_and_neighbours_share_nothing(fresh):
    _, engine = fresh
    first, again, other = (tokens_of(generate(engine, requests(seed=seed))) for seed in (40, 40, 41))
    assert first == again
    assert not {tuple(tokens) for tokens in first if len(tokens) > 4} & {tuple(tokens) for tokens in other}


def test_new_weights_write_what_transformers_writes_with_them(fresh):
    """The same prompts before and after, so that a stale prefix cache would show; and back again, to the bit."""
    policy, engine = fresh
    asked = requests()
    before = generate(engine, asked)
    disturb(policy)
    assert largest_difference(policy, asked, before) > 0.1
    engine.push(policy.named_full_weights(), 7)
    after = generate(engine, asked)
    assert largest_difference(policy, asked, after) < 1e-4
    assert after[0][0].policy_versions == (VersionSpan(0, 7),)
    greedy = requests(n=1, tokens=12, temperature=0.0)
    for request, (item,) in zip(greedy, generate(engine, greedy), strict=True):
        assert item.segments[0].token_ids.tolist() == greedy_reference(policy, request.token_ids, 12)


def test_requests_in_flight_go_on_with_the_new_weights_and_say_from_which_token(fresh):
    policy, engine = fresh
    prompt = prompts()[1]
    for seed in range(3):
        engine.submit(Request(prompt, Sampling(200), 1, seed=seed))
    for _ in range(20):
        engine._step()
    disturb(policy)
    engine.push(policy.named_full_weights(), 1)
    spanning = 0
    for _, (item,) in engine.completed():
        if len(item.policy_versions) == 2:
            spanning += 1
            start = item.policy_versions[1].start
            new = scored(policy, prompt, item.segments[0].token_ids)
            difference = np.abs(new - item.segments[0].sampling_logps)
            assert item.policy_versions == (VersionSpan(0, 0), VersionSpan(20, 1))
            assert difference[start:].max() < 1e-4
            assert difference[:start].mean() > 0.1
    assert spanning


def test_a_request_can_be_cancelled(fresh):
    _, engine = fresh
    first, second = (engine.submit(Request(prompts()[0], Sampling(100), 2, seed=1)) for _ in range(2))
    engine.cancel([first])
    assert [handle for handle, _ in engine.completed()] == [second]


def test_what_cannot_be_written_is_refused(fresh):
    _, engine = fresh
    with pytest.raises(InputError, match=r"512 positions"):
        engine.submit(Request(prompts()[1], Sampling(500), 1, seed=1))
    with pytest.raises(InputError, match="at least one"):
        engine.submit(Request((), Sampling(5), 1, seed=1))


def test_sleeping_and_waking_changes_nothing(fresh):
    """On a CPU vLLM cannot sleep; the calls must be harmless all the same."""
    _, engine = fresh
    first = tokens_of(generate(engine, requests()))
    engine.sleep()
    engine.wake()
    assert tokens_of(generate(engine, requests())) == first


def test_the_canary_passes_and_leaves_everything_as_it_was(fresh):
    policy, engine = fresh
    before = policy.trainable_state_dict()
    first = tokens_of(generate(engine, requests()))
    proof = prove(engine, policy, Ranks())
    assert proof.perturbed < 1e-4
    assert proof.restored < 1e-4
    assert proof.moved > 0.5
    assert all(torch.equal(before[name], weight) for name, weight in policy.trainable_state_dict().items())
    assert tokens_of(generate(engine, requests())) == first


def sabotage(monkeypatch, name, replacement):
    from assay.rollouts.vllm_worker import PolicyWorker

    monkeypatch.setattr(PolicyWorker, name, replacement)


def test_a_sync_that_does_nothing_is_caught_by_reading_back(fresh, monkeypatch):
    policy, engine = fresh
    for name in ("assay_load", "assay_load_adapter"):
        sabotage(monkeypatch, name, lambda self, weights: [*weights] and 0.0)
    disturb(policy)
    with pytest.raises(RunError, match=r"does not hold the weights of policy version 3: \d+ of \d+ .* norm"):
        engine.push(policy.named_full_weights(), 3)


def test_a_sync_that_does_nothing_is_caught_by_the_canary_even_if_reading_back_is_fooled(fresh, monkeypatch):
    policy, engine = fresh
    for name in ("assay_load", "assay_load_adapter"):
        sabotage(monkeypatch, name, lambda self, weights: [*weights] and 0.0)
    monkeypatch.setattr("assay.rollouts.vllm_engine.compare", lambda *arguments: 0)
    with pytest.raises(RunError, match=r"does not follow a large test change .* nats"):
        prove(engine, policy, Ranks())


def test_a_step_as_small_as_an_optimisers_is_seen(fresh, monkeypatch):
    """A step of 1e-6, which no log-prob would show."""
    policy, engine = fresh
    for name in ("assay_load", "assay_load_adapter"):
        sabotage(monkeypatch, name, lambda self, weights: [*weights] and 0.0)
    disturb(policy, size=1e-6)
    with pytest.raises(RunError, match="does not hold"):
        engine.push(policy.named_full_weights(), 3)


def test_a_tied_head_that_stays_behind_is_caught(fresh, monkeypatch):
    policy, engine = fresh
    if policy.has_adapters or not policy.config.tie_word_embeddings:
        pytest.skip("only whole weights of a tied model can leave the head behind")
    sabotage(monkeypatch, "assay_repack_tied_head", lambda self: None)
    disturb(policy)
    with pytest.raises(RunError, match=r"1 of 21 .* lm_head\.weight"):
        engine.push(policy.named_full_weights(), 3)
    monkeypatch.setattr("assay.rollouts.vllm_engine.compare", lambda *arguments: 0)
    with pytest.raises(RunError, match="does not follow"):
        prove(engine, policy, Ranks())


def test_every_weight_is_read_back(fresh):
    policy, engine = fresh
    if policy.has_adapters:
        found = engine.llm.collective_rpc("assay_adapter_digests")[0]
        expected = {
            f"{name}.{part}" for name, _ in policy.named_full_weights().adapters() for part in ("lora_A", "lora_B")
        }
    else:
        found = engine.llm.collective_rpc("assay_digests")[0]
        expected = {name for name, _ in policy.named_full_weights()} | {"lm_head.weight"}
    assert set(found) == expected


def test_adapters_are_not_given_as_plain_items(fresh):
    policy, engine = fresh
    if not policy.has_adapters:
        pytest.skip("whole weights may be any pairs")
    with pytest.raises(TypeError, match="named_full_weights"):
        engine.push(iter(policy.named_full_weights()), 1)
