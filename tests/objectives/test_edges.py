"""Half precision, infinities, NaNs, empty rows: a defined finite result, or an error that names the place."""

import pytest
import torch

from assay.objectives import (
    PRESETS,
    Denominators,
    Metrics,
    PolicyOutputs,
    Rows,
    TokenInputs,
    build,
    compute_advantages,
    preset,
)

MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
WINDOW = Denominators.from_sums(Denominators.measure(MASK, torch.zeros(3, dtype=torch.long)), max_completion_length=3)
ALL = [name for name in PRESETS if name != "reinforce"]


def run(name, logps, mask=MASK, window=WINDOW, advantages=None, **rows):
    logps = logps.clone().requires_grad_()
    n = len(mask)
    given = {
        "old_logps": torch.full(mask.shape, -1.0), "sampling_logps": torch.full(mask.shape, -1.0),
        "ref_logps": torch.full(mask.shape, -1.0), "old_values": torch.zeros(mask.shape),
        "returns": torch.zeros(mask.shape), "group_tokens": mask.sum().float().expand(n),
    } | rows  # fmt: skip
    advantages = torch.linspace(-1, 1, n) if advantages is None else advantages
    outputs = PolicyOutputs(logps, torch.ones(mask.shape), torch.zeros(mask.shape))
    loss, metrics = build(preset(name))(outputs, Rows(mask, advantages, **given), window)
    (gradient,) = torch.autograd.grad(loss, logps)
    return loss, gradient, metrics


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_computed_in_single(name, dtype):
    logps = torch.tensor([[-0.5, -1.5, -0.75], [-2.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])  # exact in all three
    loss, gradient, _ = run(name, logps.to(dtype))
    expected_loss, expected, _ = run(name, logps)
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(gradient.float(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", ALL)
def test_padding_may_hold_anything(name):
    logps = torch.full((3, 3), -1.5)
    clean_loss, clean, clean_metrics = run(name, logps)
    dirty = torch.where(MASK, logps, torch.tensor([torch.nan, torch.inf, -torch.inf]))
    rubbish = {key: torch.where(MASK, -1.0, torch.nan) for key in ("old_logps", "sampling_logps", "ref_logps")}
    loss, gradient, metrics = run(name, dirty, **rubbish)
    assert loss == clean_loss
    torch.testing.assert_close(gradient, clean)
    assert metrics.values() == clean_metrics.values()


@pytest.mark.parametrize("name", ALL)
def test_nothing_counts(name):
    """All rows masked, or no row at all: zero loss, zero gradient, the same metric names, no numbers made up."""
    whole = run(name, torch.full((3, 3), -1.5))[2]
    nothing = torch.zeros(3, 3, dtype=torch.bool)
    empty_window = Denominators.from_sums(Denominators.measure(nothing, torch.zeros(3)), max_completion_length=3)
    for mask in (nothing, nothing[:0], nothing[:, :0]):
        loss, gradient, metrics = run(name, torch.full(mask.shape, -1.5), mask, empty_window)
        assert loss == 0
        assert gradient.abs().sum() == 0
        assert [len(x) for x in metrics.pack()] == [len(x) for x in whole.pack()]
        assert set(metrics.values()) <= {"loss", "policy_loss", "value_loss", "entropy_coef"}


@pytest.mark.parametrize("field", ["logps", "old_logps", "ref_logps", "advantages"])
@pytest.mark.parametrize("bad", [-torch.inf, torch.nan])
def test_an_impossible_number_is_refused_with_its_place(field, bad):
    tensor = torch.full((3, 3), -1.0)
    tensor[0, 2] = bad
    logps = tensor if field == "logps" else torch.full((3, 3), -1.0)
    rows = {} if field == "logps" else {field: tensor}
    with pytest.raises(ValueError, match=f"{field} of row 0, token 2 is not finite"):
        run("grpo", logps, **rows)


def test_sampler_without_a_log_probability_gets_weight_one():
    sampling = torch.full((3, 3), -1.0)
    sampling[0, 1] = torch.nan
    _, gradient, metrics = run("grpo", torch.full((3, 3), -1.0), sampling_logps=sampling)
    _, expected, _ = run("grpo", torch.full((3, 3), -1.0))
    torch.testing.assert_close(gradient, expected)
    assert metrics.values()["sampling/importance_sampling_ratio/max"] == 1.0
    sampling[0, 1] = -torch.inf
    with pytest.raises(ValueError, match="sampling_logps of row 0, token 1"):
        run("grpo", torch.full((3, 3), -1.0), sampling_logps=sampling)


def test_a_ratio_beyond_the_floating_point_range_is_clipped_and_counted():
    """exp(200) overflows in float32, and infinity times the clipped branch's zero gradient would be NaN."""
    logps, old = torch.full((3, 3), -1.0), torch.full((3, 3), -1.0)
    old[0, 0] = -201.0
    loss, gradient, metrics = run("grpo", logps, advantages=torch.ones(3), old_logps=old, sampling_logps=None)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert gradient[0, 0] == 0
    assert metrics.values()["guard/ratio_overflow"] == pytest.approx(1 / 4)


def test_an_overflowing_loss_is_an_error():
    old = torch.full((3, 3), -1.0)
    old[0] = -3e38
    with pytest.raises(ValueError, match=r"not finite|overflowed"):
        run("grpo", torch.full((3, 3), -1.0), advantages=-torch.full((3,), 1e30), old_logps=old, sampling_logps=None)


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("deepseek_r1", {"ref_logps": None}, "ref_logps"),
        ("ppo", {"returns": None}, "Rows.returns"),
        ("scalerl", {"group_tokens": None}, "group_tokens"),
    ],
)
def test_missing_tensors_are_named(name, missing, message):
    with pytest.raises(ValueError, match=message):
        run(name, torch.full((3, 3), -1.0), **missing)


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp"])
def test_kl_in_the_reward_needs_no_reference_in_the_loss(name):
    loss, _, metrics = run(name, torch.full((3, 3), -1.0), ref_logps=None)
    assert torch.isfinite(loss)
    assert "kl" not in metrics.values()  # it is among the advantages' metrics


def test_the_engines_gap_is_measured_even_where_it_is_not_corrected():
    spec = preset("grpo", vllm_importance_sampling_correction=False)
    rows = Rows(MASK, torch.ones(3), sampling_logps=torch.full((3, 3), -1.5))
    logps = torch.full((3, 3), -1.0, requires_grad=True)
    loss, metrics = build(spec)(PolicyOutputs(logps), rows, WINDOW)
    bare, _ = build(spec)(PolicyOutputs(logps), Rows(MASK, torch.ones(3)), WINDOW)
    assert loss == bare
    assert metrics.values()["sampling/sampling_logp_difference/mean"] == pytest.approx(0.5)


@pytest.mark.parametrize("name", PRESETS)
def test_a_rank_may_have_no_groups(name):
    mask, nothing, ids = torch.zeros(0, 0, dtype=torch.bool), torch.zeros(0, 0), torch.zeros(0, dtype=torch.long)
    tokens = TokenInputs(mask, nothing, nothing, nothing)
    result = compute_advantages(torch.zeros(0, 2), ids, None, preset(name), tokens=tokens, baselines=torch.zeros(0))
    assert len(result.advantages) == len(result.no_signal) == 0
    assert build(preset(name)).measure(mask, ids, result.no_signal).tolist() == [0.0] * 8
    assert result.metrics.values() == {}


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="must both be"):
        run("grpo", torch.full((3, 2), -1.0))


def test_dr_grpo_needs_its_constant():
    window = Denominators.from_sums(Denominators.measure(MASK, torch.zeros(3)))
    with pytest.raises(ValueError, match="max_completion_length"):
        run("dr_grpo", torch.full((3, 3), -1.0), window=window)


def test_metrics_without_observations_have_no_value():
    metrics = Metrics()
    metrics.mean("kl", 0.0, 0)
    metrics.maximum("ratio/max", torch.zeros(2), torch.zeros(2, dtype=torch.bool))
    assert metrics.values() == {}
