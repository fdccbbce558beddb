"""Surrogates: the per-token (or per-sequence) loss whose gradient moves the policy.

A surrogate is a pure function and a row of `SURROGATES`. Losses are [B, T], or [B, 1] where the choice is one per
sequence; the aggregation weighs them. `advantages` is [B, 1] or [B, T].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from assay.objectives.batch import per_trajectory
from assay.objectives.ratio import bounded_exp
from assay.objectives.spec import ObjectiveSpec


def ppo_clip(ratio: Tensor, advantages: Tensor, low: float, high: float, delta: float | None = None) -> Tensor:
    """-min(r A, clip(r, 1-low, 1+high) A), r at most `delta` (PPO, arXiv:1707.06347 eq. 7; separate bounds: DAPO,
    arXiv:2503.14476 eq. 10; delta: INTELLECT-2, arXiv:2505.07291).

    >>> ratio = torch.tensor([0.70, 1.35], requires_grad=True)
    >>> ppo_clip(ratio, torch.tensor([1.0, 1.0]), 0.2, 0.28).sum().backward()
    >>> ratio.grad.tolist()
    [-1.0, 0.0]
    """
    clipped = ratio.clamp(1 - low, 1 + high)
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    return -torch.min(bounded * advantages, clipped * advantages)


def cispo(logps: Tensor, ratio: Tensor, advantages: Tensor, cap: float, floor: float = 0.0) -> Tensor:
    """-sg(clip(r, floor, cap)) A log pi: the weight is capped, never the gradient (MiniMax-M1, arXiv:2506.13585 eq. 4).

    `cap` is the largest weight itself, not a distance from 1.

    >>> logps = torch.tensor([-1.0, -1.0], requires_grad=True)
    >>> cispo(logps, torch.tensor([0.5, 9.0]), torch.tensor([1.0, 1.0]), cap=5.0).sum().backward()
    >>> logps.grad.tolist()
    [-0.5, -5.0]
    """
    return -ratio.detach().clamp(floor, cap) * advantages * logps


def sapo(ratio: Tensor, advantages: Tensor, temperature_pos: float, temperature_neg: float) -> Tensor:
    """-(4/tau) sigmoid(tau (r - 1)) A: a gate that closes softly on both sides (SAPO, arXiv:2511.20347).

    >>> round(-sapo(torch.tensor(1.35), torch.tensor(1.0), 1.0, 1.05).item(), 5)
    2.34647
    """
    tau = _by_sign(advantages > 0, temperature_pos, temperature_neg, ratio)
    return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages


def gmpo(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float, trajectory_ids: Tensor | None = None
) -> Tensor:
    """[B, 1]: -A times the geometric mean of ratios that are clipped token by token in log space, on the side that the
    advantage pushes to (GMPO, arXiv:2507.20673). `advantages` must be [B, 1].
    """
    clipped = log_ratio.clamp(-low, high)
    kept = torch.where(advantages > 0, torch.min(log_ratio, clipped), torch.max(log_ratio, clipped))
    tokens = per_trajectory(mask.to(log_ratio.dtype), trajectory_ids).clamp(min=1.0)
    mean = per_trajectory(kept * mask, trajectory_ids) / tokens
    return -bounded_exp(mean).unsqueeze(-1) * advantages


_VESPO_LOW, _VESPO_HIGH = math.log(1e-8), 20.0


def vespo_weight(
    log_weight: Tensor, advantages: Tensor, k_pos: float, lambda_pos: float, k_neg: float, lambda_neg: float
) -> Tensor:
    """phi(W) = W^k exp(lambda (1 - W)), without gradient (VESPO, arXiv:2602.10693); log W within [log 1e-8, 20].

    >>> w = torch.tensor([2.0, 0.5], dtype=torch.float64).log()
    >>> [round(x, 6) for x in vespo_weight(w, torch.ones(2, dtype=torch.float64), 2, 3, 3, 2).tolist()]
    [0.199148, 1.120422]
    """
    log_w = log_weight.detach().clamp(_VESPO_LOW, _VESPO_HIGH)
    k = _by_sign(advantages >= 0, k_pos, k_neg, log_w)
    decay = _by_sign(advantages >= 0, lambda_pos, lambda_neg, log_w).clamp(min=1e-4)
    return torch.exp(decay + k * log_w - decay * torch.exp(log_w))


def _by_sign(positive: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    """`yes` or `no` in the precision of `like`; torch.where on two Python numbers would round them to float32."""
    return torch.where(positive, like.new_tensor(yes), like.new_tensor(no))


def reinforce(logps: Tensor, advantages: Tensor) -> Tensor:
    """-A log pi (REINFORCE, Williams 1992): no correction for tokens that an older policy wrote."""
    return -advantages * logps


def a_star_po(log_ref_ratio: Tensor, advantages: Tensor, beta2: float) -> Tensor:
    """[B, 1]: (beta2 log pi(y)/pi_ref(y) - (r - V*))^2, both [B, 1] (A*-PO stage 2, arXiv:2505.20686).

    >>> round(a_star_po(torch.tensor(2.0), torch.tensor(1 - 0.4772292964), 1e-3).item(), 6)
    0.271202
    """
    return (beta2 * log_ref_ratio - advantages).square()


@dataclass(frozen=True)
class SurrogateInputs:
    """What a surrogate may read; `logps`, `log_ratio` [B, T] per token and `log_weight` at the spec's ratio level, all
    with gradient and zero on padding. `selected` [B, T] are the counted tokens of high entropy; `log_mismatch` [B, T]
    is the log of the sampler's correction weight."""

    logps: Tensor
    log_ratio: Tensor
    log_weight: Tensor
    advantages: Tensor
    mask: Tensor
    selected: Tensor
    trajectory_ids: Tensor | None = None
    ref_logps: Tensor | None = None
    log_mismatch: Tensor | None = None

    @cached_property
    def ratio(self) -> Tensor:
        return bounded_exp(self.log_weight)

    def sequence_sum(self, x: Tensor) -> Tensor:
        """[B, T] -> [B, 1], over the counted tokens of the trajectory."""
        return per_trajectory(x * self.mask, self.trajectory_ids).unsqueeze(-1)


