"""Decoding with keys and values of a prompt stored once for all of its completions.

The model runs as transformers wrote it; only its attention is ours. Prompts are prefilled packed, without padding. A
step forwards the rows as one packed row of B tokens; their queries attend to their group's prompt in one product, to
their own past in another, and the two are merged by log-sum-exp. Buffers are allocated once. A finished row's place is
taken by the last row, so that dropping rows costs one row's copy and no new cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from assay.policy.attention import KEYWORD, refuse_unsupported, shared_prefix_attention
from assay.policy.head import LogitRule
from assay.policy.packing import SharedPrefix
from assay.rollouts.decoders import OutputHead
from assay.rollouts.recorder import Recorder

# Prompt tokens in one prefill forward: enough for full-speed matrix products, small in activations.
_PREFILL_TOKENS = 4096

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class SharedCacheDecoder:
    """`Decoder` for models whose attention goes through transformers' registry (see `assay.policy.attention`)."""

    def __init__(self, model: transformers.PreTrainedModel, rule: LogitRule, float32_logits: bool = False) -> None:
        self.model = model
        self.backbone: Any = model.base_model
        self.head = OutputHead(model, rule, float32_logits)
        self.recorder: Recorder | None = None
        self._cache: _SharedCache | None = None

    def start(self, prompts: Sequence[Sequence[int]], repeats: Sequence[int], max_new: int) -> torch.Tensor:
        device = self.model.device
        self._cache = _SharedCache([len(prompt) for prompt in prompts], list(repeats), max_new, device)
        last: list[torch.Tensor] = []
        if self.recorder:
            self.recorder.begin([len(prompt) for prompt in prompts], repeats, max_new)
        for first, end in _chunks([len(prompt) for prompt in prompts], _PREFILL_TOKENS):
            self._cache.prefilling = (first, _packed([len(prompt) for prompt in prompts[first:end]], device))
            ids = torch.tensor([token for prompt in prompts[first:end] for token in prompt], device=device)
            positions = torch.cat([torch.arange(len(prompt), device=device) for prompt in prompts[first:end]])
            if self.recorder:
                self.recorder.prompts([len(prompt) for prompt in prompts[first:end]])
            hidden = self._forward(ids, positions)
            ends = torch.tensor([len(prompt) for prompt in prompts[first:end]], device=device).cumsum(0) - 1
            last.append(hidden[ends])
        self._cache.prefilling = None
        logits = self.head(torch.cat(last))
        return logits.repeat_interleave(torch.tensor(repeats, device=device), dim=0)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        cache = self._alive()
        if self.recorder:
            self.recorder.step(cache.logical.tolist())
        hidden = self._forward(tokens[cache.logical], cache.next_positions())
        cache.written += 1
        return self.head(hidden[cache.physical])

    def keep(self, rows: torch.Tensor) -> None:
        self._alive().keep(rows.tolist())
        if self.recorder:
            self.recorder.keep(rows.tolist())

    def stop(self) -> None:
        self._cache = None
        if self.recorder:
            self.recorder.stop()
        self.head.forget()

    def _alive(self) -> _SharedCache:
        if self._cache is None:
            raise RuntimeError("start() comes first")
        return self._cache

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[L] tokens -> [L, H]. The four-dimensional mask keeps transformers from building one of its own."""
        mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
        attend = {KEYWORD: self._alive().attend}
        return self.backbone(
            input_ids=ids[None], position_ids=positions[None], attention_mask=mask, use_cache=False, **attend
        )[0][0]


class _SharedCache:
    """Keys and values of one wave. Rows are logical outside; inside, row r lies at physical place `physical[r]`.

    Attributes:
        written: tokens whose keys and values each row holds.
        prefilling: (first prompt, packed layout) while prompts are being read, None while rows are written.
    """

    def __init__(self, prompt_lengths: list[int], repeats: list[int], max_new: int, device: torch.device) -> None:
        self.device = device
        self.max_new = max_new
        self.written = 0
        self.prefilling: tuple[int, SharedPrefix] | None = None
        self.prompt_lengths = torch.tensor(prompt_lengths, device=device)
        self.longest_prompt = max(prompt_lengths)
        # group_of[place]: the group of the row at a physical place.
        self.group_of = [group for group, count in enumerate(repeats) for _ in range(count)]
        self.places = list(range(len(self.group_of)))
        self._prefix: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._index()

    def _index(self) -> None:
        """Index tensors after rows changed: a [groups, widest] table of places, and the way back."""
        members: dict[int, list[int]] = {}
        for place, group in enumerate(self.group_of):
            members.setdefault(group, []).append(place)
        widest = max(map(len, members.values()))
        table = [members[group] + members[group][:1] * (widest - len(members[group])) for group in sorted(members)]
        rank = {group: number for number, group in enumerate(sorted(members))}
        back = [rank[group] * widest + members[group].index(place) for place, group in enumerate(self.group_of)]
        self.table = torch.tensor(table, device=self.device)
        self.back = torch.tensor(back, device=self.device)
        self.physical = torch.tensor(self.places, device=self.device)
        self.logical = torch.argsort(self.physical)
        lengths = self.prompt_lengths[torch.tensor(sorted(members), device=self.device)]
        self.row_prompt_lengths = self.prompt_lengths[torch.tensor(self.group_of, device=self.device)]
        self.group_lengths = lengths
        self.ragged = bool((lengths != self.longest_prompt).any())
        self._masks: dict[int | None, torch.Tensor | None] = {}
        self.padding: torch.Tensor | None = None
        if self.ragged and self.device.type == "cpu":
            padded = torch.arange(self.longest_prompt) >= lengths[:, None]
            self.padding = torch.zeros(padded.shape).masked_fill_(padded, -torch.inf)[:, None, None]

    def next_positions(self) -> torch.Tensor:
        """[B] positions of the tokens about to be forwarded, by place."""
        self._masks.clear()
        return self.row_prompt_lengths + self.written

    def keep(self, rows: list[int]) -> None:
        """Keep these logical rows, in this order; move the last places into the gaps."""
        kept = [self.places[row] for row in rows]
        size = len(kept)
        gaps = sorted(set(range(size)) - set(kept))
        movers = [place for place in kept if place >= size]
        for gap, mover in zip(gaps, movers):
            for key, value in self._own.values():
                key[gap, :, : self.written] = key[mover, :, : self.written]
                value[gap, :, : self.written] = value[mover, :, : self.written]
            self.group_of[gap] = self.group_of[mover]
        moved = dict(zip(movers, gaps))
        self.places = [moved.get(place, place) for place in kept]
        self.group_of = self.group_of[:size]
        self._drop_groups()
        self._index()

    def _drop_groups(self) -> None:
        alive = sorted(set(self.group_of))
        if len(alive) == len(self.prompt_lengths):
            return
        index = torch.tensor(alive, device=self.device)
        self.prompt_lengths = self.prompt_lengths[index]
        self._prefix = {layer: (key[index], value[index]) for layer, (key, value) in self._prefix.items()}
        rank = {group: number for number, group in enumerate(alive)}
        self.group_of = [rank[group] for group in self.group_of]

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Over a packed row: query [1, H, L, D], key and value [1, H_kv, L, D] -> [1, L, H, D]."""
        layer: int = module.layer_idx  # type: ignore[assignment]
        if self.prefilling is not None:
            first, layout = self.prefilling
            self._store_prompts(layer, first, layout, key[0], value[0])
            return shared_prefix_attention(layout, module, query, key, value, scaling=scaling, **kwargs)
        refuse_unsupported(kwargs)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = self._step(layer, query[0], key[0], value[0], scale, kwargs.get("sliding_window"))
        return out.transpose(0, 1)[None]

    def _store_prompts(
        self, layer: int, first: int, layout: SharedPrefix, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Copy packed keys and values [H_kv, L, D] to their groups' places."""
        if layer not in self._prefix:
            shape = (len(self.prompt_lengths), key.shape[0], self.longest_prompt)
            self._prefix[layer] = tuple(x.new_zeros(*shape, x.shape[-1]) for x in (key, value))  # type: ignore[assignment]
            rows = (len(self.group_of), key.shape[0], self.max_new)
            self._own[layer] = tuple(x.new_empty(*rows, x.shape[-1]) for x in (key, value))  # type: ignore[assignment]
        for number, (start, end) in enumerate(layout.prompts, start=first):
            for store, new in zip(self._prefix[layer], (key, value)):
                store[number, :, : end - start] = new[:, start:end]

    def _step(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """One token a row: query [H, B, D], key and value [H_kv, B, D] -> [H, B, D]."""
        rows, written = query.shape[1], self.written
        own_key, own_value = self._own[layer]
        own_key[:rows, :, written] = key.transpose(0, 1)
        own_value[:rows, :, written] = value.transpose(0, 1)
        oldest = 0 if window is None else max(0, written + 1 - window)
        kv_heads, size = key.shape[0], query.shape[-1]
        grouped = query.view(kv_heads, -1, rows, size).permute(2, 0, 1, 3)
        past = slice(oldest, written + 1)
        own, own_lse = attention_part(grouped, own_key[:rows, :, past], own_value[:rows, :, past], scale, None)
        folded = grouped[self.table].transpose(1, 2).flatten(2, 3)
        if self.padding is not None and self._sees_everything(window):
            shared, shared_lse = padded_part(folded, *self._prefix[layer], scale, self.padding.to(query.dtype))
        else:
            shared, shared_lse = attention_part(folded, *self._prefix[layer], scale, self._mask(window))
        shared, shared_lse = self._unfold(shared, kv_heads), self._unfold(shared_lse, kv_heads)
        weight = torch.sigmoid(own_lse - shared_lse)[..., None]
        mixed = torch.lerp(shared.to(weight.dtype), own.to(weight.dtype), weight).to(query.dtype)
        return mixed.permute(1, 2, 0, 3).reshape(-1, rows, size)

    def _unfold(self, part: torch.Tensor, kv_heads: int) -> torch.Tensor:
        """[groups, H_kv, widest * R, ...] -> [B, H_kv, R, ...] by place."""
        wide = part.unflatten(2, (self.table.shape[1], -1)).transpose(1, 2)
        return wide.flatten(0, 1)[self.back]

    def _sees_everything(self, window: int | None) -> bool:
        return window is None or self.longest_prompt + self.written < window

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """[groups, 1, 1, longest prompt] bool, False at padding and at what left the window; None if all is seen."""
        if self._sees_everything(window) and not self.ragged:
            return None
        if window not in self._masks:
            columns = torch.arange(self.longest_prompt, device=self.device)
            seen = columns < self.group_lengths[:, None]
            if window is not None:
                seen = seen & (self.group_lengths[:, None] + self.written - columns < window)
            self._masks[window] = seen[:, None, None]
        return self._masks[window]


def attention_part(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, seen: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a part of the keys: [N, H, Q, D] on [N, H, K, D] -> (output, [N, H, Q] log-sum-exp of scores).

    `seen` is a boolean mask that broadcasts to the scores, or None. A query that sees nothing returns -inf.
    """
    if seen is None and query.device.type == "cpu":
        return _flash(query, key, value, 0.0, False, scale=scale)
    scores = (query * scale) @ key.transpose(-1, -2)
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    # A query that sees nothing has lse = -inf; zero weights rather than NaN.
    weights = (scores - lse.clamp(min=torch.finfo(lse.dtype).min)[..., None]).exp()
    return weights.to(value.dtype) @ value, lse


def padded_part(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attention_part` on CPU, where `hidden` [N, 1, 1, K] is -inf at padding and each query sees at least one key."""
    return _flash(query, key, value, 0.0, False, attn_mask=hidden, scale=scale)


def _packed(lengths: Sequence[int], device: torch.device) -> SharedPrefix:
    """Prompts one after another, without completions."""
    ends = torch.tensor(lengths).cumsum(0).tolist()
    spans = tuple((end - length, end) for end, length in zip(ends, lengths))
    return SharedPrefix(spans, ((),) * len(spans), ends[-1], device)


def _chunks(lengths: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Consecutive index ranges whose lengths sum to at most `limit`, or that hold a single item."""
    chunks: list[tuple[int, int]] = []
    first, total = 0, 0
    for number, length in enumerate(lengths):
        if number > first and total + length > limit:
            chunks.append((first, number))
            first, total = number, 0
        total += length
    return [*chunks, (first, len(lengths))]
