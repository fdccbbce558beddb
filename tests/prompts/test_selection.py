"""Each policy against the rule of its paper."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.errors import InputError
from assay.prompts import CurriculumOptions
from assay.prompts.selection import AdaRFT, Greso, Stateless, Sweep, View, easiest_first, in_random_order, load_selector
from assay.prompts.selection import mid_range as mid_range_score
from assay.prompts.selection import thompson as thompson_score


def view(right, wrong=None, *, streak=None, difficulty=None, resting=(), taken=(), visits=None):
    right = np.array(right, float)
    size = len(right)

    def flags(positions):
        return np.isin(np.arange(size), list(positions))

    return View(
        right,
        np.array(wrong if wrong is not None else [0] * size, float),
        np.array(visits if visits is not None else [1] * size),
        np.array(streak if streak is not None else [0] * size),
        np.array(difficulty if difficulty is not None else [np.nan] * size, float),
        flags(resting),
        flags(taken),
    )


POLICIES = ["uniform", "easy_to_hard", "mid_range", "thompson", "greso"]


@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_choices_are_different_eligible_and_as_many_as_can_be(policy, data):
    size = data.draw(st.integers(1, 12))
    counts = st.lists(st.integers(0, 9), min_size=size, max_size=size)
    right, wrong = data.draw(counts), data.draw(counts)
    streak = data.draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size))
    positions = st.sets(st.integers(0, size - 1))
    selector = load_selector(CurriculumOptions(policy=policy))
    rng = np.random.default_rng(0)
    for _ in range(3):
        seen = view(right, wrong, streak=streak, resting=data.draw(positions), taken=data.draw(positions))
        n = data.draw(st.integers(0, 15))
        chosen = selector.choose(seen, n, rng).tolist()
        assert len(set(chosen)) == len(chosen) == min(n, int(seen.eligible.sum()))
        assert seen.eligible[chosen].all()


@given(st.integers(1, 30), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_an_epoch_visits_every_prompt_whatever_the_batch(size, batch):
    sweep, rng = Sweep(in_random_order), np.random.default_rng(1)
    seen = view([0] * size)
    drawn = [position for _ in range(3 * size) for position in sweep.choose(seen, min(batch, size), rng)]
    for epoch in range(len(drawn) // size):
        assert sorted(drawn[epoch * size : (epoch + 1) * size]) == list(range(size)) or min(batch, size) < size
    counts = Counter(drawn)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_prompt_already_in_the_batch_keeps_its_turn():
    sweep, rng = Sweep(easiest_first), np.random.default_rng(1)
    labels = [0.0, 1.0, 2.0, 3.0]
    assert sweep.choose(view([0] * 4, difficulty=labels, taken=[0]), 2, rng).tolist() == [1, 2]
    assert sweep.choose(view([0] * 4, difficulty=labels), 2, rng).tolist() == [0, 3]


def test_easy_to_hard_by_labels_else_by_pass_rate():
    rng = np.random.default_rng(0)
    labelled = view([0, 0, 0], difficulty=[2, 3, 1])
    assert Sweep(easiest_first).choose(labelled, 3, rng).tolist() == [2, 0, 1]
    rated = view([1, 8, 4], [7, 0, 4])
    assert Sweep(easiest_first).choose(rated, 3, rng).tolist() == [1, 2, 0]


def test_mid_range_draws_in_proportion_to_expected_p_times_1_minus_p():
    """First draws follow w/sum(w) with w = ab/((a+b)(a+b+1)): 1/6, 15/272, 1/11 by hand for (1,1), (15,1), (1,9)..."""
    seen = view([0, 14, 0], [0, 0, 8])
    weights = np.array([1 * 1 / (2 * 3), 15 * 1 / (16 * 17), 1 * 9 / (10 * 11)])
    policy, rng = Stateless(mid_range_score), np.random.default_rng(0)
    counts = np.bincount([policy.choose(seen, 1, rng)[0] for _ in range(6000)], minlength=3)
    assert stats.chisquare(counts, 6000 * weights / weights.sum()).pvalue > 1e-3


def test_thompson_takes_the_draw_nearest_to_the_target():
    """Of Beta(1,1) and Beta(200,200) the second is nearer to 0.5 unless |u - 0.5| beats its small spread."""
    seen = view([0, 199], [0, 199])
    policy, rng = Stateless(thompson_score(0.5)), np.random.default_rng(0)
    share = np.mean([policy.choose(seen, 1, rng)[0] for _ in range(4000)])
    # P(|u-.5| > |z|) = 1 - 2 E|z| for u uniform; E|z| = sd sqrt(2/pi), sd = 0.5/sqrt(401)
    expected = 1 - 2 * np.sqrt(2 / np.pi) * 0.5 / np.sqrt(401)
    assert share == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 4000))


def test_thompson_follows_its_target():
    seen = view([10, 50, 90], [90, 50, 10])
    for target, wanted in [(0.1, 0), (0.5, 1), (0.9, 2)]:
        chosen = Stateless(thompson_score(target)).choose(seen, 1, np.random.default_rng(0))
        assert chosen.tolist() == [wanted]


def test_greso_takes_a_prompt_of_streak_z_with_probability_p_to_the_z():
    rng = np.random.default_rng(0)
    selector = Greso()
    seen = view([0, 0, 0, 0], streak=[0, 1, -3, 9])
    taken = np.mean([[selector.passes(seen, position, rng) for position in range(4)] for _ in range(4000)], axis=0)
    assert taken == pytest.approx([1.0, 0.5, 0.125, 0.01], abs=0.035)
    assert taken[3] > 0  # the floor of 1% keeps every prompt within reach


def test_greso_moves_its_probabilities_towards_the_target_shares():
    selector = Greso()
    right, wrong = np.array([8] * 5 + [4] * 5), np.array([0] * 5 + [4] * 5)  # half all right, none all wrong
    selector.observe(right, wrong)
    assert selector.keep == {"easy": pytest.approx(0.49), "hard": pytest.approx(0.51)}
    for _ in range(200):
        selector.observe(right, wrong)
    assert selector.keep == {"easy": pytest.approx(0.01), "hard": pytest.approx(1.0)}


def test_greso_fills_a_batch_from_what_it_skipped():
    selector = Greso()
    selector.keep = {"easy": 0.01, "hard": 0.01}
    seen = view([8] * 6, streak=[50] * 6)
    assert sorted(selector.choose(seen, 6, np.random.default_rng(0))) == list(range(6))


def test_adarft_moves_its_level_by_the_papers_rule():
    """T0 = lowest label; eta = 50 on labels 0..100, alpha 2, beta 0.5: R = 1 gives 50 tanh(1) = 38.08."""
    selector, rng = AdaRFT(0.5), np.random.default_rng(0)
    seen = view([0] * 11, difficulty=list(range(0, 101, 10)), visits=[0] * 11)
    assert selector.choose(seen, 1, rng)[0] in (0, 1, 2, 3)
    selector.observe(np.array([8, 8]), np.array([0, 0]))
    assert selector.level == pytest.approx(50 * np.tanh(1.0))
    assert selector.choose(seen, 1, rng)[0] in (2, 3, 4, 5)  # labels 20 to 50 are the four nearest to 38
    selector.observe(np.array([0]), np.array([8]))
    assert selector.level == pytest.approx(0.0)
    for _ in range(9):
        selector.observe(np.array([8]), np.array([0]))
    assert selector.level == 100.0
    with pytest.raises(InputError, match="1 have none"):
        selector.choose(view([0, 0], difficulty=[1.0, np.nan]), 1, rng)


def test_own_policies_by_name_and_by_class(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "def last_first(view, rng):\n"
        "    return -np.arange(len(view.right))\n"
        "class Greedy:\n"
        "    sweeps = True\n"
        "    def choose(self, view, n, rng):\n"
        "        return np.zeros(n, int)\n"
    )
    by_function = load_selector(CurriculumOptions(policy=f"{tmp_path}/own.py:last_first"))
    assert by_function.choose(view([0] * 4), 2, np.random.default_rng(0)).tolist() == [3, 2]
    assert load_selector(CurriculumOptions(policy=f"{tmp_path}/own.py:Greedy")).sweeps
    with pytest.raises(InputError, match="did you mean thompson"):
        load_selector(CurriculumOptions(policy="tompson"))
