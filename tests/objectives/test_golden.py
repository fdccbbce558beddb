"""Loss, gradient and metrics against numbers that TRL 1.16's own loss code computed (tests/data)."""

import pytest
import torch

from assay.objectives import build, preset

OFF_POLICY_WEIGHTS = torch.tensor([[0.4, 0.9, 1.5, 2.6], [1.2, 0.8, 1.0, 1.0]], dtype=torch.float64)
TOKEN_MASK = {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": None}
SEQUENCE_MASK = {"vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 3.0}
TRL = {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}

# case -> (fields that differ from TRL's example configuration, how the example is run)
CASES = {
    "grpo": ({"loss_type": "grpo"}, {}),
    "bnpo": ({"loss_type": "bnpo"}, {}),
    "dr_grpo_L8": ({"loss_type": "dr_grpo"}, {}),
    "dapo": ({}, {}),
    "cispo_max5": ({"loss_type": "cispo", "epsilon_high": 5.0}, {}),
    "sapo": ({"loss_type": "sapo"}, {}),
    "luspo_seq": ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, {}),
    "luspo_seq_paper_eps": (
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3},
        {},
    ),
    "luspo_token": ({"loss_type": "luspo"}, {}),
    "gspo_paper_eps": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        {},
    ),
    "gspo_wide": ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, {}),
    "dapo_seq": ({"importance_sampling_level": "sequence"}, {}),
    "vespo": ({"loss_type": "vespo"}, {}),
    "grpo_delta1.3": ({"loss_type": "grpo", "delta": 1.3}, {}),
    "gmpo_0.4": ({"loss_type": "gmpo", "epsilon": 0.4, "epsilon_high": 0.4}, {}),
    "gmpo_0.2": ({"loss_type": "gmpo", "epsilon": 0.2, "epsilon_high": 0.2}, {}),
    "dapo_beta0.1_biascorr": ({"beta": 0.1}, {}),
    "dapo_beta0.1_nobias": ({"beta": 0.1, "use_bias_correction_kl": False}, {}),
    "dapo_beta0.1_biascorr_onpolicy": ({"beta": 0.1}, {"on_policy": True}),
    "dapo_beta0.1_nobias_onpolicy": ({"beta": 0.1, "use_bias_correction_kl": False}, {"on_policy": True}),
    "dapo_onpolicy": ({}, {"on_policy": True, "old_logps": None}),
    "dapo_topq0.2": ({"top_entropy_quantile": 0.2}, {}),
    "dapo_topq0.5": ({"top_entropy_quantile": 0.5}, {}),
    "dapo_topq0.0": ({"top_entropy_quantile": 0.0}, {}),
    "dapo_entropy0.05": ({"entropy_coef": 0.05}, {}),
    "dapo_opsm0.05": ({"off_policy_mask_threshold": 0.05}, {}),
    "dapo_opsm0.06": ({"off_policy_mask_threshold": 0.06}, {}),
    "dapo_IS_token": (TOKEN_MASK, {"sampling": OFF_POLICY_WEIGHTS}),
    "dapo_IS_seqmask": (SEQUENCE_MASK, {"sampling": OFF_POLICY_WEIGHTS * torch.tensor([[1.0], [4.0]])}),
    "vespo_IS_token": ({"loss_type": "vespo", **TOKEN_MASK}, {"sampling": OFF_POLICY_WEIGHTS}),
    "dapo_gas2_spg4_items24": ({}, {"counts": {"tokens": 24 * 2 / 4}}),
    "grpo_gas2": ({"loss_type": "grpo"}, {"counts": {"rows": 4.0}}),
}

# Computed elsewhere: the controller's steps (test_entropy.py), a cap that configuration refuses (test_surrogates.py).
ELSEWHERE = {"dapo_adaptive_first", "dapo_adaptive_active", "dapo_adaptive_decrement", "cispo_max0.28"}


def test_no_golden_case_is_left_out(golden):
    assert set(golden) == set(CASES) | ELSEWHERE


@pytest.mark.parametrize("case", CASES)
def test_equals_trl(case, golden, run, example):
    fields, how = CASES[case]
    how = dict(how)
    if "sampling" in how:
        how["sampling_logps"] = example[1]["old_logps"] - how.pop("sampling").log()
    loss, gradient, metrics = run(build(preset("dapo", **{**TRL, **fields})), **how)
    expected = golden[case]
    assert loss == pytest.approx(expected["loss"], abs=1e-9)
    torch.testing.assert_close(gradient, torch.tensor(expected["grad"], dtype=torch.float64), atol=1e-9, rtol=0)
    for name, value in expected["metrics"].items():
        if name != "policy_loss":  # TRL logs it before its division by accumulation steps
            assert metrics[name] == pytest.approx(value, abs=1e-6), name


def test_policy_loss_leaves_the_bonus_out(golden, run):
    _, _, metrics = run(build(preset("dapo", **TRL, entropy_coef=0.05)))
    assert metrics["policy_loss"] == pytest.approx(golden["dapo_entropy0.05"]["metrics"]["policy_loss"], abs=1e-9)
