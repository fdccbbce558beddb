"""Divergence from the reference, from samples: k1, k2, k3 (Schulman 2020, "Approximating KL divergence")."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.objectives.ratio import bounded_exp


def k1(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """log pi - log ref: unbiased, high variance, negative for some samples.

    >>> round(k1(torch.tensor(0.0), torch.tensor(0.1)).item(), 4)
    -0.1
    """
    return logps - ref_logps


def k2(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """(log pi - log ref)^2 / 2: biased as a value; its plain gradient is the reverse KL's.

    >>> round(k2(torch.tensor(0.0), torch.tensor(0.1)).item(), 4)
    0.005
    """
    return 0.5 * (logps - ref_logps).square()


def k3(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """ref/pi - 1 - log ref/pi: unbiased, never negative, low variance nearby (GRPO, arXiv:2402.03300 eq. 4).

    >>> round(k3(torch.tensor(0.0), torch.tensor(1.0)).item(), 6)
    0.718282
    """
    d = ref_logps - logps
    return bounded_exp(d) - d - 1


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def importance_weighted_kl(logps: Tensor, ref_logps: Tensor, ratio: Tensor, estimator: str) -> Tensor:
    """The estimate times pi/pi_old, [B, T], whose gradient is ratio (log pi - log ref) grad log pi for each estimator:
    the unbiased gradient of the reverse KL (DeepSeek-V3.2, arXiv:2512.02556 sec. 3.1).

    k3 must differentiate the ratio too, k1 the ratio only, k2 itself only: what the other term would add is noise for
    k1 and a bias for k2.
    """
    if estimator == "k1":
        return ratio * k1(logps, ref_logps).detach()
    if estimator == "k2":
        return ratio.detach() * k2(logps, ref_logps)
    return ratio * k3(logps, ref_logps)


def update_reference(reference: Tensor, policy: Tensor, alpha: float) -> Tensor:
    """alpha policy + (1 - alpha) reference, in the reference's dtype; alpha = 1 is ProRL's reset (arXiv:2505.24864).

    >>> update_reference(torch.tensor([0.0]), torch.tensor([1.0]), 0.6).tolist()
    [0.6000000238418579]
    """
    if alpha == 1.0:
        return policy.detach().to(reference.dtype).clone()
    return torch.lerp(reference.float(), policy.detach().float(), alpha).to(reference.dtype)


def reference_is_due(update: int, every: int) -> bool:
    """Whether the reference is synchronised after optimiser step `update` (counted from 1)."""
    return update > 0 and update % every == 0
