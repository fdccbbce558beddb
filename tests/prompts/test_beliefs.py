"""Counts by hand, and forecasts against sums and integrals."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from assay.prompts.beliefs import GRID, Beliefs, expected_mixed, fit_prior, histogram, mixed_probability


def test_discounted_counts_by_hand():
    """MoPPS with a0 = b0 = 1, lambda 0.5: (6,2) then (0,8) gives a = 1 + 3, b = 1 + 1 + 8."""
    beliefs = Beliefs(0.5)
    beliefs.observe("k", 6, 2, step=3)
    beliefs.observe("k", 0, 8, step=4)
    (row,) = beliefs.table()
    assert (row["right"], row["wrong"], row["visits"], row["last_seen"]) == (3.0, 9.0, 2, 4)
    assert row["pass_rate"] == pytest.approx(4 / 14)


def test_streaks_count_uniform_groups_in_a_row():
    beliefs = Beliefs()
    seen = []
    for right, wrong in [(8, 0), (8, 0), (0, 8), (0, 8), (8, 0), (0, 8), (4, 4), (8, 0), (0, 0)]:
        beliefs.observe("k", right, wrong, 0)
        seen.append(int(beliefs.streak[0]))
    assert seen == [1, 2, -1, -2, 1, -1, 0, 1, 1]
    assert beliefs.visits[0] == 8  # a group of which nothing could be judged is no visit


def test_known_counts_seed_only_unseen_prompts():
    beliefs = Beliefs()
    beliefs.observe("seen", 1, 7, 0)
    beliefs.seed("seen", 9, 9)
    beliefs.seed("new", 3, 5)
    rows = {row["key"]: (row["right"], row["wrong"], row["visits"]) for row in beliefs.table()}
    assert rows == {"seen": (1.0, 7.0, 1), "new": (3.0, 5.0, 0)}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(0, 8)), max_size=30),
    st.floats(0, 1),
)
@settings(max_examples=50, deadline=None)
def test_state_survives_json_exactly(events, discount):
    beliefs, again = Beliefs(discount), Beliefs(discount)
    for step, (key, right, wrong) in enumerate(events):
        beliefs.observe(key, right, wrong, step)
    again.load_state_dict(json.loads(json.dumps(beliefs.state_dict())))
    for both in (beliefs, again):
        both.observe("a", 3, 5, 99)
        both.observe("new", 1, 0, 99)
    assert again.state_dict() == beliefs.state_dict()
    assert again.table() == beliefs.table()


@pytest.mark.parametrize(("rate", "kept"), [(0.01, 0.0773), (0.18, 0.7956), (0.5, 0.9922)])
def test_mixed_probability_is_the_binomial_remainder(rate, kept):
    both = sum(math.comb(8, c) * rate**c * (1 - rate) ** (8 - c) for c in range(1, 8))
    assert mixed_probability(rate, 8) == pytest.approx(both, abs=1e-12)
    assert mixed_probability(rate, 8) == pytest.approx(kept, abs=1e-4)


@given(st.floats(0, 40), st.floats(0, 40), st.integers(1, 32))
@settings(max_examples=25, deadline=None)
def test_expected_mixed_is_the_integral_over_the_posterior(right, wrong, generations):
    value, _ = integrate.quad(
        lambda p: stats.beta.pdf(p, 1 + right, 1 + wrong) * (1 - p**generations - (1 - p) ** generations),
        0,
        1,
        limit=200,
    )
    assert expected_mixed(np.array([right]), np.array([wrong]), generations)[0] == pytest.approx(value, abs=1e-6)


def test_fitted_prior_finds_the_pool_it_was_drawn_from():
    """A third impossible, a third solved, a third at 0.4: weights, mean and forecasts."""
    rng = np.random.default_rng(0)
    rates = np.repeat([0.0, 1.0, 0.4], 700)
    right = rng.binomial(8, rates).astype(float)
    prior = fit_prior(right, 8 - right)
    assert prior.sum() == pytest.approx(1.0)
    assert prior @ GRID == pytest.approx(right.mean() / 8, abs=1e-3)
    assert prior[(GRID > 0.2) & (GRID < 0.6)].sum() == pytest.approx(1 / 3, abs=0.04)
    for generations in (4, 8, 32):
        truth = np.mean(1 - rates**generations - (1 - rates) ** generations)
        assert expected_mixed(right, 8 - right, generations, prior).mean() == pytest.approx(truth, abs=0.02)


def test_posterior_on_the_grid_by_hand():
    """Half the pool at p = 0, half at 0.5: after 0 of 2 the odds of 0.5 are 1 to 4; a pair is mixed with 0.2 * 0.5."""
    prior = np.where(np.isclose(GRID, 0.5) | (GRID == 0), 0.5, 0.0)
    assert prior.sum() == 1.0
    assert expected_mixed(np.array([0.0]), np.array([2.0]), 2, prior)[0] == pytest.approx(0.1)


def test_forecast_of_an_impossible_pool_is_low_and_starts_from_the_flat_prior():
    zeros, eights = np.zeros(200), np.full(200, 8.0)
    assert expected_mixed(zeros, eights, 8, fit_prior(zeros, eights)).mean() < 0.05
    assert expected_mixed(eights, zeros, 8, fit_prior(eights, zeros)).mean() < 0.05
    assert expected_mixed(zeros, eights, 8).mean() > 0.4
    none = np.zeros(1)
    assert expected_mixed(none, none, 8, fit_prior(none, none))[0] == pytest.approx(1 - 2 / 9, abs=0.01)
    few = [expected_mixed(zeros[:n], eights[:n], 8, fit_prior(zeros[:n], eights[:n])).mean() for n in (1, 5, 20)]
    assert few == sorted(few, reverse=True)


def test_histogram_counts_everything_once():
    assert histogram([0.0, 0.05, 0.5, 0.99, 1.0]) == [2, 0, 0, 0, 0, 1, 0, 0, 0, 2]
