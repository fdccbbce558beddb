"""The sigmoid fit recovers what made the data, and refuses a ceiling that the data cannot show."""

import numpy as np
import pytest

from assay.errors import InputError
from assay.evaluation import compare_fits, fit_sigmoid, sigmoid

TRUE = {"A": 0.61, "B": 1.9, "Cmid": 1000.0, "R0": 0.2}


def measured(reach, noise, seed, points=25, **changes):
    compute = np.linspace(1000 * reach / points, 1000 * reach, points)
    rng = np.random.default_rng(seed)
    return compute, sigmoid(compute, **{**TRUE, **changes}) + rng.normal(0, noise, points)


def test_curve_values():
    curve = sigmoid(np.array([100, 1000, 10000]), A=0.6, B=1.5, Cmid=1000, R0=0.2)
    np.testing.assert_allclose(curve, [0.2122614, 0.4, 0.5877386], atol=5e-8)


@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e9])
@pytest.mark.parametrize("initial", [None, 0.2])
def test_recovers_the_curve_in_any_unit(unit, initial):
    compute = np.geomspace(50, 16000, 25)
    fit = fit_sigmoid(compute * unit, sigmoid(compute, A=0.6, B=1.5, Cmid=1000, R0=0.2), initial=initial)
    assert (fit.A, fit.B, fit.Cmid / unit, fit.R0) == pytest.approx((0.6, 1.5, 1000, 0.2), rel=1e-5)
    assert fit.identified
    assert fit.reach == pytest.approx(16)


def test_a_decline_is_a_curve_too():
    compute = np.geomspace(50, 16000, 25)
    fit = fit_sigmoid(compute, sigmoid(compute, A=0.1, B=1.2, Cmid=900, R0=0.5))
    assert pytest.approx((0.1, 0.5), abs=1e-4) == (fit.A, fit.R0)


def test_early_run_is_not_identified():
    fit = fit_sigmoid(*measured(reach=1, noise=0.012, seed=0))
    assert not fit.identified
    assert "before 2x" in fit.reason or "not narrower" in fit.reason
    assert fit.interval.width > 0.1


def test_noise_free_short_run_still_waits_for_twice_cmid():
    fit = fit_sigmoid(*measured(reach=1.5, noise=0.0, seed=0))
    assert pytest.approx(0.61, abs=1e-3) == fit.A
    assert not fit.identified
    assert "1.5x Cmid" in fit.reason


def test_measured_start_is_used_and_held():
    compute, reward = measured(4, 0.01, 1)
    assert fit_sigmoid(compute, reward, initial=0.25).R0 == 0.25
    with_start = fit_sigmoid(np.r_[0.0, compute], np.r_[0.31, reward], error=np.r_[1e-4, np.full(25, 0.01)])
    assert pytest.approx(0.31, abs=2e-3) == with_start.R0


def test_early_points_can_be_left_out_but_not_the_start():
    compute, reward = measured(8, 0.0, 1)
    bent = np.where(compute < 1000, reward - 0.1, reward)
    fit = fit_sigmoid(np.r_[0.0, compute], np.r_[0.2, bent], exclude_below=1000)
    assert pytest.approx(0.61, abs=1e-4) == fit.A
    assert fit.points == 1 + (compute >= 1000).sum()
    assert abs(fit_sigmoid(compute, bent).B - 1.9) > 0.2


def test_weights_follow_the_errors():
    compute, reward = measured(8, 0.0, 1)
    reward[3] += 0.2
    error = np.full(25, 0.005)
    error[3] = 1.0
    assert pytest.approx(0.61, abs=1e-4) == fit_sigmoid(compute, reward, error=error).A
    assert abs(fit_sigmoid(compute, reward).B - 1.9) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("known_error", [True, False])
@pytest.mark.parametrize("reach", [1, 4])
def test_profile_interval_covers(reach, known_error):
    trials = 150
    hits = 0
    for seed in range(trials):
        compute, reward = measured(reach, 0.012, seed)
        hits += 0.61 in fit_sigmoid(compute, reward, error=np.full(25, 0.012) if known_error else None).interval
    assert 0.91 <= hits / trials <= 0.97 + 0.005 * (reach == 1)  # the bound A <= 1 makes an early fit cautious


def test_profile_interval_is_the_likelihood_contour():
    compute, reward = measured(4, 0.012, 3)
    error = np.full(25, 0.02)  # more than the noise, so that nothing is widened
    fit = fit_sigmoid(compute, reward, error=error)

    def cost(ceiling):
        from scipy.optimize import curve_fit

        def curve(c, log_b, log_mid, r0):
            return sigmoid(c, A=ceiling, B=np.exp(log_b), Cmid=np.exp(log_mid), R0=r0)

        start = [np.log(fit.B), np.log(fit.Cmid), fit.R0]
        best, _ = curve_fit(curve, compute, reward, p0=start, sigma=error)
        return (((curve(compute, *best) - reward) / error) ** 2).sum()

    for end in (fit.interval.low, fit.interval.high):
        assert cost(end) - cost(fit.A) == pytest.approx(3.8415, abs=0.02)


def test_runs_are_compared_by_ceiling_first():
    low, high = measured(8, 0.004, 1, A=0.55), measured(8, 0.004, 2, A=0.65, B=1.2)
    _, (comparison,) = compare_fits({"low": (*low, None), "high": (*high, None)})
    assert (comparison.by, comparison.better) == ("A", "high")


def test_runs_with_one_ceiling_are_compared_by_exponent():
    slow, fast = measured(12, 0.004, 1, B=1.4), measured(12, 0.004, 2, B=2.4)
    _, (comparison,) = compare_fits({"slow": (*slow, None), "fast": (*fast, None)})
    assert (comparison.by, comparison.better) == ("B", "fast")


def test_like_runs_are_not_distinguishable_and_early_ones_not_compared():
    one, two, early = measured(8, 0.01, 1), measured(8, 0.01, 2), measured(1, 0.01, 3)
    fits, pairs = compare_fits({"one": (*one, None), "two": (*two, None), "early": (*early, None)})
    assert set(fits) == {"one", "two", "early"}
    assert pairs[0].better is None
    assert "not distinguishable" in pairs[0].detail
    assert pairs[1].detail == "not identified yet: early"


@pytest.mark.parametrize(
    ("compute", "reward", "options", "match"),
    [
        ([1, 2, 3], [0.1, 0.2], {}, "as many rewards"),
        ([1, 2, 3, 4, 5], [0.1, 0.2, np.nan, 0.4, 0.5], {}, "finite"),
        ([1, 2, 3, 4], [0.1] * 4, {}, "5 points"),
        ([-1, 2, 3, 4, 5], [0.1] * 5, {}, "at least 0"),
        ([1, 2, 3, 4, 5], [0.1] * 5, {"exclude_below": 3}, "at least 3; got 3"),
    ],
)
def test_bad_measurements_are_refused(compute, reward, options, match):
    with pytest.raises(InputError, match=match):
        fit_sigmoid(compute, reward, **options)
