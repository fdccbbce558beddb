"""Entropy, mismatch statistics, the critic's baseline, the reference, and metrics: terms around the surrogate."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.objectives import (
    EntropyController,
    Metrics,
    ObjectiveSpec,
    build,
    drop_truncated,
    entropy_threshold,
    gae,
    preset,
    reference_is_due,
    update_reference,
    whiten,
)
from assay.objectives.mismatch import mismatch_metrics
from assay.objectives.values import discounted_sum


@given(st.lists(st.floats(0, 10, width=32), min_size=1, max_size=50), st.floats(0, 1))
def test_entropy_threshold_is_the_linear_quantile(values, fraction):
    values = torch.tensor(values, dtype=torch.float32)
    expected = torch.quantile(values, 1 - fraction).item()
    assert entropy_threshold(values, fraction) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_entropy_threshold_beyond_the_limit_of_torch_quantile():
    values = torch.linspace(0, 1, 2**24 + 2)
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(values, 0.8)
    assert entropy_threshold(values, 0.2) == pytest.approx(0.8, abs=1e-6)


ADAPTIVE = ObjectiveSpec(use_adaptive_entropy=True, entropy_coef=0.05, entropy_target=0.7)


def test_adaptive_entropy_rule(golden, run):
    """TRL's three golden cases: nothing in the first window, then the coefficient; a step of delta after each one."""
    spec = preset(
        "dapo", epsilon_high=0.28, use_adaptive_entropy=True, entropy_coef=0.05, entropy_target=0.7,
        entropy_coef_delta=0.005,
    )  # fmt: skip
    objective = build(spec)
    window = Metrics()
    window.mean("entropy", 0.6333333333333333, 1)
    assert run(objective)[0] == pytest.approx(golden["dapo_adaptive_first"]["loss"], abs=1e-9)
    objective.observe(window)
    assert objective.entropy.value == pytest.approx(golden["dapo_adaptive_first"]["metrics"]["entropy_coef"])

    active = build(spec)
    active.entropy.load_state_dict({"value": 0.05, "last": 0.5})
    assert run(active)[0] == pytest.approx(golden["dapo_adaptive_active"]["loss"], abs=1e-9)
    active.observe(window)
    assert active.entropy.value == pytest.approx(golden["dapo_adaptive_active"]["metrics"]["entropy_coef"])
    too_high = Metrics()
    too_high.mean("entropy", 0.9, 1)
    active.entropy.load_state_dict({"value": 0.05, "last": 0.5})
    active.observe(too_high)
    assert active.entropy.value == pytest.approx(golden["dapo_adaptive_decrement"]["metrics"]["entropy_coef"])
    assert active.entropy.coefficient == 0.0


def test_adaptive_entropy_stays_in_bounds():
    controller = EntropyController(ObjectiveSpec(use_adaptive_entropy=True, entropy_coef_max=0.012))
    for _ in range(5):
        controller.observe(0.0)
    assert controller.value == 0.012
    for _ in range(5):
        controller.observe(9.0)
    assert controller.value == 0.0


def test_controller_state_survives_json_exactly():
    controller = EntropyController(ADAPTIVE)
    assert EntropyController(ADAPTIVE).coefficient == 0.0
    for entropy in (None, 0.1 + 0.2, 5.0):
        if entropy is not None:
            controller.observe(entropy)
        restored = build(ADAPTIVE)
        restored.load_state_dict(json.loads(json.dumps({"entropy": controller.state_dict()})))
        assert (restored.entropy.value, restored.entropy.coefficient) == (controller.value, controller.coefficient)
        restored.entropy.observe(0.3)
        twin = EntropyController(ADAPTIVE)
        twin.load_state_dict(controller.state_dict())
        twin.observe(0.3)
        assert restored.entropy.state_dict() == twin.state_dict()


