"""Specs refuse what cannot mean anything; presets hold the papers' constants; dialects the frameworks'."""

from dataclasses import fields
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import torch

from assay.objectives import (
    AGGREGATIONS,
    DIALECTS,
    LOSS_TYPES,
    PRESETS,
    RATIO_LEVELS,
    SURROGATES,
    ObjectiveSpec,
    build,
    compute_advantages,
    preset,
)
from assay.objectives import spec as axes
from assay.objectives.advantages import BASELINES


def test_choices_and_tables_name_the_same_things():
    assert set(get_args(axes.LossType)) == set(LOSS_TYPES)
    assert set(get_args(axes.Surrogate)) == set(SURROGATES)
    assert set(get_args(axes.Aggregation)) == set(AGGREGATIONS)
    assert set(get_args(axes.RatioLevel)) == set(RATIO_LEVELS)
    assert set(get_args(axes.Baseline)) == {*BASELINES, "value"}
    for surrogate, aggregation in LOSS_TYPES.values():
        assert surrogate in SURROGATES
        assert aggregation in AGGREGATIONS


def test_every_field_says_why_one_would_change_it():
    hints = get_type_hints(ObjectiveSpec, include_extras=True)
    for item in fields(ObjectiveSpec):
        assert get_origin(hints[item.name]) is Annotated, item.name
        sentence = get_args(hints[item.name])[1]
        assert sentence.endswith("."), item.name


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"loss_type": "grop"}, "loss_type='grop' is unknown; choose one of grpo"),
        ({"scale_rewards": "std"}, "scale_rewards='std'"),
        ({"importance_sampling_level": "seq"}, "importance_sampling_level"),
        ({"multi_objective_aggregation": "sum"}, "multi_objective_aggregation"),
        ({"vllm_importance_sampling_mode": "mask"}, "vllm_importance_sampling_mode"),
        ({"kl_estimator": "k4"}, "kl_estimator"),
        ({"epsilon": -1.0}, "epsilon=-1.0 must be a number of at least 0"),
        ({"epsilon": float("nan")}, "epsilon=nan"),
        ({"epsilon": "far"}, "epsilon='far' must be a number"),
        ({"top_entropy_quantile": 2.0}, "between 0 and 1"),
        ({"delta": 0.0}, "delta=0.0 must be a number above 0"),
        ({"loss_type": "cispo"}, r"epsilon_high=0\.2 with cispo caps"),
        ({"surrogate": "cispo"}, r"epsilon_high=0\.2 with cispo caps"),
        ({"loss_type": "vespo", "importance_sampling_level": "sequence"}, "vespo has its own"),
        ({"loss_type": "vespo", "vllm_importance_sampling_mode": "sequence_mask"}, "vespo takes token weights"),
        ({"loss_type": "gmpo", "importance_sampling_level": "sequence"}, "gmpo forms its own"),
        ({"vllm_importance_sampling_clip_max": None}, "needs a clip_max"),
        ({"vllm_importance_sampling_clip_min": 3.0}, "must be below"),
        ({"sync_ref_model": True}, "set beta above 0"),
        ({"loss_type": "a_star_po"}, "baseline must be given"),
        ({"entropy_coef_min": 2.0}, "entropy_coef_min"),
        ({"reward_clip_range": (1.0, -1.0)}, "reward_clip_range"),
    ],
)
def test_refusals(bad, message):
    with pytest.raises(ValueError, match=message):
        ObjectiveSpec(**bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"name": "gropo"}, "unknown preset 'gropo'; choose one of reinforce"),
        ({"name": "grpo", "dialect": "vrel"}, "unknown dialect 'vrel'"),
        ({"name": "grpo", "epsilonn": 1}, "unknown objective field 'epsilonn'"),
    ],
)
def test_preset_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        preset(**call)


@pytest.mark.parametrize("dialect", [None, *DIALECTS])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_in_every_dialect(name, dialect):
    objective = build(preset(name, dialect=dialect))
    assert objective.spec.surrogate_name in SURROGATES


