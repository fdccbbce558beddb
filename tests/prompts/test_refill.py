"""Dynamic sampling: what is kept and what it costs, what happens when nothing can be kept, and a kill in the middle."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError, RunError
from assay.prompts import Curriculum, CurriculumOptions, Refill, RefillOptions, collect, has_signal
from assay.records import Completion, Finish, Group, Prompt

ON = {"dynamic_sampling": True}


def build(prompts, policy="uniform", **options):
    options = {"retire_at": None, **options}
    return Curriculum(prompts, CurriculumOptions(policy=policy, **options), num_generations=8, seed=0)


def rates_of(prompts, rate):
    return {prompt.content_key: rate for prompt in prompts}


@pytest.mark.parametrize(
    ("rate", "multiplier"), [(0.01, 12.944), (0.05, 2.971), (0.18, 1.257), (0.5, 1.008), (0.9, 1.756)]
)
def test_multiplier_meets_the_formula(rate, multiplier):
    """1/(1 - p^8 - (1-p)^8), within 5%. Enough batches that 5% is three standard errors of the geometric mean."""
    mixed_rate = 1 - rate**8 - (1 - rate) ** 8
    assert 1 / mixed_rate == pytest.approx(multiplier, abs=1e-3)
    right = Completion([], Finish.STOP, reward=1.0, correct=True)
    wrong = Completion([], Finish.STOP, reward=0.0, correct=False)
    rng = np.random.default_rng(3)
    refill = Refill(RefillOptions(**ON, max_rounds=50))
    prompt = Prompt("p", (1,), content_key="p")
    generated = mixed = 0.0
    wanted = 3600 * (1 - mixed_rate) + 400  # groups kept for a standard error of 1.7%
    while mixed < wanted:
        refill.begin(64)
        while asked := refill.ask():
            counts = rng.binomial(8, rate, size=asked)
            refill.add([Group(prompt, [right] * int(c) + [wrong] * int(8 - c)) for c in counts], mixed_rate)
        batch = refill.take()
        assert batch.complete
        assert len(batch.groups) == 64
        assert all(has_signal(group) for group in batch.groups)
        assert batch.metrics.get("refill/multiplier_expected", multiplier) == pytest.approx(multiplier, abs=1e-3)
        generated += batch.metrics["refill/generated"]
        mixed += batch.metrics["refill/mixed"]
    assert generated / mixed == pytest.approx(multiplier, rel=0.05)


@given(
    rates=st.lists(st.sampled_from([0.0, 0.05, 0.5, 1.0]), min_size=1, max_size=8),
    size=st.integers(1, 6),
    fallback=st.sampled_from(["short", "pad"]),
    keep=st.booleans(),
    screen=st.sampled_from([0, 2, 4]),
)
@settings(max_examples=80, deadline=None)
def test_every_generated_group_is_accounted_for(make_prompts, make_group, rates, size, fallback, keep, screen):
    prompts = make_prompts(len(rates))
    by_key = dict(zip([prompt.content_key for prompt in prompts], rates))
    rng = np.random.default_rng(0)
    made = []

    def sample(asked, n):
        groups = []
        for prompt in asked:
            right = int(rng.binomial(n or 8, by_key[prompt.content_key]))
            groups.append(make_group(prompt, right, (n or 8) - right, draw=len(made) + len(groups)))
        made.extend(groups)
        return groups

    def extend(groups):
        for group in groups:
            group.completions += make_group(group.prompt, 1, 8 - screen - 1).completions

    options = RefillOptions(**ON, fallback=fallback, keep_surplus=keep, max_rounds=3, screen=screen)
    refill, curriculum = Refill(options), build(prompts)
    trained, expired, wasted, dropped = [], 0, 0, 0
    for _ in range(4):
        before = len(made)
        batch = collect(refill, curriculum, size, sample, extend)
        found = batch.metrics
        trained += batch.groups
        assert len(batch.groups) <= size
        assert batch.complete == (len(batch.groups) == size and all(map(has_signal, batch.groups)))
        if fallback == "pad" or not any(map(has_signal, batch.groups)):
            assert len(batch.groups) == size or found["refill/generated"] < size
        assert [group.draw for group in batch.groups if has_signal(group)] == sorted(
            group.draw for group in batch.groups if has_signal(group)
        )
        assert found["refill/generated"] == len(made) - before
        written = [completion for group in made[before:] for completion in group.completions]
        assert found["refill/completions"] == len(written)
        assert [group.draw for group in batch.written] == [group.draw for group in made[before:]]
        assert all(one is other for one, other in zip(batch.written, made[before:], strict=True))
        kinds = sum(found[f"refill/{kind}"] for kind in ("mixed", "all_correct", "all_wrong", "equal", "unjudged"))
        assert kinds == found["refill/generated"]
        assert found["refill/rounds"] <= 3
        expired, wasted = expired + found["refill/expired"], wasted + found["refill/wasted"]
    mixed = sum(map(has_signal, made))
    dropped = mixed - sum(map(has_signal, trained))
    assert dropped == expired + wasted + len(refill.surplus)
    assert not keep or not wasted
    assert len({id(group) for group in trained}) == len(trained)


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 4, 32])
def test_a_pool_without_signal_ends_after_the_stated_rounds(make_prompts, bernoulli, rate, size):
    prompts = make_prompts(size)
    curriculum, sample = build(prompts), bernoulli(rates_of(prompts, rate), 8)
    for fallback in ("short", "pad"):
        refill = Refill(RefillOptions(**ON, max_rounds=4, max_oversample=2.0, fallback=fallback))
        batch = collect(refill, curriculum, 8, sample)
        assert not batch.complete
        assert len(batch.groups) == 8  # a step without signal, never an empty batch
        assert batch.metrics["refill/rounds"] == 4
        assert batch.metrics["refill/generated"] <= 4 * 2 * 8
        assert batch.metrics["refill/missing"] == 8
    refill = Refill(RefillOptions(**ON, max_rounds=4, fallback="stop"))
    with pytest.raises(RunError, match=r"0 of 8 groups with a signal in 4 rounds .*refill\.max_rounds"):
        collect(refill, curriculum, 8, sample)


def test_short_batches_train_on_mixed_groups_only(make_prompts, make_group):
    refill = Refill(RefillOptions(**ON, max_rounds=1))
    refill.begin(3)
    (prompt,) = make_prompts(1)
    refill.add([make_group(prompt, 8, 0), make_group(prompt, 1, 7), make_group(prompt, 0, 8)])
    batch = refill.take()
    assert [has_signal(group) for group in batch.groups] == [True]
    assert (batch.complete, batch.metrics["refill/missing"]) == (False, 2.0)
    assert (batch.metrics["refill/all_correct"], batch.metrics["refill/all_wrong"]) == (1.0, 1.0)


def test_surplus_serves_the_next_batch_and_grows_too_old(make_prompts, make_group):
    prompts = make_prompts(5)
    mixed = [make_group(prompt, 4, 4, draw=draw) for draw, prompt in enumerate(prompts)]
    refill = Refill(RefillOptions(**ON))
    refill.begin(2)
    refill.add(mixed)
    assert refill.take().groups == mixed[:2]
    refill.begin(1)
    assert refill.ask() == 0
    batch = refill.take()
    assert (batch.groups, batch.metrics["refill/from_surplus"]) == (mixed[2:3], 1.0)
    assert "refill/multiplier" not in batch.metrics  # nothing was generated
    refill.begin(1)
    assert refill.ask() == 1
    refill.add([make_group(prompts[0], 1, 7)])
    assert refill.take().metrics["refill/expired"] == 2.0


def test_asks_for_more_when_mixed_groups_are_rare(make_prompts, make_group):
    (prompt,) = make_prompts(1)
    refill = Refill(RefillOptions(**ON, max_oversample=3.0))
    refill.begin(10)
    assert refill.ask() == 10
    refill.add([make_group(prompt, 5, 3)] * 5 + [make_group(prompt, 0, 8)] * 5)
    assert refill.ask() == 10  # 5 missing, about 2 prompts a mixed group: (0.9 + 10) / (0.9 + 5) = 1.85, 5 * 1.85 = 9.2
    refill.add([make_group(prompt, 0, 8)] * 40)
    assert refill.ask() == 15  # capped at 3 for each of the 5


def test_off_is_one_round_with_everything_kept(make_prompts, bernoulli):
    prompts = make_prompts(4)
    sample = bernoulli(rates_of(prompts, 0.0), 8)
    batch = collect(Refill(RefillOptions()), build(prompts), 6, sample)
    assert (len(batch.groups), batch.complete, sample.state["draws"]) == (6, True, 6)


def test_signal_is_equality_of_rewards_and_none_has_no_say(make_prompts, make_group):
    (prompt,) = make_prompts(1)
    graded = make_group(prompt, 0, 3)
    graded.completions[0].reward = 0.1 + 0.2
    assert has_signal(graded)
    graded.completions[1].reward = graded.completions[2].reward = 0.1 + 0.2
    assert not has_signal(graded)
    assert not has_signal(make_group(prompt, 2, 0, none=3))
    refill = Refill(RefillOptions(**ON))
    refill.begin(9)
    refill.add(
        [graded, make_group(prompt, 1, 0, none=7), make_group(prompt, 0, 0, none=8), make_group(prompt, 2, 0, none=1)]
    )
    found = refill.take().metrics
    assert (found["refill/all_wrong"], found["refill/unjudged"], found["refill/equal"]) == (1.0, 2.0, 1.0)


def test_screening_stops_uniform_groups_early_and_completes_the_others(make_prompts, make_group):
    prompts = make_prompts(2)
    sizes = []

    def sample(asked, n):
        assert n == 3
        return [
            make_group(prompt, 1 if prompt.content_key == "p0" else 0, 2 if prompt.content_key == "p0" else 3)
            for prompt in asked
        ]

    def extend(groups):
        for group in groups:
            group.completions += make_group(group.prompt, 0, 5).completions
            sizes.append(len(group.completions))

    refill, curriculum = Refill(RefillOptions(**ON, screen=3, max_rounds=1)), build(prompts)
    batch = collect(refill, curriculum, 2, sample, extend)
    assert [len(group.completions) for group in batch.groups] == [8]
    assert (sizes, batch.metrics["refill/completions"], batch.metrics["refill/screened_out"]) == ([8], 11.0, 1.0)
    counts = {row["key"]: (row["right"], row["wrong"]) for row in curriculum.table()}
    assert counts == {"p0": (1.0, 7.0), "p1": (0.0, 3.0)}
    with pytest.raises(InputError, match="cannot continue groups"):
        collect(refill, curriculum, 2, sample)


@pytest.mark.parametrize("change", [{"max_rounds": 0}, {"max_oversample": 0.5}, {"screen": 1}, {"max_surplus_age": 0}])
def test_bad_options(change):
    with pytest.raises(InputError, match="refill"):
        RefillOptions(**change)


WORKER = """
import json, os, sys, time
import numpy as np
from assay.prompts import Curriculum, CurriculumOptions, Refill, RefillOptions, collect
from assay.records import Completion, Finish, Group, Prompt