def test_mismatch_statistics_are_those_of_the_raw_ratio():
    """One token in four off by a factor of 8: seen in full, although the weight is truncated at 2."""
    mask = torch.tensor([[True, True, True, True, False]])
    log_diff = torch.tensor([[0.0, 0.0, 0.0, math.log(8.0), 3.0]], dtype=torch.float64)
    values = mismatch_metrics(log_diff, log_diff, mask, None, 2.0).values()
    name = "sampling/importance_sampling_ratio"
    assert values[f"{name}/max"] == pytest.approx(8.0)
    assert values[f"{name}/min"] == pytest.approx(1.0)
    assert values[f"{name}/mean"] == pytest.approx(11 / 4)
    assert values[f"{name}/p50"] == pytest.approx(1.0, rel=0.011)
    assert values[f"{name}/p99"] == pytest.approx(8.0, rel=0.011)
    assert values["sampling/effective_sample_size"] == pytest.approx(11**2 / (4 * (3 + 64)))
    assert values["sampling/outside_bounds"] == pytest.approx(1 / 4)
    assert values["sampling/sampling_logp_difference/max"] == pytest.approx(math.log(8.0))


def test_discounted_sum_is_the_recursion():
    x = torch.randn(3, 13, dtype=torch.float64)
    expected, running = torch.zeros_like(x), torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(13)):
        running = x[:, t] + 0.9 * running
        expected[:, t] = running
    torch.testing.assert_close(discounted_sum(x, 0.9), expected)


def test_gae_limits():
    """lam = 0 is the one-step error, lam = 1 the return less the value."""
    r, v = torch.randn(2, 6, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    one_step, _ = gae(r, v, mask, 0.9, 0.0)
    following = torch.where(mask, v, 0.0)[:, 1:]
    errors = r - v
    errors[:, :-1] += 0.9 * following
    torch.testing.assert_close(one_step, torch.where(mask, errors, 0.0))
    full, returns = gae(r, v, mask, 0.9, 1.0)
    expected = discounted_sum(torch.where(mask, r, 0.0), 0.9)
    torch.testing.assert_close(returns, torch.where(mask, expected, 0.0))
    torch.testing.assert_close(full, torch.where(mask, expected - v, 0.0))


def test_whitening_over_ranks_is_whitening_of_the_whole():
    x, mask = torch.randn(4, 5, dtype=torch.float64), torch.rand(4, 5) > 0.3
    whole = whiten(x, mask)
    inside = torch.where(mask, x, 0.0)
    mean = inside.sum() / mask.sum()
    sums = iter([torch.stack([inside.sum(), mask.sum().double()]), torch.where(mask, x - mean, 0.0).square().sum()])
    half = whiten(x[:2], mask[:2], sum_over_ranks=lambda _: next(sums))
    torch.testing.assert_close(half, whole[:2])
    assert whiten(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)).tolist() == [[0.0]]


def test_reference_follows_or_is_reset():
    reference, policy = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])
    assert update_reference(reference, policy, 0.25).tolist() == [1.5, 2.0]
    reset = update_reference(reference, policy, 1.0)
    assert torch.equal(reset, policy)
    assert reset.data_ptr() != policy.data_ptr()
    assert update_reference(reference.bfloat16(), policy, 0.25).dtype == torch.bfloat16
    assert [step for step in range(9) if reference_is_due(step, 4)] == [4, 8]


def test_truncation_filter():
    mask = torch.tensor([[True, False], [True, True]])
    assert drop_truncated(mask, torch.tensor([False, True])).tolist() == [[True, False], [False, False]]


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=5))
def test_metrics_of_parts_are_metrics_of_the_whole(parts):
    def measured(values):
        x, everywhere = torch.tensor(values, dtype=torch.float64), torch.ones(len(values), dtype=torch.bool)
        metrics = Metrics()
        metrics.masked_mean("mean", x, everywhere)
        metrics.spread("std", x, everywhere)
        metrics.maximum("max", x, everywhere)
        metrics.minimum("min", x, everywhere)
        metrics.total("total", x.sum())
        metrics.quantiles("ratio", x, everywhere)
        return metrics

    pieces = [measured(part) for part in parts]
    whole = [x for part in parts for x in part]
    reduced = Metrics.reduce(pieces)
    values = reduced.values()
    assert values == pytest.approx(measured(whole).values(), abs=1e-6)
    assert values["mean"] == pytest.approx(sum(whole) / len(whole))
    assert (values["max"], values["min"]) == (max(whole), min(whole))
    if len(whole) > 1:
        assert values["std"] == pytest.approx(torch.tensor(whole, dtype=torch.float64).std().item(), abs=1e-6)
    assert reduced.unpack(*reduced.pack()).values() == values
