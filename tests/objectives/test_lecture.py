"""The seed lecture's four checks, on this library's functions instead of inline code."""

import math

import pytest
import torch

from assay.objectives import (
    Denominators,
    ObjectiveSpec,
    PolicyOutputs,
    Rows,
    build,
    compute_advantages,
    off_policy_mask,
    preset,
)
from assay.objectives.kl import k1, k2, k3
from assay.objectives.mismatch import bounded_weight, log_mismatch, mismatch_level
from assay.objectives.ratio import sequence_level
from assay.objectives.surrogates import ppo_clip

ONE_GROUP = torch.zeros(8, dtype=torch.long)
REWARDS = torch.tensor([1, 0, 1, 0, 0, 1, 0, 0], dtype=torch.float64).unsqueeze(1)


def test_kl_estimators():
    pi = torch.tensor([0.30, 0.25, 0.20, 0.15, 0.10], dtype=torch.float64)
    ref = torch.tensor([0.25, 0.25, 0.20, 0.17, 0.13], dtype=torch.float64)
    exact = (pi * (pi / ref).log()).sum().item()
    assert exact == pytest.approx(0.009686, abs=1e-6)
    sampled = torch.multinomial(pi, 200_000, replacement=True, generator=torch.Generator().manual_seed(0))
    one, three = (estimate(pi[sampled].log(), ref[sampled].log()) for estimate in (k1, k3))
    for estimate in (one, three):
        standard_error = estimate.std().item() / math.sqrt(len(estimate))
        assert abs(estimate.mean().item() - exact) < 4 * standard_error
    assert (three >= 0).all()
    assert (one < 0).any()
    assert three.var() < one.var() / 100


@pytest.mark.parametrize(
    ("d", "expected"),
    [(0.1, (-0.1, 0.005, 0.00517092)), (-0.3, (0.3, 0.045, 0.04081822)), (1.0, (-1, 0.5, 0.71828183))],
)
def test_kl_estimates_of_one_token(d, expected):
    logp, ref = torch.tensor(-1.0, dtype=torch.float64), torch.tensor(-1.0 + d, dtype=torch.float64)
    assert [estimate(logp, ref).item() for estimate in (k1, k2, k3)] == pytest.approx(expected, abs=1e-8)


def test_group_advantages():
    def advantages(**fields):
        return compute_advantages(REWARDS, ONE_GROUP, None, ObjectiveSpec(**fields)).advantages

    population = advantages(std_kind="population", std_eps=0.0)
    sample = advantages(std_kind="sample", std_eps=1e-4)
    assert [round(population[i].item(), 4) for i in (0, 1)] == [1.2910, -0.7746]
    assert [round(sample[i].item(), 4) for i in (0, 1)] == [1.2074, -0.7244]
    centred = advantages(scale_rewards="none")
    assert centred.tolist() == [0.625 if r else -0.375 for r in REWARDS[:, 0].tolist()]
    leave_one_out = advantages(baseline="leave_one_out", scale_rewards="none")
    torch.testing.assert_close(leave_one_out, 8 / 7 * centred)
    for result in (population, sample, centred, leave_one_out):
        assert abs(result.sum().item()) < 1e-12


def test_group_of_equal_rewards_teaches_exactly_nothing():
    spec = ObjectiveSpec(std_eps=1e-9)
    result = compute_advantages(torch.full((8, 1), 0.1), ONE_GROUP, None, spec)
    assert result.advantages.tolist() == [0.0] * 8
    assert result.no_signal.all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", (1 / 20, -1 / 200)),
        ("dapo", (1 / 110, -1 / 110)),
        ("dr_grpo", (1 / 200, -1 / 200)),
        ("gspo", (1 / 20, -1 / 200)),
        ("luspo", (1 / 2, -1 / 2)),
    ],
)
def test_aggregation_weights_by_autograd(name, expected):
    mask = torch.arange(100) < torch.tensor([10, 100]).unsqueeze(1)
    logps = (-torch.rand(2, 100, dtype=torch.float64)).requires_grad_()
    sums = Denominators.measure(mask, torch.zeros(2, dtype=torch.long))
    denominators = Denominators.from_sums(sums, max_completion_length=100)
    rows = Rows(mask, torch.tensor([1.0, -1.0]))
    loss, _ = build(preset(name))(PolicyOutputs(logps), rows, denominators)
    (gradient,) = torch.autograd.grad(-loss, logps)
    for row, weight in enumerate(expected):
        torch.testing.assert_close(gradient[row][mask[row]], torch.full_like(gradient[row][mask[row]], weight))
    assert gradient[~mask].abs().sum() == 0


def test_clipping_stops_exactly_the_tokens_that_moved_too_far_the_right_way():
    stopped = set()
    for value in (0.70, 0.95, 1.1, 1.35):
        for advantage in (1.0, -1.0):
            ratio = torch.tensor(value, requires_grad=True)
            (gradient,) = torch.autograd.grad(ppo_clip(ratio, torch.tensor(advantage), 0.2, 0.28), ratio)
            if gradient == 0:
                stopped.add((value, advantage))
            else:
                assert gradient == -advantage
    assert stopped == {(1.35, 1.0), (0.70, -1.0)}


def test_sequence_ratio_is_the_geometric_mean():
    log_ratio = torch.tensor([[0.7, 0.95, 1.1, 1.35]], dtype=torch.float64).log()
    ratio = sequence_level(log_ratio, torch.ones(1, 4, dtype=torch.bool)).exp().item()
    assert ratio == pytest.approx((0.7 * 0.95 * 1.1 * 1.35) ** 0.25, abs=1e-12)
    assert ratio == pytest.approx(0.99686, abs=1e-4)


def test_importance_weights_against_the_engine():
    sampling = torch.tensor([[-2.0, -1.0, -0.5, -3.0]], dtype=torch.float64)
    old = sampling + torch.tensor([[0.4, 0.9, 1.5, 2.6]], dtype=torch.float64).log()
    mask = torch.ones(1, 4, dtype=torch.bool)
    log_diff = log_mismatch(old, sampling, mask)

    def weight(mode, low, high):
        return bounded_weight(mismatch_level(log_diff, mask, mode), mode, low, high).flatten().tolist()

    assert weight("token_truncate", None, 2.0) == pytest.approx([0.4, 0.9, 1.5, 2.0])
    assert weight("token_mask", 0.5, 2.0) == pytest.approx([0.0, 0.9, 1.5, 0.0])
    assert weight("sequence_mask", None, 3.0) == pytest.approx([1.404], abs=1e-12)
    assert weight("sequence_mask", None, 1.4) == [0.0]
    assert weight("sequence_truncate", None, 1.2) == pytest.approx([1.2])
    assert weight("geometric_truncate", None, 2.0) == pytest.approx([1.404**0.25])


def test_off_policy_sequence_mask():
    """Wrong answers that the policy has left by more than the threshold a token go; right answers always stay."""
    behaviour = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    logps = torch.tensor([[-1.2, -1.0], [-1.2, -1.0]])  # 0.1 nats a token
    advantages, mask = torch.tensor([[1.0], [-1.0]]), torch.ones(2, 2, dtype=torch.bool)
    assert off_policy_mask(advantages, logps, behaviour, mask, 0.05).flatten().tolist() == [True, False]
    assert off_policy_mask(advantages, logps, behaviour, mask, 0.15).flatten().tolist() == [True, True]
    behaviour[1, 0] = torch.nan
    assert off_policy_mask(advantages, logps, behaviour, mask, 0.05).flatten().tolist() == [True, True]
