"""Low-rank adapters by peft, and the plain weights that they amount to."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers.pytorch_utils import Conv1D

from assay.errors import InputError
from assay.policy.fused_lora import FusedLoraLinear, fuse
from assay.policy.options import ModelOptions


def add_adapters(model: nn.Module, options: ModelOptions) -> peft.PeftModel:
    """Wrap a transformers model with LoRA; only the adapters require gradients afterwards, in float32.

    Raises:
        InputError: if no module carries a name in `lora_targets`, or one of them is the output embedding.
    """
    targets: Any = "all-linear" if options.lora_targets == ("all-linear",) else list(options.lora_targets)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=options.lora_dropout,
        target_modules=targets,
        target_parameters=fused_expert_parameters(model) if targets == "all-linear" else None,
        bias="none",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    try:
        wrapped = peft.get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"model.lora_targets {options.lora_targets} fits no module of this model: {error}") from error
    if isinstance(model.get_output_embeddings(), LoraLayer):  # type: ignore[operator]
        raise InputError(
            f"model.lora_targets {options.lora_targets} include the output embedding. Log-probs are computed from its "
            "own weight, so that an adapter there would learn nothing; name other modules, or use all-linear"
        )
    fuse(wrapped)
    return wrapped


def fused_expert_parameters(model: nn.Module) -> list[str] | None:
    """Names of three-dimensional weights (all experts in one tensor), which all-linear does not see."""
    names = {
        ".".join(name.split(".")[-2:])
        for name, parameter in model.named_parameters()
        if parameter.ndim == 3 and "expert" in name
    }
    return sorted(names) or None


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


@torch.no_grad()
def named_merged_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(transformers' name, weight with its adapters merged in) for each parameter; tied weights once.

    A weight without adapter is yielded as it is (no copy); a merged one is a new tensor in the base weight's dtype.
    """
    deltas = dict(_deltas(model))
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer", "")
        weight = _whole(parameter.detach())
        if plain in deltas:
            layers = deltas[plain]
            total = weight.to(torch.promote_types(weight.dtype, torch.float32))
            total = total.clone() if total is weight else total
            for layer, adapter in layers:
                _add_delta(total, layer, adapter)
            weight = total.to(weight.dtype)
        yield plain, weight


def _add_delta(weight: torch.Tensor, layer: Any, adapter: str) -> None:
    """weight += scale * B A, in place."""
    if (
        type(layer) is FusedLoraLinear
        and not layer.lora_variant
        and weight.device == layer.lora_A[adapter].weight.device
    ):
        down, up = _whole(layer.lora_A[adapter].weight), _whole(layer.lora_B[adapter].weight)
        weight.addmm_(up.to(weight.dtype), down.to(weight.dtype), alpha=layer.scaling[adapter])
    else:
        weight += layer.get_delta_weight(adapter).to(weight.dtype)


def adapted_weight_names(model: nn.Module) -> list[str]:
    """transformers' names of the weights that carry an adapter."""
    return [name for name, found in _deltas(model) if found]


def _deltas(model: nn.Module) -> Iterator[tuple[str, list[tuple[Any, str]]]]:
    found: dict[str, list[tuple[Any, str]]] = {}
    for name, layer in lora_layers(model):
        parameter = getattr(layer, "parameter_name", "weight")
        plain = f"{name}.{parameter}".replace(".base_layer", "")
        found[plain] = [(layer, adapter) for adapter in layer.active_adapters if adapter in layer.lora_A]
    yield from found.items()


def _whole(tensor: Any) -> torch.Tensor:
    """The full tensor of a sharded parameter."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def plain_copy(model: nn.Module) -> nn.Module:
    """The transformers model without adapters, sharing every parameter's memory with `model`."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    copied = copy.deepcopy(model, shared)
    for name, layer in list(lora_layers(copied)):
        if "base_layer" not in name:
            _replace(copied, name, layer)
    for name, parameter in list(copied.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        setattr(copied.get_submodule(owner), leaf, nn.Parameter(parameter.detach(), requires_grad=False))
    copied.tie_weights()  # type: ignore[operator]
    return copied.eval()


def _replace(model: nn.Module, name: str, layer: LoraLayer) -> None:
    base = layer.get_base_layer()
    while isinstance(base, LoraLayer):
        base = base.get_base_layer()
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, base)
