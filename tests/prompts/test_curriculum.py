"""Draws, shares, rest and return, hopeless pools, and a state that is exact."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.prompts import Curriculum, CurriculumOptions

POLICIES = ["uniform", "easy_to_hard", "mid_range", "thompson", "greso", "adarft"]


def build(prompts, policy="uniform", seed=0, task_weights=None, **options):
    return Curriculum(
        prompts, CurriculumOptions(policy=policy, **options), num_generations=8, seed=seed, task_weights=task_weights
    )


def keys(prompts):
    return [prompt.content_key for prompt in prompts]


def play(curriculum, sample, rounds, n):
    """Draw and observe; the keys in the order of their draws."""
    drawn = []
    for _ in range(rounds):
        prompts = curriculum.draw(n)
        drawn += keys(prompts)
        curriculum.observe(sample(prompts))
    return drawn


@given(size=st.integers(1, 25), n=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_uniform_visits_every_prompt_each_epoch_the_last_batch_included(make_prompts, size, n):
    curriculum = build(make_prompts(size), retire_at=None)
    drawn = [key for _ in range(3 * size) for key in keys(curriculum.draw(n))]
    counts = Counter(drawn)
    assert len(counts) == size
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_no_prompt_twice_in_a_draw_and_all_are_seen_in_time(make_prompts, bernoulli, policy):
    """Exploration of 10% of draws of 10 from 40 prompts sees every prompt within 40 draws."""
    prompts = make_prompts(40, difficulty=list(range(40)))
    sample = bernoulli(dict.fromkeys(keys(prompts), 0.0), 8)
    curriculum = build(prompts, policy)
    seen = set()
    for _ in range(40):
        drawn = curriculum.draw(10)
        assert len(set(keys(drawn))) == 10
        seen |= set(keys(drawn))
        curriculum.observe(sample(drawn))
    assert len(seen) == 40


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 3, 20])
def test_hopeless_and_tiny_pools_keep_giving_full_draws(make_prompts, bernoulli, policy, rate, size):
    prompts = make_prompts(size, difficulty=list(range(size)))
    sample = bernoulli(dict.fromkeys(keys(prompts), rate), 8)
    curriculum = build(prompts, policy)
    assert curriculum.note() is None
    for _ in range(60):
        drawn = curriculum.draw(8)
        assert len(drawn) == 8
        counts = Counter(keys(drawn)).values()
        assert max(counts) - (min(counts) if len(counts) == size else 0) <= 1
        curriculum.observe(sample(drawn))
    assert ("all right" if rate else "all wrong") in curriculum.note()
    assert curriculum.metrics()["curriculum/frac_resting"] == rate


def test_solved_prompts_rest_and_come_back_when_forgotten(make_prompts, make_group):
    prompts = make_prompts(20)
    curriculum = build(prompts, "thompson", retire_at=0.9, exploration=0.2)
    curriculum.observe([make_group(prompt, 8, 0) for prompt in prompts[:10]])  # Beta(9, 1): mean 0.9, rests
    curriculum.observe([make_group(prompt, 7, 1) for prompt in prompts[10:]])  # mean 0.8, does not
    assert curriculum.metrics()["curriculum/frac_resting"] == 0.5
    resting = set(keys(prompts[:10]))
    drawn = [key for _ in range(50) for key in keys(curriculum.draw(5))]
    visits = Counter(drawn)
    assert 0.08 <= sum(visits[key] for key in resting) / len(drawn) <= 0.2  # re-checks come out of the share of 0.2
    curriculum.observe([make_group(prompts[0], 2, 6)])
    assert curriculum.metrics()["curriculum/frac_resting"] == 9 / 20


def test_uniform_with_rest_only_explores_those_that_rest(make_prompts, make_group):
    prompts = make_prompts(12)
    curriculum = build(prompts, "uniform", retire_at=0.9, exploration=0.25)
    curriculum.observe([make_group(prompt, 8, 0) for prompt in prompts[:4]])
    counts = Counter(key for _ in range(40) for key in keys(curriculum.draw(4)))
    assert sum(counts[key] for key in keys(prompts[:4])) == 40  # one of four places a draw
    active = [counts[key] for key in keys(prompts[4:])]
    assert max(active) - min(active) <= 1


def test_avoided_prompts_come_last(make_prompts):
    prompts = make_prompts(6)
    for policy in ("uniform", "thompson", "greso"):
        curriculum = build(prompts, policy)
        assert not set(keys(curriculum.draw(3, avoid=set(keys(prompts[:3]))))) & set(keys(prompts[:3]))
        assert len(curriculum.draw(5, avoid=set(keys(prompts[:3])))) == 5
        assert Counter(keys(curriculum.draw(6, avoid=set(keys(prompts))))) == Counter(keys(prompts))


def test_tasks_get_their_shares_in_every_part_of_the_draws(make_prompts):
    prompts = make_prompts(50, task="a", prefix="a") + make_prompts(5, task="b", prefix="b") + make_prompts(9, "c", "c")
    curriculum = build(prompts, task_weights={"a": 1, "b": 2, "c": 1})
    drawn = [prompt.task for _ in range(25) for prompt in curriculum.draw(7)]
    for end in range(4, len(drawn) + 1):
        assert abs(drawn[:end].count("b") - end / 2) <= 1
        assert abs(drawn[:end].count("a") - end / 4) <= 1.5
    by_size = build(prompts)
    counts = Counter(prompt.task for _ in range(64) for prompt in by_size.draw(1))
    assert counts == {"a": 50, "b": 5, "c": 9}
    for weights in ({"d": 1}, {"a": 0}, {"a": -1, "b": 2}):
        with pytest.raises(InputError, match="task weights"):
            build(prompts, task_weights=weights)


def test_without_shares_the_policy_leaves_a_task_without_signal(make_prompts, make_group):
    prompts = make_prompts(30, "hopeless", "h") + make_prompts(20, "fair", "f")
    free, shared = build(prompts, "thompson"), build(prompts, "thompson", task_weights={"hopeless": 3, "fair": 2})
    parts = []
    for curriculum in (free, shared):
        drawn = []
        for _ in range(60):
            batch = curriculum.draw(4)
            curriculum.observe([make_group(prompt, *((4, 4) if prompt.task == "fair" else (0, 8))) for prompt in batch])
            drawn += [prompt.task for prompt in batch]
        parts.append(drawn[80:].count("fair") / len(drawn[80:]))
    assert parts[1] == pytest.approx(0.4, abs=0.01)
    assert parts[0] > 0.75


def test_metrics_by_task_by_hand(make_prompts, make_group):
    a, b = make_prompts(2, "a", "a"), make_prompts(2, "b", "b")
    curriculum = build(a + b)
    curriculum.observe(
        [make_group(a[0], 8, 0), make_group(a[1], 0, 8), make_group(b[0], 2, 6), make_group(b[1], 3, 3, none=2)]
    )
    found = curriculum.metrics()
    assert found["tasks/a/frac_all_correct"] == found["tasks/a/frac_all_wrong"] == 0.5
    assert found["tasks/a/frac_mixed"] == 0.0
    assert found["tasks/b/frac_mixed"] == 1.0
    assert found["tasks/b/pass_rate"] == 5 / 14  # two completions without a verdict count nowhere
    assert found["curriculum/frac_seen"] == 1.0
    assert found["curriculum/frac_last_all_wrong"] == 0.25
    assert sum(found[f"curriculum/pass_rate_{bin}0"] for bin in range(10)) == 4
    assert "tasks/a/pass_rate" not in curriculum.metrics()  # counted since the last call


def test_held_out_prompts_never_steer(make_prompts, make_group):
    curriculum = build(make_prompts(3))
    with pytest.raises(InputError, match="not in the training pool"):
        curriculum.observe([make_group(make_prompts(1, prefix="held")[0], 1, 1)])


def test_counts_of_an_earlier_filter_are_the_start(make_prompts):
    prompts = make_prompts(2, assay_right=[8, 2], assay_wrong=[0, 6])
    curriculum = build(prompts, retire_at=0.9)
    assert curriculum.rates.tolist() == pytest.approx([9 / 10, 3 / 10])
    assert set(keys(curriculum.draw(1))) == {"p1"}
    assert curriculum.table()[0]["visits"] == 0


def test_forecast_is_what_then_happens(make_prompts, bernoulli):
    """Over a known pool the expected share of mixed groups meets the observed one (binomial error, 4 sd)."""
    rng = np.random.default_rng(0)
    prompts = make_prompts(400)
    rates = dict(zip(keys(prompts), np.where(rng.random(400) < 0.6, 0.002, rng.uniform(0.1, 0.9, 400))))
    curriculum, sample = build(prompts, "uniform", discount=1.0, retire_at=None), bernoulli(rates, 8)
    play(curriculum, sample, 40, 100)
    expected = curriculum.forecast(prompts)
    found = np.mean([1 - p**8 - (1 - p) ** 8 for p in rates.values()])
    assert expected == pytest.approx(found, abs=0.03)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stop", [1, 7])
def test_resuming_gives_the_same_prompts(make_prompts, bernoulli, policy, stop):
    prompts = make_prompts(30, task="a", prefix="a", difficulty=list(range(30)))
    prompts += make_prompts(11, task="b", prefix="b", difficulty=list(range(11)))
    rates = {key: index / 41 for index, key in enumerate(keys(prompts))}
    whole, sample = build(prompts, policy, seed=5), bernoulli(rates, 8)
    expected = play(whole, sample, 20, 6)

    first, sample = build(prompts, policy, seed=5), bernoulli(rates, 8)
    drawn = play(first, sample, stop, 6)
    state = json.loads(json.dumps(first.state_dict()))
    second = build(prompts, policy, seed=5)
    second.load_state_dict(state)
    assert drawn + play(second, sample, 20 - stop, 6) == expected
    assert second.state_dict() == whole.state_dict()
    assert second.metrics() == whole.metrics()


def test_another_pool_keeps_known_counts_and_says_so(make_prompts, make_group):
    old, new = build(make_prompts(4)), build(make_prompts(6))
    old.observe([make_group(make_prompts(4)[2], 8, 0)])
    with pytest.warns(UserWarning, match="pool or policy changed"):
        new.load_state_dict(old.state_dict())
    assert new.rates.tolist() == [0.5, 0.5, 0.9, 0.5, 0.5, 0.5]
    assert len(new.draw(6)) == 6


def test_different_seeds_draw_differently(make_prompts):
    prompts = make_prompts(50)
    assert keys(build(prompts, seed=0).draw(10)) != keys(build(prompts, seed=1).draw(10))


def test_nothing_to_draw_from_and_bad_labels(make_prompts):
    with pytest.raises(InputError, match="no prompts"):
        build([])
    with pytest.raises(InputError, match="difficulties are numbers"):
        build(make_prompts(1, difficulty=["hard"]))


def test_a_broken_policy_of_the_user_is_reported(make_prompts, tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "class Greedy:\n"
        "    sweeps = True\n"
        "    def choose(self, view, n, rng):\n"
        "        return np.zeros(n, int)\n"
    )
    with pytest.raises(InputError, match="different positions"):
        build(make_prompts(4), f"{tmp_path}/own.py:Greedy").draw(2)


@pytest.mark.parametrize("policy", ["uniform", "mid_range", "thompson", "greso"])
def test_a_filters_weight_is_the_chance_to_be_drawn_until_answers_differ(make_prompts, make_group, policy):
    """Half of the pool has weight 0.2: it is drawn a fifth as often, and catches up once its groups are mixed."""
    weights = [1.0] * 20 + [0.2] * 20
    curriculum = build(make_prompts(40, assay_weight=weights), policy=policy, exploration=0.0, retire_at=None)
    light = {f"p{index}" for index in range(20, 40)}
    drawn = [key for _ in range(150) for key in keys(curriculum.draw(4))]
    share = sum(key in light for key in drawn) / len(drawn)
    assert share == pytest.approx(0.2 / 1.2, abs=0.05)
    # Eight draws of 4 go a whole epoch round, so no policy's luck hides the change.
    curriculum.observe([make_group(prompt, 4, 4) for prompt in curriculum.prompts])
    drawn = [key for _ in range(150) for key in keys(curriculum.draw(4))]
    assert sum(key in light for key in drawn) / len(drawn) == pytest.approx(0.5, abs=0.07)


def test_a_pool_of_light_prompts_still_fills_its_draws(make_prompts):
    curriculum = build(make_prompts(6, assay_weight=[0.01] * 6), policy="uniform")
    assert [len(curriculum.draw(4)) for _ in range(5)] == [4] * 5


@pytest.mark.parametrize("weight", [0, -1, 1.5, "much", True])
def test_a_weight_that_is_none_is_named(make_prompts, weight):
    with pytest.raises(InputError, match="assay_weight is"):
        build(make_prompts(1, assay_weight=[weight]))
