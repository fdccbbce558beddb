"""Stand-in until objectives/ lands."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PolicyOutputs:
    logps: torch.Tensor
    entropies: torch.Tensor | None = None
    values: torch.Tensor | None = None
