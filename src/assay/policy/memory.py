"""How much memory a forward pass leaves behind for its backward: counted, not guessed."""

from __future__ import annotations

import torch

from assay.policy.batch import ScoringBatch
from assay.policy.model import Policy


def activation_bytes(policy: Policy, batch: ScoringBatch) -> int:
    """Bytes of everything that autograd keeps while `batch` is scored, parameters left out, each storage once.

    One forward pass; nothing is changed. With gradient checkpointing this is what lies between the layers.
    """
    known = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}
    kept: dict[int, int] = {}
    held = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held.append(policy(batch))
    return sum(kept.values())


def sequence_bytes(policy: Policy) -> int:
    """Bytes of keys and values that one token takes in a sampler's cache."""
    config = policy.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = torch.empty((), dtype=getattr(torch, policy.choices["dtype"])).element_size()
    return 2 * config.num_hidden_layers * heads * size * width
