"""The cached forward pass that writes tokens: prompts prefilled once a group, caches forked, finished rows dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import transformers
from transformers import DynamicCache

from assay.policy.head import LogitRule, head_logits


class Decoder(Protocol):
    """One wave of rows. `start`, then `keep` and `step` in turn, then `stop`."""

    head: OutputHead

    def start(self, prompts: Sequence[Sequence[int]], repeats: Sequence[int], max_new: int) -> torch.Tensor:
        """Prefill each prompt once and fork it; [sum(repeats), V] logits of the first token, prompt-major."""
        ...

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append one token [B] to each row; [B, V] logits of the next."""
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows but these (indices into the current rows)."""
        ...

    def stop(self) -> None:
        """Forget the caches."""
        ...


class OutputHead:
    """Hidden states -> logits of the distribution to draw from; a float32 copy of half-precision weights if asked."""

    def __init__(self, model: transformers.PreTrainedModel, rule: LogitRule, float32_logits: bool) -> None:
        self.model = model
        self.rule = rule
        self.float32_logits = float32_logits
        self._weight: torch.Tensor | None = None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, H] -> [N, V]."""
        head: Any = self.model.get_output_embeddings()
        if self._weight is None:
            self._weight = head.weight.float() if self.float32_logits else head.weight
        return head_logits(hidden.to(self._weight.dtype), self._weight, getattr(head, "bias", None), self.rule)

    def forget(self) -> None:
        """The weights may change now."""
        self._weight = None


class GeneralDecoder:
    """Through transformers' own attention and cache: every decoder-only model. Prompts are left-padded."""

    def __init__(self, model: transformers.PreTrainedModel, rule: LogitRule, float32_logits: bool = False) -> None:
        self.model = model
        self.backbone: Any = model.base_model
        self.head = OutputHead(model, rule, float32_logits)
        self._cache: Any = None
        self._mask = torch.empty(0)
        self._positions = torch.empty(0)

    def start(self, prompts: Sequence[Sequence[int]], repeats: Sequence[int], max_new: int) -> torch.Tensor:
        device = self.model.device
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        self._cache = DynamicCache(config=self.model.config)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = self._forward(ids, mask, positions)
        fork = torch.arange(len(prompts), device=device).repeat_interleave(torch.tensor(repeats, device=device))
        self._mask, self._positions = mask, positions[:, -1]
        self.keep(fork)
        return logits[fork]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        self._positions = self._positions + 1
        return self._forward(tokens[:, None], self._mask, self._positions[:, None])

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = self.backbone(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=self._cache, use_cache=True
        )[0]
        return self.head(hidden[:, -1])

    def keep(self, rows: torch.Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def stop(self) -> None:
        self._cache = None
        self.head.forget()
