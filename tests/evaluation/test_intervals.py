"""Intervals keep their promise in simulation, and equal published numbers where there are any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import InputError
from assay.evaluation import mcnemar, paired_difference, rate_interval, wilson
from assay.evaluation.intervals import bootstrap


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # R's prop.test without continuity correction, as tabulated by Newcombe (1998, Stat. Med. 17:857), table I.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_equals_newcombes_table(successes, trials, low, high):
    interval = wilson(successes, trials)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def test_one_sample_a_problem_is_wilson():
    rates = np.repeat([1.0, 0.0], [7, 13])
    ours, plain = rate_interval(rates), wilson(7, 20)
    assert ours.low == pytest.approx(plain.low, abs=1e-12)
    assert ours.high == pytest.approx(plain.high, abs=1e-12)


def test_all_right_is_not_certainty():
    assert rate_interval(np.ones(20), samples=64).low == pytest.approx(wilson(20, 20).low)
    assert paired_difference(np.zeros(20), np.zeros(20)).interval.width > 0.2


def test_bonett_price_by_hand():
    # 40 pairs, 10 wins, 3 losses: p12 = 11/42, p21 = 4/42, d = 1/6, se = sqrt((15/42 - 1/36) / 42).
    before = np.repeat([0.0, 1.0, 1.0], [10, 3, 27])
    after = np.repeat([1.0, 0.0, 1.0], [10, 3, 27])
    change = paired_difference(before, after)
    half = 1.959963985 * np.sqrt((15 / 42 - 1 / 36) / 42)
    assert change.value == pytest.approx(7 / 40)
    assert change.interval.low == pytest.approx(1 / 6 - half)
    assert change.interval.high == pytest.approx(1 / 6 + half)
    assert (change.better, change.worse, change.distinguishable) == (10, 3, False)
    assert "not distinguishable" in str(change)


def test_mcnemar_is_the_exact_binomial():
    before, after = np.repeat([0, 1], [9, 2]), np.repeat([1, 0], [9, 2])
    assert mcnemar(before, after) == pytest.approx(2 * (1 + 11 + 55) / 2**11)
    assert mcnemar(np.ones(4), np.ones(4)) == 1.0


def test_missing_verdicts_are_left_out():
    rates = np.array([1.0, np.nan, 0.0])
    assert rate_interval(rates) == rate_interval(np.array([1.0, 0.0]))
    assert paired_difference(rates, np.ones(3)).problems == 2
    with pytest.raises(InputError, match="no problem was judged"):
        rate_interval(np.array([np.nan]))
    with pytest.raises(InputError, match="same problems"):
        paired_difference(np.ones(3), np.ones(2))


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_interval_contains_the_mean_and_stays_in_range(counts):
    rates = np.array(counts) / 8
    interval = rate_interval(rates, samples=8)
    assert 0 <= interval.low <= rates.mean() + 1e-12
    assert rates.mean() - 1e-12 <= interval.high <= 1
    flipped = rate_interval(1 - rates, samples=8)  # right and wrong are symmetric
    assert flipped.low == pytest.approx(1 - interval.high, abs=1e-9)


PASS_RATES = {"easy": (8.0, 2.0), "bimodal": (0.3, 0.3), "mid": (2.0, 2.0)}


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("kind", PASS_RATES)
def test_coverage_of_a_rate_and_of_a_change(kind, samples):
    rng = np.random.default_rng(7)
    a, b = PASS_RATES[kind]
    truth, gain, trials = a / (a + b), 0.1, 1000
    hits = np.zeros(2)
    for _ in range(trials):
        before = rng.beta(a, b, 100)
        after = before + gain * (1 - before)
        drawn = rng.binomial(samples, before) / samples
        hits[0] += truth in rate_interval(drawn, samples)
        change = paired_difference(drawn, rng.binomial(samples, after) / samples, samples)
        hits[1] += gain * (1 - truth) in change.interval
    assert (hits / trials >= 0.91).all(), hits / trials
    assert (hits / trials <= 0.97).all(), hits / trials


def test_pairing_resolves_what_two_intervals_cannot():
    rng = np.random.default_rng(3)
    hard = rng.beta(0.3, 0.3, 200)
    before, after = rng.binomial(16, hard) / 16, rng.binomial(16, np.minimum(hard + 0.04, 1)) / 16
    assert rate_interval(before, 16).high > rate_interval(after, 16).low  # overlap
    assert paired_difference(before, after, 16).distinguishable


def test_bootstrap_keeps_columns_together():
    values = np.random.default_rng(0).random(30)
    low, high = bootstrap(np.stack([values, 2 * values], axis=1))
    np.testing.assert_allclose(low[1], 2 * low[0])
    np.testing.assert_allclose(high[1], 2 * high[0])
    with pytest.raises(InputError, match="at least one problem"):
        bootstrap(np.zeros((0, 2)))
