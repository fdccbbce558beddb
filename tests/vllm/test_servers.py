"""Real `vllm serve` processes on loopback, started by `assay serve`: weights over HTTP, requests in flight, deaths."""

import signal
import threading
import time

import numpy as np
import pytest
from vllm_helpers import (
    STOP,
    disturb,
    kill_server,
    largest_difference,
    make_policy,
    prompts,
    requests,
    scored,
    serving,
    tokens_of,
    wait_for,
)

from assay.errors import InputError, RunError
from assay.policy import ModelOptions, load_policy
from assay.ranks import Ranks
from assay.records import VersionSpan
from assay.rollouts.build import build_engine
from assay.rollouts.canary import prove
from assay.rollouts.options import RolloutOptions
from assay.rollouts.protocol import Request, Sampling, generate
from assay.rollouts.vllm_options import VllmOptions

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def urls(folder_of, tmp_path_factory):
    with serving(folder_of("tied"), tmp_path_factory.mktemp("servers"), count=2) as servers:
        yield tuple(url for url, _ in servers)


def connect(policy, urls, **options):
    rollout = RolloutOptions(engine="vllm-server", vllm=VllmOptions(urls=urls, **options))
    return build_engine(policy, [STOP], rollout)


@pytest.fixture(params=[True, False], ids=["lora", "full"])
def fresh(request, urls, folder_of):
    """A policy and an engine over both servers; what a test changes is undone on the servers too."""
    policy = make_policy(folder_of("tied"), lora=request.param)
    kept = policy.trainable_state_dict()
    engine = connect(policy, urls)
    yield policy, engine
    policy.load_trainable_state_dict(kept)
    engine.push(policy.named_full_weights(), 0)
    engine.close()


def test_both_servers_write_what_transformers_would(fresh):
    policy, engine = fresh
    asked = requests(n=4)
    results = generate(engine, asked)
    assert largest_difference(policy, asked, results) < 1e-4
    assert results[0][0].policy_versions == (VersionSpan(0, 0),)
    assert all(server.load == 0 for server in engine.servers)


def test_seeds_repeat(fresh):
    _, engine = fresh
    first, again = (tokens_of(generate(engine, requests())) for _ in range(2))
    assert first == again
    assert len({tuple(tokens) for tokens in first}) > 7


def test_new_weights_arrive_on_every_server(fresh):
    policy, engine = fresh
    asked = requests()
    before = generate(engine, asked)
    disturb(policy)
    assert largest_difference(policy, asked, before) > 0.1
    engine.push(policy.named_full_weights(), 5)
    after = generate(engine, asked * 2)
    assert largest_difference(policy, asked * 2, after) < 1e-4
    assert {item.policy_versions for group in after for item in group} == {(VersionSpan(0, 5),)}
    proof = prove(engine, policy, Ranks())
    assert max(proof.perturbed, proof.restored) < 1e-4


def test_a_push_keeps_requests_in_flight_and_each_says_which_token_came_from_which_version(fresh):
    policy, engine = fresh
    prompt = prompts()[1]
    handles = {engine.submit(Request(prompt, Sampling(400), 4, seed=seed)) for seed in range(4)}
    time.sleep(1.0)
    disturb(policy)
    engine.push(policy.named_full_weights(), 1)
    results = dict(engine.completed())
    assert set(results) == handles
    spanning = [item for group in results.values() for item in group if len(item.policy_versions) == 2]
    assert spanning
    for item in spanning:
        (first, second), row = item.policy_versions, item.segments[0]
        assert (first, second.version) == (VersionSpan(0, 0), 1)
        difference = np.abs(scored(policy, prompt, row.token_ids) - row.sampling_logps)
        assert difference[second.start :].max() < 1e-4
        assert difference[: second.start].mean() > 0.1