Measured = dict[str, Tensor]


def _no_measures(x: SurrogateInputs, spec: ObjectiveSpec) -> Measured:
    return {}


@dataclass(frozen=True)
class SurrogateRow:
    """`loss(inputs, spec)`; `measured(inputs, spec)` names tensors whose mean over tokens (or sequences) is logged;
    `absorbs_mismatch` and `absorbs_selection` where the loss itself uses the sampler's correction, or the selected
    tokens."""

    loss: Callable[[SurrogateInputs, ObjectiveSpec], Tensor]
    measured: Callable[[SurrogateInputs, ObjectiveSpec], Measured] = _no_measures
    absorbs_mismatch: bool = False
    absorbs_selection: bool = False
    needs_ref: bool = False


def _clipped(log_low: float, log_high: float, log_weight: Tensor, advantages: Tensor) -> Measured:
    """Where clipping stopped a gradient: fell below the bound and pushed down, or rose above it and pushed up."""
    low = (log_weight < log_low) & (advantages < 0)
    high = (log_weight > log_high) & (advantages > 0)
    return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}


def _ppo_clipped(x: SurrogateInputs, s: ObjectiveSpec) -> Measured:
    low = math.log(1 - s.epsilon) if s.epsilon < 1 else -math.inf
    return _clipped(low, math.log1p(s.upper), x.log_weight, x.advantages)


def _vespo_log_weight(x: SurrogateInputs) -> Tensor:
    """[B, 1]: log of the sequence's ratio to the sampler."""
    log_weight = x.sequence_sum(x.log_ratio.detach().clamp(-20.0, 20.0))
    if x.log_mismatch is not None:
        log_weight = log_weight + x.sequence_sum(x.log_mismatch.clamp(_VESPO_LOW, 20.0))
    return log_weight


def _vespo_phi(x: SurrogateInputs, s: ObjectiveSpec) -> Tensor:
    constants = s.vespo_k_pos, s.vespo_lambda_pos, s.vespo_k_neg, s.vespo_lambda_neg
    return vespo_weight(_vespo_log_weight(x), x.advantages, *constants)


def _vespo_measured(x: SurrogateInputs, s: ObjectiveSpec) -> Measured:
    log_weight = _vespo_log_weight(x)
    bounded = (log_weight < _VESPO_LOW) | (log_weight > _VESPO_HIGH)
    return {"vespo/phi_seq_mean": _vespo_phi(x, s), "guard/vespo_weight_bounded": bounded}


def _cispo_capped(x: SurrogateInputs, s: ObjectiveSpec) -> Measured:
    return {"cispo_clip_ratio": (x.ratio > s.upper) & (x.advantages > 0)}


def _a_star_po(x: SurrogateInputs, s: ObjectiveSpec) -> Tensor:
    assert x.ref_logps is not None
    return a_star_po(x.sequence_sum(x.logps - x.ref_logps), x.advantages, s.a_star_beta2)


SURROGATES: dict[str, SurrogateRow] = {
    "ppo_clip": SurrogateRow(lambda x, s: ppo_clip(x.ratio, x.advantages, s.epsilon, s.upper, s.delta), _ppo_clipped),
    "cispo": SurrogateRow(
        lambda x, s: cispo(x.logps, x.ratio, x.advantages, s.upper, s.cispo_min_weight), _cispo_capped
    ),
    "sapo": SurrogateRow(lambda x, s: sapo(x.ratio, x.advantages, s.sapo_temperature_pos, s.sapo_temperature_neg)),
    "gmpo": SurrogateRow(
        lambda x, s: gmpo(x.log_ratio, x.advantages, x.selected, s.epsilon, s.upper, x.trajectory_ids),
        lambda x, s: _clipped(-s.epsilon, s.upper, x.log_ratio, x.advantages),
        absorbs_selection=True,
    ),
    "vespo": SurrogateRow(
        lambda x, s: -_vespo_phi(x, s) * x.advantages * x.logps,
        _vespo_measured,
        absorbs_mismatch=True,
    ),
    "reinforce": SurrogateRow(lambda x, s: reinforce(x.logps, x.advantages)),
    "a_star_po": SurrogateRow(_a_star_po, needs_ref=True),
}
