"""Keeps what the adapted layers put out while a wave is written, for the update to use again."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from assay.policy.recording import Recording, Trace


class Recorder:
    """Listens to layers of the sampler's model, and knows which token each of their outputs belongs to.

    A decoder says what it is about to forward (`begin`, then `prompts` and `step`) and which rows it keeps; the engine
    asks for the trace of a row that has ended. Of a wave, as many groups are recorded as surely fit, from the first on.

    Args:
        model: the sampler's model, adapters merged.
        names: the layers to listen to; each puts out [1, L, out] for a packed row of L tokens.
        limit: bytes that recordings may take until the weights change.

    Attributes:
        wanted: whether the next wave is worth recording; set by the engine.
    """

    def __init__(self, model: nn.Module, names: Iterable[str], limit: int) -> None:
        self.limit = limit
        self.wanted = False
        self.recording = Recording({})
        self.token_bytes = 0
        # Groups that are recorded, from the first on; tokens of the coming forward pass that are, None for all.
        self._groups = 0
        self._chosen: torch.Tensor | None = torch.empty(0, dtype=torch.long)
        self._forwarded = 0
        self._prompts: list[range] = []
        self._group: list[int] = []
        self._rows: list[list[int]] = []
        self._hooks = []
        for name in names:
            layer: Any = model.get_submodule(name)
            self.token_bytes += layer.weight.shape[0] * layer.weight.element_size()
            self._hooks.append(layer.register_forward_hook(functools.partial(self._hear, name)))

    def begin(self, lengths: Sequence[int], repeats: Sequence[int], max_new: int) -> None:
        """A wave begins: prompts of these lengths, completions of each, and the most tokens that one may have."""
        self._prompts = []
        self._group = [group for group, count in enumerate(repeats) for _ in range(count)]
        self._rows = [[] for _ in self._group]
        self._groups, tokens = 0, self.recording.tokens
        for length, count in zip(lengths, repeats):
            tokens += length + count * (max_new - 1)
            if not self.wanted or tokens * self.token_bytes > self.limit:
                break
            self._groups += 1
            self.recording.capacity = max(self.recording.capacity, tokens)

    def prompts(self, lengths: Sequence[int]) -> None:
        """The next prompts are about to be forwarded as one packed row."""
        first = len(self._prompts)
        for length in lengths:
            start = self.recording.tokens
            self.recording.tokens += length if len(self._prompts) < self._groups else 0
            self._prompts.append(range(start, self.recording.tokens))
        self._choose([first + number < self._groups for number, length in enumerate(lengths) for _ in range(length)])

    def step(self, order: Sequence[int]) -> None:
        """One token of each row is about to be forwarded, in this order of rows."""
        wanted = [self._group[row] < self._groups for row in order]
        for row, is_wanted in zip(order, wanted):
            if is_wanted:
                self._rows[row].append(self.recording.tokens)
                self.recording.tokens += 1
        self._choose(wanted)

    def keep(self, rows: Sequence[int]) -> None:
        """Rows are dropped, and counted anew."""
        self._rows = [self._rows[row] for row in rows]
        self._group = [self._group[row] for row in rows]

    def trace(self, row: int) -> Trace | None:
        """Where the tokens of a row that has ended lie."""
        if self._group[row] >= self._groups:
            return None
        return Trace(self.recording, self._prompts[self._group[row]], np.array(self._rows[row], dtype=np.int64))

    def stop(self) -> None:
        """The wave has ended, or what is left of it is not worth recording."""
        self._groups = 0
        self._choose([])

    def forget(self) -> None:
        """The weights change: every trace is void."""
        self.stop()
        self.recording.end()
        self.recording = Recording(self.recording.storage, self.recording.capacity)

    def close(self) -> None:
        """Stop listening."""
        self.forget()
        for hook in self._hooks:
            hook.remove()

    def _choose(self, wanted: Sequence[bool]) -> None:
        """Which tokens of the next forward pass are kept; None is all of them."""
        self._forwarded = len(wanted)
        self._chosen = None if wanted and all(wanted) else torch.tensor(wanted, dtype=torch.bool).nonzero().flatten()

    def _hear(self, name: str, layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        # What does not have a row for every token falls short of their number in the end, and is not used.
        if output.dim() != 3 or output.shape[:2] != (1, self._forwarded):
            return
        if self._chosen is None:
            self.recording.add(name, output[0])
        elif len(self._chosen):
            self.recording.add(name, output[0].index_select(0, self._chosen))
