"""Entropy: the tokens that matter, the bonus, and the controller that holds it at a target."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from assay.objectives.spec import ObjectiveSpec


def entropy_threshold(entropies: Tensor, top_fraction: float) -> float:
    """The entropy that `top_fraction` of the values [n] reach: the linear-interpolated (1 - top_fraction) quantile.

    Sorting has no limit on n, which torch.quantile has (16M elements). Over ranks: gather the values first.

    >>> round(entropy_threshold(torch.tensor([0.1, 0.5, 0.9, 1.3, 0.2, 0.8]), 0.5), 6)
    0.65
    """
    ordered = entropies.detach().float().flatten().sort().values
    if len(ordered) == 0:
        return math.inf
    position = (1.0 - top_fraction) * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], position - low).item()


def high_entropy_mask(entropies: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """[B, T]: counted tokens whose entropy reaches the threshold ("Beyond the 80/20 rule", arXiv:2506.01939)."""
    return mask & (entropies.detach().float() >= threshold)


def top_entropy_mask(entropies: Tensor, mask: Tensor, top_fraction: float) -> Tensor:
    """[B, T]: the `top_fraction` of the counted tokens where the policy hesitates most.

    Call it on a whole window (from a pass without gradient) for a mask that does not depend on micro-batches.
    """
    return high_entropy_mask(entropies, mask, entropy_threshold(entropies[mask], top_fraction))


class EntropyController:
    """The coefficient of the entropy bonus: constant, or adaptive (Skywork-OR1, arXiv:2505.22312).

    `coefficient` applies to the coming window. `observe(h)` after each window with its mean entropy raises the adaptive
    coefficient by delta where h <= target and lowers it otherwise; it applies only after a window at or below target.
    """

    def __init__(self, spec: ObjectiveSpec) -> None:
        self._spec = spec
        self._value = spec.entropy_coef
        self._last = math.inf

    @property
    def value(self) -> float:
        """The coefficient, whether or not it applies now (TRL's `entropy_coef`)."""
        return self._value

    @property
    def coefficient(self) -> float:
        if not self._spec.use_adaptive_entropy:
            return self._value
        return self._value if self._last <= self._spec.entropy_target else 0.0

    def observe(self, entropy: float) -> None:
        """Take the mean entropy (nats a token) of the window that was just trained on."""
        spec = self._spec
        if not spec.use_adaptive_entropy:
            return
        step = spec.entropy_coef_delta if entropy <= spec.entropy_target else -spec.entropy_coef_delta
        self._value = min(max(self._value + step, spec.entropy_coef_min), spec.entropy_coef_max)
        self._last = entropy

    def state_dict(self) -> dict[str, Any]:
        return {"value": self._value, "last": None if math.isinf(self._last) else self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._value = state["value"]
        self._last = math.inf if state["last"] is None else state["last"]
