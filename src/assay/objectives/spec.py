"""The point on the axes: one flat, frozen table of choices. Names are TRL's where TRL has the knob."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

# loss_type -> (surrogate, aggregation): TRL's one name for two choices, and the names of papers it does not have.
LOSS_TYPES: dict[str, tuple[str, str]] = {
    "grpo": ("ppo_clip", "grpo"),
    "dapo": ("ppo_clip", "dapo"),
    "dr_grpo": ("ppo_clip", "dr_grpo"),
    "bnpo": ("ppo_clip", "bnpo"),
    "luspo": ("ppo_clip", "luspo"),
    "cispo": ("cispo", "dapo"),
    "sapo": ("sapo", "grpo"),
    "vespo": ("vespo", "dapo"),
    "gmpo": ("gmpo", "grpo"),
    "reinforce": ("reinforce", "luspo"),
    "a_star_po": ("a_star_po", "grpo"),
}

LossType = Literal[
    "grpo", "dapo", "dr_grpo", "bnpo", "luspo", "cispo", "sapo", "vespo", "gmpo", "reinforce", "a_star_po"
]  # fmt: skip
Surrogate = Literal["ppo_clip", "cispo", "sapo", "vespo", "gmpo", "reinforce", "a_star_po"]
Aggregation = Literal["grpo", "dapo", "dr_grpo", "bnpo", "luspo", "prompt"]
Baseline = Literal["group_mean", "leave_one_out", "none", "value", "given"]
Scale = Literal["group", "batch", "batch_centred", "none"]
RatioLevel = Literal["token", "sequence", "sequence_token", "sequence_sum"]
MismatchMode = Literal[
    "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_truncate", "geometric_mask"
]  # fmt: skip


@dataclass(frozen=True)
class ObjectiveSpec:
    """Every choice of a policy-gradient objective. `preset("dapo", beta=0.01)` fills in a published one.

    Raises ValueError, naming the field, for a value outside its choices or range and for combinations that cannot
    mean what they say.
    """

    # surrogate and aggregation
    loss_type: Annotated[LossType, "Names surrogate and aggregation together, as TRL does."] = "dapo"
    surrogate: Annotated[Surrogate | None, "Set to pair another surrogate with loss_type's aggregation."] = None
    aggregation: Annotated[
        Aggregation | None, "Set to weigh tokens differently; `prompt` gives every prompt the same weight (ScaleRL)."
    ] = None
    importance_sampling_level: Annotated[
        RatioLevel,
        "`sequence` (GSPO) when token ratios are too noisy, e.g. mixtures of experts; `sequence_token` is GSPO-token; "
        "`sequence_sum` is RLOO's product.",
    ] = "token"
    epsilon: Annotated[float, "How far a token's probability may fall per round before its gradient stops."] = 0.2
    epsilon_high: Annotated[
        float | None,
        "Raise it alone (0.28) to let rare tokens grow; None means epsilon. With cispo it is the largest weight (5.0).",
    ] = None
    delta: Annotated[float | None, "Caps the ratio where clipping does not: wrong answers that became likelier."] = None
    cispo_min_weight: Annotated[float, "Set 1 - epsilon for CISPO's two-sided clip; 0 is the paper's practice."] = 0.0
    sapo_temperature_pos: Annotated[float, "Higher closes SAPO's gate sooner on right answers."] = 1.0
    sapo_temperature_neg: Annotated[float, "Higher closes SAPO's gate sooner on wrong answers."] = 1.05
    vespo_k_pos: Annotated[float, "VESPO's growth below the peak weight, for right answers."] = 2.0
    vespo_lambda_pos: Annotated[float, "VESPO's decay above the peak weight, for right answers."] = 3.0
    vespo_k_neg: Annotated[float, "VESPO's growth below the peak weight, for wrong answers."] = 3.0
    vespo_lambda_neg: Annotated[float, "VESPO's decay above the peak weight, for wrong answers."] = 2.0

    # advantage
    baseline: Annotated[
        Baseline,
        "`leave_one_out` is unbiased, `value` needs a critic, `none` leaves it to whitening, `given` is A*-PO's V*.",
    ] = "group_mean"
    scale_rewards: Annotated[Scale, "`none` when nearly solved prompts should not outweigh the middle."] = "group"
    std_kind: Annotated[Literal["sample", "population"], "Which standard deviation; matters when comparing logs."] = (
        "sample"
    )
    std_eps: Annotated[float, "Added to the standard deviation; other frameworks use 1e-6 to 1e-9."] = 1e-4
    multi_objective_aggregation: Annotated[
        Literal["sum_then_normalize", "normalize_then_sum"],
        "`normalize_then_sum` (GDPO) when a rare failure of one reward must not drown in another.",
    ] = "sum_then_normalize"
    partial_rewards: Annotated[
        Literal["zero", "renormalize"],
        "`renormalize` when functions apply to some completions of a group only: a missing reward is then no zero.",
    ] = "zero"
    reward_clip_range: Annotated[tuple[float, float] | None, "Bounds the summed reward before any baseline."] = None
    normalize_advantages: Annotated[bool, "Standardise finished advantages over the batch, a completion a vote."] = (
        False
    )
    whiten_advantages: Annotated[bool, "Standardise finished advantages over the batch, a token a vote."] = False
    mask_truncated_completions: Annotated[bool, "Leave completions that hit the length limit out of the loss."] = False
    truncated_in_baseline: Annotated[bool, "False keeps masked truncated completions out of the group's mean too."] = (
        True
    )
    count_no_signal: Annotated[bool, "False keeps the step size when groups without signal are dropped."] = True
    count_truncated: Annotated[bool, "True lets masked truncated rows shrink row averages, as TRL does."] = False

    # divergence from the reference
    beta: Annotated[float, "Above 0 to stay near the reference model; costs a reference pass."] = 0.0
    kl_estimator: Annotated[Literal["k1", "k2", "k3"], "k3 is never negative and has the lowest variance nearby."] = (
        "k3"
    )
    kl_in: Annotated[
        Literal["loss", "reward", "reward_token"], "`reward` as in RLOO, `reward_token` as in PPO and REINFORCE++."
    ] = "loss"
    use_bias_correction_kl: Annotated[bool, "False gives the plain estimator's gradient, which is not the KL's."] = True
    sync_ref_model: Annotated[bool, "Let the reference follow the policy in long runs."] = False
    ref_model_mixup_alpha: Annotated[float, "Share of the policy in each synchronisation; 1.0 is a reset."] = 0.6
    ref_model_sync_steps: Annotated[int, "Optimiser steps between synchronisations."] = 512

    # entropy
    entropy_coef: Annotated[float, "Above 0 when entropy collapses in spite of a higher epsilon_high."] = 0.0
    use_adaptive_entropy: Annotated[bool, "Raise and lower the coefficient to hold entropy at the target."] = False
    entropy_target: Annotated[float, "In nats a token; look at the first steps' entropy before choosing."] = 0.2
    entropy_coef_delta: Annotated[float, "Change of the adaptive coefficient an optimiser step."] = 0.005
    entropy_coef_min: Annotated[float, "Lower bound of the adaptive coefficient."] = 0.0
    entropy_coef_max: Annotated[float, "Upper bound of the adaptive coefficient."] = 1.0
    top_entropy_quantile: Annotated[float, "0.2 trains on the fifth of the tokens where the model hesitates most."] = (
        1.0
    )

    # sampler against trainer
    vllm_importance_sampling_correction: Annotated[
        bool, "False ignores that the engine's probabilities differ from the trainer's (any engine, not only vLLM)."
    ] = True
    vllm_importance_sampling_mode: Annotated[
        MismatchMode, "`*_mask` drops outliers, `*_truncate` caps them; token, whole-sequence or geometric-mean weight."
    ] = "token_truncate"
    vllm_importance_sampling_clip_max: Annotated[float | None, "Largest weight (C_max)."] = 2.0
    vllm_importance_sampling_clip_min: Annotated[float | None, "Smallest weight (C_min)."] = None
    off_policy_mask_threshold: Annotated[
        float | None, "Drop wrong answers that drifted further than this many nats a token (DeepSeek-V3.2)."
    ] = None

    # critic
    gamma: Annotated[float, "Discount a token; below 1 favours short answers."] = 1.0
    lam: Annotated[float, "Lower trusts the critic more (less variance, more bias)."] = 0.95
    vf_coef: Annotated[float, "Weight of the value loss."] = 0.1
    cliprange_value: Annotated[float, "How far a value may move per round before its gradient stops."] = 0.2
    a_star_beta1: Annotated[float, "Temperature of the optimal-value estimate (A*-PO stage 1)."] = 0.5
    a_star_beta2: Annotated[float, "Regularisation of the regression (A*-PO stage 2)."] = 1e-3

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_ranges(self)
        _check_combinations(self)

    @property
    def surrogate_name(self) -> str:
        return self.surrogate or LOSS_TYPES[self.loss_type][0]

    @property
    def aggregation_name(self) -> str:
        return self.aggregation or LOSS_TYPES[self.loss_type][1]

    @property
    def upper(self) -> float:
        """epsilon_high, or epsilon where it was not set."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def has_entropy_bonus(self) -> bool:
        return self.entropy_coef != 0.0 or self.use_adaptive_entropy


