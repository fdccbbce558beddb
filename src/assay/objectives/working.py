"""A micro-batch made ready: in the working precision, zero on padding, every counted number finite or refused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.objectives.batch import PolicyOutputs, Rows, masked, working_dtype


@dataclass(frozen=True)
class WorkingBatch:
    """A micro-batch in the working precision, zero on padding, every counted log-probability finite."""

    logps: Tensor
    log_ratio: Tensor
    old_logps: Tensor
    advantages: Tensor
    mask: Tensor
    trajectory_ids: Tensor | None
    group_tokens: Tensor | None
    sampling_logps: Tensor | None
    ref_logps: Tensor | None
    entropies: Tensor | None

    @classmethod
    def of(cls, outputs: PolicyOutputs, rows: Rows, needs_ref: bool) -> WorkingBatch:
        mask, dtype = rows.mask.bool(), working_dtype(outputs.logps.dtype)
        if outputs.logps.shape != mask.shape:
            raise ValueError(f"logps {tuple(outputs.logps.shape)} and mask {tuple(mask.shape)} must both be [B, T]")
        logps = _finite("logps", outputs.logps, mask, dtype)
        old = logps.detach() if rows.old_logps is None else _finite("old_logps", rows.old_logps, mask, dtype).detach()
        if needs_ref and rows.ref_logps is None:
            raise ValueError("this objective needs Rows.ref_logps (beta or A*-PO)")
        ref = None if rows.ref_logps is None else _finite("ref_logps", rows.ref_logps, mask, dtype).detach()
        sampling = None if rows.sampling_logps is None else masked(rows.sampling_logps, mask, dtype).detach()
        if sampling is not None and sampling.isinf().any():
            raise ValueError(_not_finite("sampling_logps", sampling.isinf()))
        entropies = None if outputs.entropies is None else masked(outputs.entropies, mask, dtype)
        advantages = rows.advantages.detach()
        if advantages.dim() == 2:
            advantages = _finite("advantages", advantages, mask, dtype)
        else:
            advantages = _finite("advantages", advantages, mask.any(-1), dtype).unsqueeze(-1)
        return cls(
            logps, logps - old, old, advantages, mask, rows.trajectory_ids, rows.group_tokens, sampling, ref, entropies
        )

    @property
    def behaviour_logps(self) -> Tensor:
        return self.old_logps if self.sampling_logps is None else self.sampling_logps

    def required(self, name: str) -> Tensor:
        tensor = getattr(self, name)
        if tensor is None:
            raise ValueError(f"this objective needs {name}")
        return tensor


def _finite(name: str, x: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    kept = masked(x, mask, dtype)
    if not torch.isfinite(kept.detach()).all():
        raise ValueError(_not_finite(name, ~torch.isfinite(kept.detach())))
    return kept


def _not_finite(name: str, where: Tensor) -> str:
    row, *token = where.nonzero()[0].tolist()
    place = f"row {row}" + (f", token {token[0]}" if token else "")
    return f"{name} of {place} is not finite: a token that was written cannot have probability 0"
