"""What must be equal whatever the numbers: gradients on policy, KL's gradient, sequences and their tokens."""

import math

import pytest
import torch

from assay.objectives import PRESETS, Denominators, PolicyOutputs, Rows, build, preset
from assay.objectives.kl import KL_ESTIMATORS, importance_weighted_kl
from assay.objectives.surrogates import cispo

MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4, [True, False, True, True, False]])
ADVANTAGES = torch.tensor([0.7, -1.3, 2.0, -0.2], dtype=torch.float64)
WINDOW = Denominators.from_sums(Denominators.measure(MASK, torch.arange(4) // 2), max_completion_length=6)
GROUP_TOKENS = torch.tensor([8.0, 8.0, 4.0, 4.0])


def random_logps(seed=0):
    return -torch.rand(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.1


def gradient(spec, logps, old=None, ref=None, advantages=ADVANTAGES):
    logps = logps.clone().requires_grad_()
    zeros = torch.zeros_like(logps)
    rows = Rows(MASK, advantages, old, None, ref, zeros, zeros, group_tokens=GROUP_TOKENS)
    loss, _ = build(spec)(PolicyOutputs(logps, zeros, zeros), rows, WINDOW)
    return torch.autograd.grad(loss, logps)[0]


ON_POLICY = [name for name, row in PRESETS.items() if row.fields["loss_type"] not in ("a_star_po", "reinforce")]


@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize("stored", [True, False], ids=["old given", "old is the policy"])
def test_on_policy_gradient_is_that_of_reinforce(name, stored):
    """Every surrogate is -A log pi to first order where the policy has not moved; only the weights differ."""
    spec = preset(name, beta=0.0, sync_ref_model=False, top_entropy_quantile=1.0)
    logps = random_logps()
    weights = build(spec).row_weights(MASK, WINDOW, torch.float64, group_tokens=GROUP_TOKENS)
    expected = torch.where(MASK, -ADVANTAGES.unsqueeze(1) * weights.unsqueeze(1), 0.0)
    if spec.importance_sampling_level == "sequence_sum":  # the sequence's loss is spread as tokens x weight
        expected = expected * MASK.sum(-1, keepdim=True)
    actual = gradient(spec, logps, old=logps.clone() if stored else None)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_weighted_kl_gradient_is_beta_times_the_log_ratio(estimator):
    logps, ref = random_logps(), random_logps(1)
    spec = preset("dapo", beta=0.3, kl_estimator=estimator)
    actual = gradient(spec, logps, ref=ref, advantages=torch.zeros(4))
    torch.testing.assert_close(actual, torch.where(MASK, 0.3 * (logps - ref), 0.0) / WINDOW.all_tokens)


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_weighted_kl_is_unbiased_off_policy(estimator):
    """Summed over a whole vocabulary under the old policy, the gradient is that of the exact reverse KL."""
    g = torch.Generator().manual_seed(0)
    scores, old_scores, ref_scores = (torch.randn(6, generator=g, dtype=torch.float64) for _ in range(3))
    scores.requires_grad_()
    logps, old, ref = (x.log_softmax(0) for x in (scores, old_scores, ref_scores))
    estimate = importance_weighted_kl(logps, ref, (logps - old).exp(), estimator)
    (actual,) = torch.autograd.grad((old.exp() * estimate).sum(), scores, retain_graph=True)
    (exact,) = torch.autograd.grad((logps.exp() * (logps - ref)).sum(), scores)
    torch.testing.assert_close(actual, exact)


def test_plain_k3_has_another_gradient():
    logps, ref = random_logps(), random_logps(1)
    spec = preset("dapo", beta=1.0, use_bias_correction_kl=False)
    actual = gradient(spec, logps, ref=ref, advantages=torch.zeros(4)) * WINDOW.all_tokens
    torch.testing.assert_close(actual, torch.where(MASK, 1 - (ref - logps).exp(), 0.0))


def test_equal_rewards_give_a_gradient_of_exactly_zero():
    for name in ("grpo", "dapo", "gspo", "cispo", "sapo", "gmpo", "vespo", "rloo"):
        spec = preset(name, beta=0.0)
        assert gradient(spec, random_logps(), old=random_logps(1), advantages=torch.zeros(4)).abs().max() == 0


def test_gspo_token_equals_gspo_for_sequence_advantages():
    wide = {"epsilon": 0.05, "epsilon_high": 0.05}
    logps, old = random_logps(), random_logps(1)
    tokens = preset("gspo", importance_sampling_level="sequence_token", **wide)
    torch.testing.assert_close(gradient(preset("gspo", **wide), logps, old), gradient(tokens, logps, old))


def test_luspo_is_gspo_times_length():
    logps, old = random_logps(), random_logps(1)
    bounds = {"epsilon": 0.5, "epsilon_high": 0.5}
    longer = gradient(preset("gspo", **bounds), logps, old) * MASK.sum(-1, keepdim=True)
    torch.testing.assert_close(gradient(preset("luspo", **bounds), logps, old), longer)


def test_cispo_with_an_unreachable_cap_is_importance_weighted_reinforce():
    logps, old = random_logps(), random_logps(1)
    ratio = (logps - old).exp()
    expected = torch.where(MASK, -ratio * ADVANTAGES.unsqueeze(1), 0.0) / WINDOW.tokens
    torch.testing.assert_close(gradient(preset("cispo", epsilon_high=1e9), logps, old), expected)


def test_cispo_takes_any_cap_and_configuration_does_not(golden, example):
    """TRL's untouched epsilon_high: every weight is 0.28. The function computes it; a spec refuses it and says why."""
    logps, rows, _ = example
    loss = cispo(logps, (logps - rows["old_logps"]).exp(), rows["advantages"].unsqueeze(1), cap=0.28)
    mean = loss[rows["mask"]].sum() / 6
    assert mean.item() == pytest.approx(golden["cispo_max0.28"]["loss"], abs=1e-9)
    with pytest.raises(ValueError, match=r"caps every token.s weight at 0\.28"):
        preset("cispo", epsilon_high=0.28)


def test_sapo_gate():
    """Value 2/tau and gradient 1 where the policy has not moved; the paper's two worked ratios elsewhere."""
    from assay.objectives.surrogates import sapo

    for ratio, advantage, value, slope in ((1.0, 1.0, 2.0, 1.0), (1.35, 1.0, 2.346470, 0.969990), (0.6, -1.0, 1.510540, 0.957165)):  # fmt: skip  # noqa: E501
        r = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
        gate = sapo(r, torch.tensor(advantage, dtype=torch.float64), 1.0, 1.05) / -advantage
        assert gate.item() == pytest.approx(value, abs=1e-6)
        assert torch.autograd.grad(gate, r)[0].item() == pytest.approx(slope, abs=1e-6)


def test_vespo_weight_is_one_on_policy_and_peaks_where_the_paper_says():
    from assay.objectives.surrogates import vespo_weight

    def phi(w, advantage):
        return vespo_weight(torch.tensor(math.log(w), dtype=torch.float64), torch.tensor(advantage), 2, 3, 3, 2).item()

    assert phi(1.0, 1.0) == phi(1.0, -1.0) == 1.0
    assert [phi(2.0, 1.0), phi(0.5, 1.0)] == pytest.approx([0.199148, 1.120422], abs=1e-6)
    assert [phi(2.0, -1.0), phi(0.5, -1.0)] == pytest.approx([1.082682, 0.339785], abs=1e-6)
    for peak, advantage in ((2 / 3, 1.0), (1.5, -1.0)):
        assert phi(peak, advantage) > max(phi(peak * 0.99, advantage), phi(peak * 1.01, advantage))


def test_a_star_po_regresses_on_the_reward_above_the_optimal_value():
    """(beta2 (log pi - log ref)(y) - (r - V*))^2 per sequence, averaged over sequences."""
    logps, ref = random_logps(), random_logps(1)
    total = torch.where(MASK, logps - ref, 0.0).sum(-1)
    rows = Rows(MASK, ADVANTAGES, ref_logps=ref)
    loss, _ = build(preset("a_star_po", a_star_beta2=0.5))(PolicyOutputs(logps), rows, WINDOW)
    assert loss.item() == pytest.approx((0.5 * total - ADVANTAGES).square().mean().item())


def test_rloo_ratio_is_the_product_over_the_sequence():
    logps, old = random_logps(), random_logps() - 0.01
    product = torch.where(MASK, logps - old, 0.0).sum(-1).exp()
    expected = torch.where(MASK, (-product * ADVANTAGES / 4).unsqueeze(1), 0.0)
    torch.testing.assert_close(gradient(preset("rloo", beta=0.0), logps, old), expected)


def test_value_loss_is_averaged_over_all_tokens(run):
    mask, tensors = MASK, [torch.rand(4, 5, dtype=torch.float64) for _ in range(3)]
    values = tensors[0].requires_grad_()
    rows = Rows(mask, torch.zeros(4, 5), old_values=tensors[1], returns=tensors[2])
    spec = preset("ppo", cliprange_value=100.0, vf_coef=0.3, beta=0.0)
    loss, _ = build(spec)(PolicyOutputs(random_logps(), values=values), rows, WINDOW)
    expected = 0.3 * 0.5 * (values - tensors[2])[mask].square().mean()
    assert loss.item() == pytest.approx(expected.item())