def _check_choices(spec: ObjectiveSpec) -> None:
    hints = get_type_hints(ObjectiveSpec)
    for item in fields(spec):
        value, choices = getattr(spec, item.name), _choices(hints[item.name])
        if choices and value is not None and value not in choices:
            raise ValueError(f"{item.name}={value!r} is unknown; choose one of {', '.join(choices)}")


def _choices(hint: Any) -> list[str]:
    """The strings a Literal (or Literal | None) allows."""
    options = [hint, *get_args(hint)]
    return [value for option in options for value in get_args(option) if isinstance(value, str)]


_AT_LEAST_ZERO = (
    "epsilon", "std_eps", "beta", "entropy_coef", "entropy_coef_delta", "cispo_min_weight", "vf_coef", "vespo_k_pos",
    "vespo_k_neg", "cliprange_value", "entropy_coef_min",
)  # fmt: skip
_ABOVE_ZERO = (
    "epsilon_high", "delta", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_lambda_pos", "vespo_lambda_neg",
    "off_policy_mask_threshold", "vllm_importance_sampling_clip_max", "a_star_beta1", "a_star_beta2",
    "ref_model_sync_steps",
)  # fmt: skip
_UNIT = ("top_entropy_quantile", "gamma", "lam", "ref_model_mixup_alpha")


