"""pass@k and pass^k against exact rational arithmetic, and the coverage of their bands."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import InputError
from assay.evaluation import curve, paired_curve, pass_at_k, pass_hat_k


def test_published_numbers():
    assert pass_at_k(64, 5, 8) == pytest.approx(0.4990084612, abs=1e-10)
    assert pass_at_k(64, 4, 10) == pytest.approx(0.5022616530, abs=1e-10)


@given(st.integers(1, 300), st.data())
def test_equal_to_exact_fractions(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(float(1 - Fraction(comb(n - c, k), comb(n, k))), rel=1e-12, abs=1e-300)
    assert pass_hat_k(n, c, k) == pytest.approx(float(Fraction(comb(c, k), comb(n, k))), rel=1e-12, abs=1e-300)


def test_by_enumeration():
    answers = [True, False, False, True, False, False]
    subsets = list(combinations(answers, 3))
    assert pass_at_k(6, 2, 3) == pytest.approx(np.mean([any(chosen) for chosen in subsets]))
    assert pass_hat_k(6, 4, 3) == pytest.approx(np.mean([not any(chosen) for chosen in subsets]))


def test_stable_where_factorials_overflow():
    assert pass_at_k(10**6, 1, 1) == pytest.approx(1e-6, rel=1e-12)
    assert pass_at_k(100_000, 10, 1000) == pytest.approx(1 - np.prod(1 - 1000 / (100_000 - np.arange(10))), rel=1e-10)
    assert pass_at_k(10, 0, 10) == 0.0
    assert pass_at_k(10, 1, 10) == 1.0


def test_unbiased():
    rng = np.random.default_rng(0)
    p = 0.2
    counts = rng.binomial(8, p, 200_000)
    assert pass_at_k(8, counts, 3).mean() == pytest.approx(1 - (1 - p) ** 3, abs=0.003)
    assert pass_hat_k(8, counts, 3).mean() == pytest.approx(p**3, abs=0.001)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (4, 2.5, 1), (4, 2, 1.5)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(InputError, match="pass@"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize("k", [1, 4])
def test_coverage_of_the_band_over_problems(k):
    rng = np.random.default_rng(11)
    truth = (1 - (1 - rng.beta(0.5, 1.5, 1_000_000)) ** k).mean()
    hits, trials = 0, 200
    for _ in range(trials):
        counts = rng.binomial(16, rng.beta(0.5, 1.5, 100))
        _, interval = curve(16, counts, [k], seed=int(rng.integers(2**31))).at(k)
        hits += truth in interval
    assert 0.91 <= hits / trials <= 0.97


def test_paired_band_is_narrower_and_finds_the_difference():
    rng = np.random.default_rng(5)
    p = rng.beta(0.4, 0.8, 100)
    before, after = rng.binomial(32, p), rng.binomial(32, np.minimum(1, p + 0.05))
    change = paired_curve((32, before), (32, after), [1])
    base, trained = curve(32, before, [1]), curve(32, after, [1])
    assert change.values[0] == pytest.approx((after - before).mean() / 32)
    assert change.low[0] > 0
    assert change.high[0] - change.low[0] < 0.5 * (base.high[0] - base.low[0])
    assert base.high[0] > trained.low[0]  # the separate bands overlap
    with pytest.raises(InputError, match="same problems"):
        paired_curve((32, before), (32, after[:50]))


def test_too_few_samples_are_warned_about():
    counts = np.array([3, 0, 8])
    assert curve(8, counts).ks == (1, 2, 4, 8)
    (warning,) = curve(8, counts).warnings
    assert "k = 8" in warning
    assert "n >= 16" in warning
    assert curve(8, counts, [1, 4]).warnings == ()


def test_all_alike_is_not_certainty():
    zeros = np.zeros(30, int)
    assert curve(16, zeros).high[0] > 0.1
    assert curve(16, zeros + 16).low[-1] < 0.9
    change = paired_curve((16, zeros), (16, zeros), [1])
    assert change.low[0] < 0 < change.high[0]


def test_curves_are_monotone():
    counts = np.random.default_rng(2).integers(0, 65, 40)
    assert (np.diff(curve(64, counts).values) >= 0).all()
    assert (np.diff(curve(64, counts, reliability=True).values) <= 0).all()
