"""Attention over packed rows, plugged into transformers' attention registry.

What attends travels as a keyword argument of the model's forward, not as global state, so that gradient checkpointing
and backward threads see the same one. Without it the kernel that the user chose runs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from assay.errors import InputError
from assay.policy.packing import SharedPrefix
from assay.policy.structured import structured_attention

# The keyword's value is called as value(module, query, key, value, dropout=, scaling=, **kwargs) -> [1, L, H, D].
KEYWORD = "assay_attention"

# What a model may hand to its attention that we would silently drop, were it set.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "cache")


class SharingUnsupported(Exception):
    """This model's attention has a feature that shared-prefix scoring does not implement."""


def refuse_unsupported(kwargs: dict[str, Any]) -> None:
    """
    Raises:
        SharingUnsupported: if the model asks its attention for something that ours would silently drop.
    """
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise SharingUnsupported(f"its attention uses `{name}`")


def shared_prefix_attention(
    layout: SharedPrefix,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """query [1, H, L, D], key and value [1, H_kv, L, D] -> [1, L, H, D]; each token sees its prompt and its own row."""
    refuse_unsupported(kwargs)
    window = kwargs.get("sliding_window")
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        # Rotary embeddings leave queries and keys in float32; the registered kernels would be cast by autocast.
        query, key, value = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (query, key, value))
    if kind == "cpu" and dropout == 0.0 and (window is None or window >= layout.longest):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return structured_attention(query, key, value, layout, scale).transpose(1, 2)
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=layout.mask(window),
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return out.transpose(1, 2).contiguous()


def implementation_name(plain: str) -> str:
    """The name under which transformers knows our attention in front of kernel `plain`."""
    return f"assay_{plain}"


def register(plain: str) -> None:
    """Make `implementation_name(plain)` known to transformers: ours with the keyword, `plain` without. Idempotent.

    Raises:
        InputError: if transformers does not know `plain`.
    """
    if plain not in ALL_ATTENTION_FUNCTIONS or plain not in ALL_MASK_ATTENTION_FUNCTIONS:
        known = ", ".join(sorted(set(ALL_ATTENTION_FUNCTIONS) & set(ALL_MASK_ATTENTION_FUNCTIONS)))
        raise InputError(f"model.attention is {plain!r}; transformers knows {known}")
    fallback = ALL_ATTENTION_FUNCTIONS[plain]

    def attention_forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ours = kwargs.pop(KEYWORD, None)
        if ours is None:
            return fallback(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
        return ours(module, query, key, value, dropout=dropout, scaling=scaling, **kwargs), None

    ALL_ATTENTION_FUNCTIONS.register(implementation_name(plain), attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(implementation_name(plain), ALL_MASK_ATTENTION_FUNCTIONS[plain])