folder, batches, slow = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
prompts = [Prompt(f"p{i}", (1,), content_key=f"p{i}") for i in range(60)]
pool = {p.content_key: p for p in prompts}
rates = {p.content_key: i / 59 if i % 3 else 0.0 for i, p in enumerate(prompts)}
curriculum = Curriculum(prompts, CurriculumOptions(policy="thompson"), num_generations=8, seed=1)
refill = Refill(RefillOptions(dynamic_sampling=True, max_rounds=6, max_oversample=2.0))
state = {"draws": 0, "done": 0, "log": []}

def answer(verdict):
    return Completion([], Finish.STOP, reward=float(verdict), correct=bool(verdict))

def encode(group):
    return {"key": group.prompt.content_key, "draw": group.draw, "right": [c.correct for c in group.completions]}

def decode(item):
    return Group(pool[item["key"]], [answer(v) for v in item["right"]], item["draw"])

def sample(asked, n):
    groups = []
    for prompt in asked:
        verdicts = np.random.default_rng([7, state["draws"]]).random(8) < rates[prompt.content_key]
        groups.append(Group(prompt, [answer(v) for v in verdicts], state["draws"]))
        state["log"].append([state["draws"], prompt.content_key])
        state["draws"] += 1
    return groups

path = os.path.join(folder, "state.json")
if os.path.exists(path):
    saved = json.load(open(path))
    state.update(saved["state"])
    curriculum.load_state_dict(saved["curriculum"])
    refill.load_state_dict(saved["refill"], decode)

