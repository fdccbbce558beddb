"""Whole runs with rollouts ahead of the trainer, over an engine in a thread: the loop, the overlap, the ends."""

import json
import threading
import time
import traceback

import pyarrow.parquet as pq
import pytest

import assay
from assay.errors import InputError

ROWS = [{"question": f"Say {'x' * n}.", "answer": "x"} for n in range(1, 9)]


def letters(completions, **kwargs):
    return [len(set(completion[-1]["content"])) / 8 for completion in completions]


def slow_letters(completions, **kwargs):
    time.sleep(0.001 * (len(completions[0][-1]["content"]) % 5) ** 2)
    return letters(completions)


EARLIER = set()


@pytest.fixture(autouse=True)
def earlier_threads():
    """Other tests of this process may have left threads behind, such as a reward that was given up."""
    EARLIER.clear()
    EARLIER.update(threading.enumerate())


def threads_of_a_run():
    """Names of threads that are left; on a busy machine one that was told to end takes a moment to do so."""
    names = ("assay-", "engine-of-a-test")
    deadline = time.monotonic() + 10
    while True:
        left = [thread.name for thread in set(threading.enumerate()) - EARLIER if thread.name.startswith(names)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


@pytest.fixture
def run(background, tiny_folder, tmp_path, monkeypatch):
    """`run(**keys)`: a run with `engine` (by default a quick one) in place of a server; its directory."""

    servers = []

    def start(server=None, **keys):
        server = server or background.BackgroundEngine()
        servers.append(server)
        monkeypatch.setattr("assay.api.session.build_engine", lambda *_: server)
        settings = {
            "model": str(tiny_folder("llama")), "dataset": ROWS, "rewards": [letters], "preset": "grpo", "name": "run",
            "output_dir": str(tmp_path), "engine": "vllm-server", "num_generations": 2, "max_completion_length": 6,
            "prompts_per_step": 2, "steps": 8, "learning_rate": 1e-3, "dtype": "float32", "lora_rank": 2,
            "console": "quiet", "heldout_size": 0, "max_staleness": 1, "workers": 2, "policy": "uniform",
        }  # fmt: skip
        return assay.train(**(settings | keys))

    yield start
    for server in servers:
        server.close()


def rows_of(directory):
    """All completions in the order of the steps, as (step, draw, versions)."""
    rows = []
    for path in sorted((directory / "rollouts").glob("*.parquet")):
        table = pq.read_table(path, columns=["step", "draw", "policy_versions"]).to_pylist()
        rows += [(row["step"], row["draw"], [span["version"] for span in row["policy_versions"]]) for row in table]
    return rows


def test_two_hundred_steps_with_a_slow_verifier_keep_the_bound(run, background):
    class Uneven(background.BackgroundEngine):
        """Quick, to get ahead; slow for ten requests in a hundred, so that weights arrive inside completions."""

        tick = property(lambda self: 0.05 if len(self.seen) % 100 >= 90 else 0.002, lambda self, value: None)

    engine = Uneven(slots=3)
    result = run(engine, steps=200, max_staleness=2, rewards=[slow_letters], checkpoint_every=100)
    lines = [line for line in result.metrics() if "staleness/max" in line]
    assert len(lines) == 200
    assert max(line["staleness/max"] for line in lines) == 2, "the run is ahead, and never too far"
    rows = rows_of(result.directory)
    assert [draw for _, draw, _ in rows][::2] == list(range(400)), "each group once, in the order of the draws"
    assert all(step - 1 - min(versions) <= 2 for step, _, versions in rows)
    assert any(len(versions) > 1 for _, _, versions in rows), "weights arrive inside completions"
    assert all(versions == sorted(set(versions)) for _, _, versions in rows)
    assert engine.pushes == list(range(201))
    last = lines[-1]
    assert last["pipeline/admitted"] == last["pipeline/trained"] == 400
    assert last["pipeline/waiting"] == last["pipeline/in_flight"] == 0
    for line in lines:
        there = line["pipeline/trained"] + line["pipeline/waiting"] + line["pipeline/in_flight"]
        assert line["pipeline/admitted"] == there
    assert any(line.get("time/wait_for_rollouts", 0) > 0 for line in lines)
    assert threads_of_a_run() == []


@pytest.mark.parametrize(
    "keys",
    [
        {"preset": "dapo", "dynamic_sampling": True, "num_generations": 4},
        {"preset": "dapo", "dynamic_sampling": True, "num_generations": 4, "screen": 2, "policy": "thompson"},
        {"preset": "gspo", "steps_per_generation": 2, "max_staleness": 3, "weight_sync_steps": 2, "steps": 12},
        {"num_iterations": 2, "preset": "cispo"},
    ],
    ids=["refill", "screening", "two-windows", "two-passes"],
)
def test_with_the_rest_of_the_library(run, keys):
    result = run(**keys)
    lines = [line for line in result.metrics() if "groups/count" in line]
    assert result.summary["steps"] == keys.get("steps", 8)
    updates = keys.get("steps_per_generation", 1) * keys.get("num_iterations", 1)
    assert max(line["staleness/max"] for line in lines) <= keys.get("max_staleness", 1) * updates
    for line in lines:
        there = sum(line[f"pipeline/{name}"] for name in ("trained", "dropped", "waiting", "in_flight"))
        assert line["pipeline/admitted"] == there
    assert any(line.get("grad_norm", 0) > 0 for line in lines)
    draws = [draw for _, draw, _ in rows_of(result.directory)]
    assert draws == sorted(draws)


def test_heldout_evaluation_shares_the_engine_and_sees_the_present_weights(run, background):
    engine = background.BackgroundEngine(tick=0.001)
    result = run(engine, heldout_size=2, **{"eval.every": 4}, max_staleness=2, weight_sync_steps=3, dataset=ROWS * 2)
    measured = [line["step"] for line in result.metrics() if "heldout/accuracy" in line]
    assert measured == [0, 4, 8]
    assert engine.pushes == [0, 3, 4, 7, 8], "every third round, and before every evaluation"


def test_an_error_of_the_engine_ends_the_run_with_its_traceback(run, background):
    with pytest.raises(ConnectionError, match="went away") as caught:
        run(background.BackgroundEngine(tick=0.001, fail_after=5))
    assert "in drain" in "".join(traceback.format_exception(caught.value))
    assert threads_of_a_run() == []


def test_an_error_of_a_reward_function_ends_the_run_with_its_traceback(run):
    seen = []

    def breaks(completions, **kwargs):
        seen.append(1)
        if len(seen) > 9:
            raise ZeroDivisionError("a bug in a reward")
        return letters(completions)

    with pytest.raises(InputError, match="a bug in a reward") as caught:
        run(rewards=[breaks])
    assert "in breaks" in "".join(traceback.format_exception(caught.value))
    assert threads_of_a_run() == []


def test_an_interrupt_ends_without_threads_and_the_same_command_goes_on(run, background):
    """The callback stands for Ctrl-C at its worst: in the middle of training, with groups in flight."""

    def interrupt(step, metrics):
        if step == 3:
            raise KeyboardInterrupt

    keys = {"max_staleness": 2, "steps": 10, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        run(background.BackgroundEngine(tick=0.002), on_step=interrupt, **keys)
    assert threads_of_a_run() == []
    result = run(background.BackgroundEngine(tick=0.002), **keys)
    assert result.summary["finished"]
    assert [draw for _, draw, _ in rows_of(result.directory)][::2] == list(range(20))


def test_more_steps_after_the_end(run):
    """A run of 5 updates in rounds of two goes on to 9: the round that was cut short is not counted as whole."""
    keys = {"steps_per_generation": 2, "max_staleness": 2}
    run(steps=5, **keys)
    result = run(steps=9, **keys)
    assert result.summary["steps"] == 9
    assert json.loads((result.directory / "summary.json").read_text())["finished"]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"engine": "transformers"}, "the transformers engine writes in the process that trains"),
        ({"engine": "vllm"}, "the vllm engine writes in the process that trains"),
        ({"max_staleness": -1}, "must be at least 0 and 1"),
        ({"weight_sync_steps": 3}, r"up to 2 rounds old, but rollout\.max_staleness allows 1"),
        ({"vllm_importance_sampling_correction": False}, "nothing would correct for the older policies"),
        ({"rewards": {"functions": [{"fn": letters, "batch": True}]}}, "'letters' marks whole rounds"),
    ],
    ids=["transformers", "vllm", "negative", "sync", "uncorrected", "batch"],
)
def test_what_cannot_work_is_refused(run, keys, told):
    with pytest.raises(InputError, match=told):
        run(**keys)