def _check_ranges(spec: ObjectiveSpec) -> None:
    rules = (
        (_AT_LEAST_ZERO, lambda x: x >= 0, "a number of at least 0"),
        (_ABOVE_ZERO, lambda x: x > 0, "a number above 0"),
        (_UNIT, lambda x: 0 <= x <= 1, "a number between 0 and 1"),
    )
    for names, holds, wanted in rules:
        for name in names:
            value = getattr(spec, name)
            if value is not None and not (isinstance(value, int | float) and holds(value)):
                raise ValueError(f"{name}={value!r} must be {wanted}")


def _check_combinations(spec: ObjectiveSpec) -> None:
    low, high = spec.vllm_importance_sampling_clip_min, spec.vllm_importance_sampling_clip_max
    reward_range = spec.reward_clip_range
    rules = (
        (
            spec.surrogate_name == "cispo" and spec.upper < 1,
            f"epsilon_high={spec.upper} with cispo caps every token's weight at {spec.upper}, which only scales the "
            "learning rate; give the cap itself (5.0 in ScaleRL), or 1 + epsilon where another framework says epsilon",
        ),
        (low is not None and high is not None and low >= high, f"clip_min={low} must be below clip_max={high}"),
        (
            spec.vllm_importance_sampling_mode.endswith("truncate") and low is None and high is None,
            "a truncating vllm_importance_sampling_mode needs a clip_max or a clip_min",
        ),
        (
            spec.surrogate_name == "vespo" and spec.importance_sampling_level != "token",
            "vespo has its own sequence weight: importance_sampling_level must be token",
        ),
        (
            spec.surrogate_name == "vespo"
            and spec.vllm_importance_sampling_correction
            and not spec.vllm_importance_sampling_mode.startswith("token"),
            "vespo takes token weights only: vllm_importance_sampling_mode must be token_truncate or token_mask",
        ),
        (
            spec.surrogate_name == "gmpo" and spec.importance_sampling_level != "token",
            "gmpo forms its own sequence ratio: importance_sampling_level must be token",
        ),
        (spec.entropy_coef_min > spec.entropy_coef_max, "entropy_coef_min must not exceed entropy_coef_max"),
        (spec.sync_ref_model and spec.beta == 0, "sync_ref_model needs a reference model: set beta above 0"),
        (
            spec.baseline == "value" and spec.multi_objective_aggregation == "normalize_then_sum",
            "a learned value needs one summed reward: multi_objective_aggregation must be sum_then_normalize",
        ),
        (
            spec.surrogate_name == "a_star_po" and spec.baseline != "given",
            "a_star_po regresses on r - V*: baseline must be given",
        ),
        (
            reward_range is not None and reward_range[0] >= reward_range[1],
            f"reward_clip_range={reward_range} must be (low, high)",
        ),
    )
    for broken, message in rules:
        if broken:
            raise ValueError(message)
