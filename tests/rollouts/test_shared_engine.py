"""One engine, several callers: each gets its own answers, and nobody waits for an engine that is dead."""

import threading

import pytest

from assay.errors import RunError
from assay.rollouts.protocol import Request, Sampling, generate
from assay.rollouts.shared_engine import SharedEngine


def request(seed, n=1):
    return Request((1, 2), Sampling(6), n, seed)


@pytest.fixture
def shared(background):
    engine = SharedEngine(background.BackgroundEngine(tick=0.0005, slots=3))
    yield engine
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("assay-rollouts", "engine-of"))]


def test_every_caller_gets_its_own_answers(shared):
    """Two threads that ask, and one that uses it as an engine, all at once."""
    answers = {}

    def caller(name):
        futures = [(seed, shared.ask(request(1000 * name + seed, n=2))[1]) for seed in range(20)]
        answers[name] = {seed: future.result(timeout=30) for seed, future in futures}

    threads = [threading.Thread(target=caller, args=(name,)) for name in (1, 2)]
    for thread in threads:
        thread.start()
    own = generate(shared, [request(seed) for seed in range(20)])
    for thread in threads:
        thread.join()
    expected = generate(shared, [request(1000 * name + seed, n=2) for name in (1, 2) for seed in range(20)])
    found = [answers[name][seed] for name in (1, 2) for seed in range(20)]
    as_text = lambda groups: [[item.segments[0].token_ids.tolist() for item in group] for group in groups]  # noqa: E731
    assert as_text(found) == as_text(expected)
    assert as_text(own) == as_text(generate(shared, [request(seed) for seed in range(20)]))
    assert list(shared.completed()) == []


def test_a_push_lands_inside_a_completion(background):
    engine = background.BackgroundEngine(tick=0.02)
    shared = SharedEngine(engine)
    _, answer = shared.ask(Request((1,), Sampling(400), 4, 5))
    while not all(row.done > 1 for row in engine.open[0]):
        pass
    shared.pause()
    written = [row.done for row in engine.open[0]]
    shared.push([], 7)
    shared.resume()
    engine.tick = 0.0
    for completion, count in zip(answer.result(timeout=30), written, strict=True):
        spans = [(span.start, span.version) for span in completion.policy_versions]
        assert spans == ([(0, 0), (count, 7)] if completion.num_tokens > count else [(0, 0)])
    shared.close()


def test_an_error_reaches_everyone_who_waits_and_everyone_who_comes(background):
    shared = SharedEngine(background.BackgroundEngine(tick=0.001, fail_after=1))
    answers = [shared.ask(request(seed))[1] for seed in range(5)]
    failed = [answer.exception(timeout=30) for answer in answers]
    assert sum(error is not None for error in failed) == 4
    assert all(isinstance(error, ConnectionError) for error in failed if error)
    with pytest.raises(ConnectionError):
        shared.ask(request(9))
    shared.close()
    with pytest.raises(ConnectionError):
        shared.ask(request(9))


def test_an_engine_that_loses_a_request_is_an_error_not_a_wait(background):
    engine = background.BackgroundEngine(tick=0.05)
    shared = SharedEngine(engine)
    _, answer = shared.ask(Request((1,), Sampling(400), 4, 1))
    engine.cancel([0])
    with pytest.raises(RunError, match="without having finished 1 of its requests"):
        answer.result(timeout=30)
    shared.close()


def test_cancelled_requests_are_never_answered(background):
    engine = background.BackgroundEngine(tick=0.01)
    shared = SharedEngine(engine)
    handle, answer = shared.ask(Request((1,), Sampling(400), 2, 3))
    shared.cancel([handle])
    assert answer.cancelled()
    assert len(generate(shared, [request(4)])) == 1
    shared.close()
    with pytest.raises(RunError, match="closed"):
        shared.ask(request(5))
