"""What a policy hands to an engine: all weights with adapters merged, or the adapters alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from assay.policy import adapters

if TYPE_CHECKING:
    from assay.policy.model import Policy


@dataclass(frozen=True)
class Adapter:
    """One layer's low-rank update, scale * up @ down: `down` is [r, in], `up` is [out, r]."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float


class PolicyWeights:
    """The policy's weights now. Iterating yields (transformers' name, tensor), adapters merged, tied weights once; each
    iteration begins anew. An engine that serves adapters takes `adapters` or `save_adapters` and never iterates."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from adapters.named_merged_weights(self._policy.transformer)

    @property
    def has_adapters(self) -> bool:
        return self._policy.has_adapters

    def adapters(self) -> Iterator[tuple[str, Adapter]]:
        """(transformers' name of the layer, its adapter) for every adapted layer."""
        for name, layer in adapters.lora_layers(self._policy.transformer):
            for adapter in layer.active_adapters:
                if adapter in layer.lora_A:
                    down: Any = layer.lora_A[adapter].weight
                    up: Any = layer.lora_B[adapter].weight
                    yield name, Adapter(down.detach(), up.detach(), float(layer.scaling[adapter]))

    def base(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(transformers' name, tensor) of every weight under the adapters; they never change."""
        for name, parameter in self._policy.transformer.named_parameters():
            if ".lora_" not in name:
                yield name.replace(".base_layer", ""), parameter.detach()

    def save_adapters(self, folder: Path) -> None:
        """Write the adapters as peft does; vLLM loads the folder."""
        self._policy.save_adapter(folder)