def test_requests_start_at_once_and_may_be_added_while_others_are_awaited(fresh):
    _, engine = fresh
    first = engine.submit(Request(prompts()[0], Sampling(100), 2, seed=1))
    found = {}
    waiting = threading.Thread(target=lambda: found.update(engine.completed()))
    waiting.start()
    second = engine.submit(Request(prompts()[1], Sampling(4), 2, seed=2))
    waiting.join(60)
    assert set(found) == {first, second}


def test_a_pause_of_the_callers_own_holds_and_survives_a_push(fresh):
    policy, engine = fresh
    engine.pause()
    handle = engine.submit(Request(prompts()[0], Sampling(8), 1, seed=1))
    engine.push(policy.named_full_weights(), 1)
    time.sleep(1.0)
    assert not engine._results, "a paused server wrote"
    engine.resume()
    ((done, (item,)),) = engine.completed()
    assert (done, item.policy_versions) == (handle, (VersionSpan(0, 1),))


def test_cancelled_requests_stop_on_the_server(fresh):
    _, engine = fresh
    handles = [engine.submit(Request(prompts()[0], Sampling(400), 8, seed=seed)) for seed in range(2)]
    time.sleep(0.3)
    engine.cancel(handles)
    assert list(engine.completed()) == []
    wait_for(lambda: all(server.load == 0 for server in engine.servers), 5)


def test_a_sync_that_does_nothing_ends_the_run_with_numbers(fresh, monkeypatch):
    policy, engine = fresh
    monkeypatch.setattr(engine.transfer, "send", lambda server: None)
    disturb(policy, size=1e-6)
    with pytest.raises(RunError, match=r"127\.0\.0\.1:\d+ does not hold the weights of policy version 3: .* norm"):
        engine.push(policy.named_full_weights(), 3)


def test_another_model_is_refused_before_anything_is_sent(urls, folder_of):
    wide = load_policy(ModelOptions(path=str(folder_of("tied")), dtype="float32", lora_rank=12), device="cpu")
    with pytest.raises(InputError, match=r"rank 8 at most, and model\.lora_rank is 12"):
        connect(wide, urls)
    other = make_policy(folder_of("untied"), lora=True)
    with pytest.raises(InputError, match=r"other base weights than model\.path"):
        connect(other, urls)


@pytest.fixture(scope="module")
def doomed(folder_of, tmp_path_factory):
    with serving(folder_of("tied"), tmp_path_factory.mktemp("doomed"), count=3) as servers:
        yield servers


def test_servers_die_one_by_one(doomed, folder_of, caplog):
    """Killed in mid-generation: the others take over. Hanging: given up after the limit. The last: one clear line."""
    policy = make_policy(folder_of("tied"), lora=True)
    engine = connect(policy, tuple(url for url, _ in doomed), hang_timeout_s=4.0)
    asked = [Request(prompts()[0], Sampling(300), 8, seed=seed) for seed in range(9)]
    calm = tokens_of(generate(engine, asked))

    def during_generation(pid, number):
        handles = [engine.submit(request) for request in asked]
        time.sleep(0.5)
        kill_server(pid, number)
        done = dict(engine.completed())
        return [done[handle] for handle in handles]

    (first, first_pid), (second, second_pid), (third, third_pid) = doomed
    assert tokens_of(during_generation(first_pid, signal.SIGKILL)) == calm
    assert f"the vLLM server {first} is given up" in caplog.text
    assert "3 requests start anew on 2 other servers" in caplog.text
    disturb(policy)
    engine.push(policy.named_full_weights(), 1)
    assert largest_difference(policy, asked, during_generation(second_pid, signal.SIGSTOP)) < 1e-4
    assert f"the vLLM server {second} is given up (no answer to its health check for 4 s)" in caplog.text
    kill_server(second_pid, signal.SIGCONT)
    with pytest.raises(RunError, match=r"no vLLM server is left") as caught:
        during_generation(third_pid, signal.SIGKILL)
    assert all(url in str(caught.value) for url in (first, second, third))
    assert "assay serve RECIPE" in str(caught.value)
    with pytest.raises(RunError, match="no vLLM server is left"):
        engine.push(policy.named_full_weights(), 2)
    engine.close()
