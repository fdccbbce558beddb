"""Published methods as points on the axes, and the same point as other frameworks compute it.

`fields` are what the paper says of the objective; what it leaves open stays at the default of `ObjectiveSpec`.
`recipe` holds the paper's constants that are no business of an objective (group size, learning rate, lengths).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.objectives.spec import LOSS_TYPES, ObjectiveSpec


@dataclass(frozen=True)
class Preset:
    """One published method: its fields of `ObjectiveSpec`, where they are from, and the rest of its constants."""

    source: str
    fields: dict[str, Any]
    recipe: dict[str, Any] = field(default_factory=dict)


_DAPO: dict[str, Any] = {
    "loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0, "count_no_signal": False,
}  # fmt: skip
_REINFORCE_PP: dict[str, Any] = {
    "loss_type": "dapo", "epsilon": 0.2, "baseline": "none", "scale_rewards": "none", "whiten_advantages": True,
    "beta": 0.01, "kl_in": "reward_token", "kl_estimator": "k1",
}  # fmt: skip

PRESETS: dict[str, Preset] = {
    "reinforce": Preset(
        "Williams 1992; sequence-level, no baseline",
        {"loss_type": "reinforce", "baseline": "none", "scale_rewards": "none"},
    ),
    "rloo": Preset(
        "arXiv:2402.14740; beta as in TRL (the paper's runs: 0.03)",
        {
            "loss_type": "grpo", "importance_sampling_level": "sequence_sum", "baseline": "leave_one_out",
            "scale_rewards": "none", "beta": 0.05, "kl_in": "reward", "kl_estimator": "k1", "epsilon": 0.2,
        },
        {"num_generations": 4, "learning_rate": 1e-6},
    ),
    "reinforce_pp": Preset("arXiv:2501.03262; token KL in the reward, whitened; OpenRLHF's beta", _REINFORCE_PP),
    "reinforce_pp_baseline": Preset(
        "arXiv:2501.03262, REINFORCE++-baseline: group mean, then the batch's std of the centred rewards, k2 loss",
        {
            "loss_type": "dapo", "epsilon": 0.2, "baseline": "group_mean", "scale_rewards": "batch_centred",
            "beta": 0.001, "kl_in": "loss", "kl_estimator": "k2",
        },
    ),
    "ppo": Preset(
        "arXiv:1707.06347, constants of TRL 1.12's PPOTrainer",
        {
            "loss_type": "dapo", "baseline": "value", "scale_rewards": "none", "whiten_advantages": True,
            "epsilon": 0.2, "gamma": 1.0, "lam": 0.95, "vf_coef": 0.1, "cliprange_value": 0.2,
            "beta": 0.05, "kl_in": "reward_token", "kl_estimator": "k1",
        },
        {"num_iterations": 4, "learning_rate": 3e-6, "temperature": 0.7},
    ),
    "grpo": Preset(
        "arXiv:2402.03300 eq. 3; without its KL term (0.04), as most runs since: set beta to have it",
        {"loss_type": "grpo", "epsilon": 0.2, "scale_rewards": "group", "beta": 0.0},
        {"num_generations": 64, "learning_rate": 1e-6, "max_completion_length": 1024, "paper_beta": 0.04},
    ),
    "deepseek_r1": Preset(
        "arXiv:2501.12948; the reference is replaced by the policy every 400 steps",
        {
            "loss_type": "grpo", "epsilon": 10.0, "beta": 0.001, "kl_estimator": "k3", "use_bias_correction_kl": False,
            "sync_ref_model": True, "ref_model_mixup_alpha": 1.0, "ref_model_sync_steps": 400,
        },
        {"num_generations": 16, "learning_rate": 3e-6, "temperature": 1.0, "max_completion_length": 32768},
    ),
    "dr_grpo": Preset(
        "arXiv:2503.20783 sec. 3.2: constant divisor, no std",
        {"loss_type": "dr_grpo", "scale_rewards": "none", "epsilon": 0.2, "beta": 0.0},
        {"num_generations": 8, "learning_rate": 1e-6},
    ),
    "dapo": Preset(
        "arXiv:2503.14476: token mean, clip-higher, no KL, groups without signal replaced",
        _DAPO,
        {
            "num_generations": 16, "prompts_per_step": 512, "learning_rate": 1e-6, "max_completion_length": 20480,
            "overlong_cache": 4096, "refill": True,
        },
    ),
    "gspo": Preset(
        "arXiv:2507.18071 sec. 5: sequence ratio, tiny clip range, 4 updates a round",
        {
            "loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4,
            "beta": 0.0,
        },
        {"steps_per_generation": 4},
    ),
    "cispo": Preset(
        "arXiv:2506.13585 eq. 4; the cap is ScaleRL's (arXiv:2510.13786), MiniMax-M1 does not print one",
        {"loss_type": "cispo", "epsilon_high": 5.0, "beta": 0.0},
    ),
    "sapo": Preset(
        "arXiv:2511.20347: soft gate, sharper for wrong answers",
        {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "beta": 0.0},
    ),
    "gmpo": Preset(
        "arXiv:2507.20673: geometric mean, clipped token by token in log space at (e^-0.4, e^0.4)",
        {"loss_type": "gmpo", "epsilon": 0.4, "epsilon_high": 0.4, "beta": 0.0},
    ),
    "luspo": Preset(
        "arXiv:2602.05261: GSPO without the division by length",
        {
            "loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3,
            "beta": 0.0,
        },
    ),
    "vespo": Preset(
        "arXiv:2602.10693: soft sequence weight W^k exp(lambda (1 - W))",
        {
            "loss_type": "vespo", "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0,
            "vespo_lambda_neg": 2.0, "beta": 0.0, "vllm_importance_sampling_mode": "token_truncate",
        },
    ),
    "gdpo": Preset(
        "arXiv:2601.05242: each reward normalised in its group, then the batch",
        {"loss_type": "grpo", "multi_objective_aggregation": "normalize_then_sum"},
    ),
    "scalerl": Preset(
        "arXiv:2510.13786: CISPO, prompt average, batch-level scale, groups without signal dropped",
        {
            "loss_type": "cispo", "aggregation": "prompt", "epsilon_high": 5.0, "scale_rewards": "batch",
            "count_no_signal": False, "beta": 0.0,
        },
        {"num_generations": 16, "retire_pass_rate": 0.9, "max_staleness": 8, "head_dtype": "float32"},
    ),
    "skywork_or1": Preset(
        "arXiv:2505.22312: token mean, adaptive entropy at 0.2 nats, no KL, groups without signal dropped",
        {
            "loss_type": "dapo", "epsilon": 0.2, "use_adaptive_entropy": True, "entropy_target": 0.2,
            "entropy_coef_delta": 0.005, "beta": 0.0, "count_no_signal": False, "mask_truncated_completions": False,
        },
        {"num_generations": 16, "temperature": 1.0, "learning_rate": 1e-6},
    ),
    "eighty_twenty": Preset(
        "arXiv:2506.01939: DAPO on the fifth of the tokens with the highest entropy",
        {**_DAPO, "top_entropy_quantile": 0.2},
        {"num_generations": 16},
    ),
    "lite_ppo": Preset(
        "arXiv:2508.08221: group mean, batch std, token mean",
        {"loss_type": "dapo", "scale_rewards": "batch", "beta": 0.0},
    ),
    "intellect_2": Preset(
        "arXiv:2505.07291: two-sided clip",
        {"loss_type": "grpo", "epsilon": 0.2, "delta": 4.0, "beta": 0.001},
        {"learning_rate": 3e-7},
    ),
    "icepop": Preset(
        "arXiv:2510.18855 (Ring-1T): tokens far from the engine's probability masked; INTELLECT-3's bounds",
        {
            "loss_type": "grpo", "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": 5.0,
        },
    ),
    "a_star_po": Preset(
        "arXiv:2505.20686: regression on r - V*, V* from 8 samples of the reference",
        {
            "loss_type": "a_star_po", "baseline": "given", "scale_rewards": "none", "a_star_beta1": 0.5,
            "a_star_beta2": 1e-3,
        },
        {"num_generations": 1, "stage1_samples": 8},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """The constants that make one framework's numbers differ from another's for the same method."""

    fields: dict[str, Any]
    cispo_cap_is_offset: bool = False
    cispo_has_floor: bool = False


DIALECTS: dict[str, Dialect] = {
    "trl": Dialect(
        {
            "std_kind": "sample", "std_eps": 1e-4, "count_no_signal": True, "count_truncated": True,
            "vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 3.0,
        }
    ),
    "verl": Dialect(
        {"std_kind": "sample", "std_eps": 1e-6, "count_no_signal": True}, cispo_cap_is_offset=True, cispo_has_floor=True
    ),
    "skyrl": Dialect({"std_kind": "sample", "std_eps": 1e-6}, cispo_cap_is_offset=True, cispo_has_floor=True),
    "openrlhf": Dialect({"std_kind": "sample", "std_eps": 1e-9}),
    "rllm": Dialect({"std_kind": "population", "std_eps": 1e-6}),
    "open_instruct": Dialect({"std_kind": "population", "std_eps": 1e-8}, cispo_cap_is_offset=True),
}  # fmt: skip


def preset(name: str, *, dialect: str | None = None, **overrides: Any) -> ObjectiveSpec:
    """The spec of a published method. `dialect` takes a framework's constants, then any field may be overridden.

    Where a framework writes CISPO's cap as a distance from 1, `epsilon` and `epsilon_high` are given (and default to)
    its way; verl and SkyRL clip the weight on both sides, to [1 - epsilon, 1 + epsilon_high].

    >>> preset("dapo").epsilon_high, preset("grpo", dialect="verl").std_eps
    (0.28, 1e-06)
    >>> preset("cispo", dialect="verl", epsilon_high=0.28).epsilon_high
    1.28

    Raises ValueError for an unknown preset, dialect or field.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    if dialect is not None and dialect not in DIALECTS:
        raise ValueError(f"unknown dialect {dialect!r}; choose one of {', '.join(DIALECTS)}")
    unknown = sorted(set(overrides) - set(ObjectiveSpec.__dataclass_fields__))
    if unknown:
        raise ValueError(f"unknown objective field {unknown[0]!r}")
    fields = dict(PRESETS[name].fields)
    if dialect is not None:
        fields |= _in_dialect(fields, DIALECTS[dialect], overrides)
    return ObjectiveSpec(**{**fields, **overrides, **_offset_cap(fields, overrides, dialect)})


def _in_dialect(fields: dict[str, Any], dialect: Dialect, overrides: dict[str, Any]) -> dict[str, Any]:
    """The dialect's fields, where this method lets them apply."""
    changed = dict(dialect.fields)
    if _surrogate(fields | overrides) == "vespo" or fields.get("vllm_importance_sampling_clip_min") is not None:
        for name in ("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max"):
            changed.pop(name, None)
    return changed


def _offset_cap(fields: dict[str, Any], overrides: dict[str, Any], dialect: str | None) -> dict[str, Any]:
    """CISPO's bounds from a dialect that writes them as distances from 1."""
    if dialect is None or not DIALECTS[dialect].cispo_cap_is_offset or _surrogate(fields | overrides) != "cispo":
        return {}
    low = overrides.get("epsilon", fields.get("epsilon", 0.2))
    high = overrides.get("epsilon_high")
    if high is None:
        high = low
    return {
        "epsilon_high": 1.0 + high,
        "cispo_min_weight": max(1.0 - low, 0.0) if DIALECTS[dialect].cispo_has_floor else 0.0,
    }


def _surrogate(fields: dict[str, Any]) -> str:
    return fields.get("surrogate") or LOSS_TYPES[fields.get("loss_type", "dapo")][0]