# What the papers print (or TRL's documentation of them), written here a second time.
PUBLISHED = {
    "dapo": {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0, "aggregation_name": "dapo", "count_no_signal": False},
    "gspo": {"epsilon": 3e-4, "epsilon_high": 4e-4, "importance_sampling_level": "sequence"},
    "luspo": {"epsilon": 2e-3, "epsilon_high": 2.5e-3, "aggregation_name": "luspo"},
    "gmpo": {"epsilon": 0.4, "epsilon_high": 0.4},
    "sapo": {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "aggregation_name": "grpo"},
    "vespo": {"vespo_k_pos": 2, "vespo_lambda_pos": 3, "vespo_k_neg": 3, "vespo_lambda_neg": 2},
    "dr_grpo": {"scale_rewards": "none", "aggregation_name": "dr_grpo", "count_no_signal": True},
    "deepseek_r1": {"beta": 0.001, "epsilon": 10.0, "ref_model_sync_steps": 400, "ref_model_mixup_alpha": 1.0},
    "scalerl": {"epsilon_high": 5.0, "aggregation_name": "prompt", "scale_rewards": "batch", "count_no_signal": False},
    "skywork_or1": {"use_adaptive_entropy": True, "entropy_target": 0.2, "entropy_coef_delta": 0.005},
    "eighty_twenty": {"top_entropy_quantile": 0.2, "epsilon_high": 0.28},
    "ppo": {"gamma": 1.0, "lam": 0.95, "epsilon": 0.2, "cliprange_value": 0.2, "vf_coef": 0.1, "beta": 0.05},
    "rloo": {"importance_sampling_level": "sequence_sum", "kl_in": "reward", "kl_estimator": "k1", "beta": 0.05},
    "a_star_po": {"a_star_beta1": 0.5, "a_star_beta2": 1e-3},
    "intellect_2": {"delta": 4.0, "epsilon": 0.2, "beta": 0.001},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_constants(name):
    spec = preset(name)
    assert {field: getattr(spec, field) for field in PUBLISHED[name]} == PUBLISHED[name]


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("trl", 0.5 / (0.5**0.5 + 1e-4)),
        ("verl", 0.5 / (0.5**0.5 + 1e-6)),
        ("openrlhf", 0.5 / (0.5**0.5 + 1e-9)),
        ("rllm", 0.5 / (0.5 + 1e-6)),
        ("open_instruct", 0.5 / (0.5 + 1e-8)),
    ],
)
def test_dialects_differ_in_the_standard_deviation(dialect, expected):
    rewards, ids = torch.tensor([[1.0], [0.0]], dtype=torch.float64), torch.zeros(2)
    result = compute_advantages(rewards, ids, None, preset("grpo", dialect=dialect))
    assert result.advantages.tolist() == pytest.approx([expected, -expected], abs=1e-12)


def test_dialects_differ_in_what_a_cispo_cap_means():
    assert preset("cispo", dialect="trl", epsilon_high=5.0).upper == 5.0
    verl = preset("cispo", dialect="verl", epsilon=0.1, epsilon_high=4.0)
    assert (verl.upper, verl.cispo_min_weight) == (5.0, 0.9)
    assert preset("cispo", dialect="open_instruct", epsilon_high=0.28).cispo_min_weight == 0.0
    assert preset("cispo", dialect="verl").upper == pytest.approx(1.2)


def test_trl_dialect_counts_every_row():
    mask = torch.tensor([[True, True], [False, False]])
    ids, dead = torch.tensor([0, 1]), torch.tensor([False, True])
    assert build(preset("dapo", dialect="trl")).measure(mask, ids, dead)[1] == 2
    assert build(preset("dapo")).measure(mask, ids, dead)[1] == 1
    assert build(preset("grpo")).measure(mask, ids, dead)[1] == 1  # a masked truncated row is no row


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("grpo", set()),
        ("ppo", {"needs_ref", "needs_values", "needs_logps_for_advantages", "forwards_dead_rows"}),
        ("rloo", {"needs_ref", "needs_logps_for_advantages"}),
        ("deepseek_r1", {"needs_ref", "forwards_dead_rows"}),
        ("skywork_or1", {"needs_entropy", "forwards_dead_rows"}),
        ("eighty_twenty", {"needs_entropy"}),
        ("a_star_po", {"needs_ref"}),
    ],
)
def test_what_an_objective_needs(name, properties):
    objective = build(preset(name))
    names = ("needs_ref", "needs_values", "needs_entropy", "needs_logps_for_advantages", "forwards_dead_rows")
    assert {name for name in names if getattr(objective, name)} == properties


def test_a_surrogate_is_one_row(monkeypatch):
    """The recipe in docs/objectives.md: a function and a table row make a method."""
    from assay.objectives import Denominators, PolicyOutputs, Rows, SurrogateRow

    monkeypatch.setitem(SURROGATES, "ppo_clip", SurrogateRow(lambda x, s: -x.advantages * x.ratio.square() / 2))
    mask = torch.ones(1, 2, dtype=torch.bool)
    logps = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    window = Denominators.from_sums(Denominators.measure(mask, torch.zeros(1)))
    loss, _ = build(preset("dapo"))(PolicyOutputs(logps), Rows(mask, torch.ones(1)), window)
    assert torch.autograd.grad(loss, logps)[0].tolist() == [[-0.5, -0.5]]