def save():
    whole = {"state": state, "curriculum": curriculum.state_dict(), "refill": refill.state_dict(encode)}
    with open(path + ".part", "w") as file:
        json.dump(whole, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)
    print("saved", flush=True)
    time.sleep(slow)

while state["done"] < batches:
    batch = collect(refill, curriculum, 8, sample, saved=save)
    state["done"] += 1
    state["log"].append(["batch", [g.draw for g in batch.groups], sorted(batch.metrics.items())])
    save()
"""


def test_killed_in_the_middle_of_a_refill_and_resumed(tmp_path: Path):
    """SIGKILL at random moments, some between the rounds of a batch; prompts, batches and metrics stay the same."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)

    def start(folder, slow):
        folder.mkdir(exist_ok=True)
        return subprocess.Popen([sys.executable, script, folder, "12", str(slow)], stdout=subprocess.PIPE, text=True)

    whole = start(tmp_path / "whole", 0.0)
    assert whole.wait(timeout=120) == 0
    rng, middle, folder = random.Random(0), 0, tmp_path / "killed"
    for saves in (2, 5, 4):
        worker = start(folder, 0.02)
        for _ in range(saves):
            worker.stdout.readline()
        time.sleep(rng.uniform(0, 0.02))
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.wait(timeout=60) == -signal.SIGKILL
        middle += json.loads((folder / "state.json").read_text())["refill"]["size"] is not None
    assert middle > 0, "no kill fell into the middle of a refill: the test would prove nothing"
    assert start(folder, 0.0).wait(timeout=120) == 0
    assert json.loads((folder / "state.json").read_text()) == json.loads((tmp_path / "whole/state.json").read_text())
