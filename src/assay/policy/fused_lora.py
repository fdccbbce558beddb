"""A linear layer with a low-rank adapter as one autograd node.

peft's layer computes base(x) + (x A^T B^T) * scale out of four nodes, with two tensors of the output's size in
between, and in float32 where the base is half precision. Here the adapter's product is accumulated into the base's
output, in the base's dtype; the adapters' own float32 weights and gradients stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft.tuners import lora
from torch import nn


class FusedLoraLinear(lora.Linear):
    """peft's LoRA layer with a fused forward for the plain case; every other case is peft's own.

    Attributes:
        recorded: gives this layer's output for the tokens at hand, if it is known already (see `recording`).
    """

    recorded: Callable[[], torch.Tensor | None] | None = None

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        adapter = self._plain_adapter(x, args, kwargs)
        if adapter is None:
            return super().forward(x, *args, **kwargs)
        base: Any = self.get_base_layer()
        down, up = self.lora_A[adapter].weight, self.lora_B[adapter].weight
        known = self.recorded() if self.recorded is not None else None
        return _FusedLora.apply(x, base.weight, base.bias, down, up, self.scaling[adapter], known)

    def _plain_adapter(self, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The one active adapter, if nothing but x W^T + b + scale * x A^T B^T is to be computed."""
        if args or kwargs or self.disable_adapters or self.merged or torch.is_autocast_enabled(x.device.type):
            return None
        active = [name for name in self.active_adapters if name in self.lora_A]
        if len(active) != 1 or self.lora_variant or self.lora_bias[active[0]]:
            return None
        drops = isinstance(dropout := self.lora_dropout[active[0]], nn.Dropout) and dropout.p > 0 and self.training
        weight: Any = self.get_base_layer().weight
        return None if drops or weight.requires_grad or weight.dtype != x.dtype else active[0]


def fuse(model: nn.Module) -> None:
    """Switch peft's layers over plain `nn.Linear` to the fused forward."""
    for module in model.modules():
        if type(module) is lora.Linear and type(module.get_base_layer()) is nn.Linear:
            module.__class__ = FusedLoraLinear


class _FusedLora(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
        known: torch.Tensor | None,
    ) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        inner = flat @ down.to(x.dtype).T
        out = known
        if out is None:
            out = nn.functional.linear(flat, weight, bias).addmm_(inner, up.to(x.dtype).T, alpha=scale)
        ctx.scale = scale
        ctx.save_for_backward(flat, inner, weight, down, up)
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        flat, inner, weight, down, up = ctx.saved_tensors
        grad = grad_out.reshape(-1, grad_out.shape[-1])
        grad_inner = (grad @ up.to(grad.dtype)).mul_(ctx.scale)
        grad_up = (grad.T @ inner).mul_(ctx.scale).to(up.dtype)
        grad_down = (grad_inner.T @ flat).to(down.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ weight).addmm_(grad_inner, down.to(grad.dtype))
            grad_x = grad_x.view(*grad_out.shape[:-1], grad_x.shape[-1])
        return grad_x, None, None, grad_down, grad_up, None, None
