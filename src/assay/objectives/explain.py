"""What an objective does to given lengths and rewards, one number a completion: its length and difficulty bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.objectives.advantages import TokenInputs, compute_advantages, optimal_value
from assay.objectives.batch import PolicyOutputs, Rows, group_tokens
from assay.objectives.denominators import Denominators
from assay.objectives.filters import drop_truncated
from assay.objectives.objective import Objective, build
from assay.objectives.spec import ObjectiveSpec


@dataclass(frozen=True)
class Explanation:
    """Per completion: `rewards` (weighted sum), `centred` (less the baseline), `advantages` (scaled), the aggregation's
    weight of each of its tokens, their product `token_weights` (the gradient-ascent weight of a token's log-probability
    while the policy has not moved), and `gradients`, that weight measured by automatic differentiation at `ratios`.
    """

    lengths: list[int]
    rewards: list[float | None]
    centred: list[float]
    advantages: list[float]
    aggregation_weights: list[float]
    token_weights: list[float]
    ratios: list[float]
    gradients: list[float]
    no_signal: list[bool]
    axes: dict[str, str]


def explain(
    spec: ObjectiveSpec,
    lengths: Sequence[int],
    *,
    rewards: Sequence[Sequence[float | None]] | None = None,
    advantages: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    group_size: int | None = None,
    max_completion_length: int | None = None,
    truncated: Sequence[bool] | None = None,
    ratios: Sequence[float] | None = None,
) -> Explanation:
    """Run the objective on completions of these lengths; `rewards` has one list a reward function, None for no reward.

    `advantages` skips the rewards. Completions form groups of `group_size` in order (None: one group). KL, entropy and
    value terms are left out: they need a model. The critic of PPO is taken to say 0.

    >>> explanation = explain(ObjectiveSpec(loss_type="grpo"), [10, 100], advantages=[1.0, -1.0])
    >>> [round(w, 6) for w in explanation.token_weights]
    [0.05, -0.005]

    Raises ValueError where lists differ in length, or neither (or both) of rewards and advantages are given.
    """
    spec = replace(spec, beta=0.0, sync_ref_model=False, entropy_coef=0.0, use_adaptive_entropy=False)
    spec = replace(spec, top_entropy_quantile=1.0)
    _check(lengths, rewards, advantages, truncated, ratios, group_size, max_completion_length)
    n = len(lengths)
    group_ids = torch.arange(n) // (group_size or n)
    cut = torch.tensor(truncated if truncated is not None else [False] * n)
    full = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    mask = drop_truncated(full, cut) if spec.mask_truncated_completions else full
    total, centred, advantage, no_signal = _advantages(spec, rewards, advantages, weights, group_ids, cut, full)

    objective = build(spec)
    sums = objective.measure(mask, group_ids, no_signal)
    denominators = Denominators.from_sums(sums, max_completion_length or max(lengths))
    per_group = group_tokens(mask, group_ids)
    weight = objective.row_weights(mask, denominators, torch.float64, group_tokens=per_group)
    if spec.importance_sampling_level == "sequence_sum":  # the completion is one action: its tokens are not averaged
        weight = weight * mask.sum(-1)
    weight = torch.where(mask.any(-1), weight, 0.0)
    at = torch.tensor(ratios if ratios is not None else [1.0] * n, dtype=torch.float64)
    gradients = _gradients(objective, mask, advantage, at, denominators, per_group)
    return Explanation(
        lengths=list(lengths),
        rewards=[None if value != value else value for value in total.tolist()],
        centred=centred.tolist(),
        advantages=advantage.tolist(),
        aggregation_weights=weight.tolist(),
        token_weights=(advantage * weight).tolist(),
        ratios=at.tolist(),
        gradients=gradients.tolist(),
        no_signal=no_signal.tolist(),
        axes=axes(spec),
    )


def axes(spec: ObjectiveSpec) -> dict[str, str]:
    """Each axis and the choice that `spec` makes on it, in a few words."""
    bounds = f"[1 - {spec.epsilon:g}, 1 + {spec.upper:g}]"
    clipping = {
        "cispo": f"weight at most {spec.upper:g}",
        "gmpo": f"log-ratio within [-{spec.epsilon:g}, {spec.upper:g}]",
    }
    kinds = {"none": "none", "group": "of the group", "batch": "of the batch", "batch_centred": "of the centred batch"}
    scale = kinds[spec.scale_rewards]
    if spec.multi_objective_aggregation == "normalize_then_sum":
        scale = "of each reward in its group, then of the batch"
    elif spec.whiten_advantages:
        scale = "whitened over the batch's tokens"
    return {
        "baseline": spec.baseline,
        "scale": scale if scale == "none" else f"{scale} ({spec.std_kind} std + {spec.std_eps:g})",
        "ratio": spec.importance_sampling_level,
        "surrogate": spec.surrogate_name,
        "clipping": bounds if spec.surrogate_name == "ppo_clip" else clipping.get(spec.surrogate_name, "none"),
        "aggregation": spec.aggregation_name,
        "rows without signal": "counted" if spec.count_no_signal else "not counted",
    }


def _check(
    lengths: Sequence[int],
    rewards: Sequence[Sequence[float | None]] | None,
    advantages: Sequence[float] | None,
    truncated: Sequence[bool] | None,
    ratios: Sequence[float] | None,
    group_size: int | None,
    max_completion_length: int | None,
) -> None:
    n = len(lengths)
    if not n or min(lengths) < 1:
        raise ValueError(f"lengths must be one positive number of tokens a completion; got {list(lengths)}")
    if (rewards is None) == (advantages is None):
        raise ValueError("give either rewards or advantages")
    named: dict[str, Sequence[object] | None] = {"advantages": advantages, "truncated": truncated, "ratios": ratios}
    named |= {f"rewards of function {i + 1}": column for i, column in enumerate(rewards or [])}
    for name, values in named.items():
        if values is not None and len(values) != n:
            raise ValueError(f"{name}: {len(values)} values for {n} lengths")
    if ratios is not None and min(ratios) <= 0:
        raise ValueError(f"ratios must be positive; got {list(ratios)}")
    if group_size is not None and (group_size < 1 or n % group_size):
        raise ValueError(f"{n} completions do not make groups of {group_size}")
    if max_completion_length is not None and max_completion_length < max(lengths):
        raise ValueError(f"max_completion_length={max_completion_length} is below a length of {max(lengths)}")


def _advantages(
    spec: ObjectiveSpec,
    rewards: Sequence[Sequence[float | None]] | None,
    given: Sequence[float] | None,
    weights: Sequence[float] | None,
    group_ids: Tensor,
    truncated: Tensor,
    mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(summed reward, reward less baseline, advantage, no signal), each [N]."""
    if given is not None:
        advantage = torch.tensor(given, dtype=torch.float64)
        return torch.full_like(advantage, torch.nan), advantage, advantage, torch.zeros(len(given), dtype=torch.bool)
    columns = [[float("nan") if x is None else x for x in column] for column in rewards or []]
    table = torch.tensor(columns, dtype=torch.float64).T
    w = torch.ones(table.shape[1], dtype=torch.float64) if weights is None else torch.tensor(weights).double()
    total = torch.where(table.isnan().all(-1), torch.nan, (table * w).nansum(-1))
    baselines = optimal_value(total, group_ids, spec.a_star_beta1) if spec.baseline == "given" else None
    tokens = TokenInputs(mask, values=torch.zeros(mask.shape, dtype=torch.float64))

    def run(choice: ObjectiveSpec) -> tuple[Tensor, Tensor]:
        result = compute_advantages(
            table, group_ids, w, choice, truncated=truncated, tokens=tokens, baselines=baselines
        )
        per_row = result.advantages
        if per_row.dim() == 2:
            per_row = torch.where(mask, per_row, 0.0).sum(-1) / mask.sum(-1)
        return per_row, result.no_signal

    plain = {"scale_rewards": "none", "normalize_advantages": False, "whiten_advantages": False}
    centred, _ = run(replace(spec, multi_objective_aggregation="sum_then_normalize", **plain))  # type: ignore[arg-type]
    advantage, no_signal = run(spec)
    return total, centred, advantage, no_signal


def _gradients(
    objective: Objective, mask: Tensor, advantages: Tensor, ratios: Tensor, denominators: Denominators, group: Tensor
) -> Tensor:
    """[N]: minus the loss's derivative by one token's log-probability, every token of row i being at ratios[i]."""
    logps = (ratios.log().unsqueeze(-1) - 1.0).expand(mask.shape).clone().requires_grad_()
    old = torch.full(mask.shape, -1.0, dtype=torch.float64)
    zeros = torch.zeros_like(old)
    rows = Rows(mask, advantages, old, ref_logps=old, old_values=zeros, returns=zeros, group_tokens=group)
    loss, _ = objective(PolicyOutputs(logps, values=zeros), rows, denominators)
    (gradient,) = torch.autograd.grad(loss, logps)
    return 0.0 - gradient[:, 0]
