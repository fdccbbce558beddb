"""What adapted layers put out while completions were written, so that the update need not compute it again.

In an on-policy update the forward pass repeats, token for token, what the sampler has just computed with the same
weights. The products with the frozen weights are by far its largest part. `Recording` keeps their outputs; the forward
pass then runs through the model as always, norms, attention and activations included, but an adapted layer takes its
output from here. Backward is what it always was: gradients are those of x W^T + scale * x A^T B^T at the same x.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from assay.policy.adapters import lora_layers
from assay.policy.batch import ScoringBatch
from assay.policy.fused_lora import FusedLoraLinear


class Recording:
    """Outputs of layers by their transformers' name, [tokens, out] each, of all tokens since the weights last changed.

    Args:
        storage: where they are written, by name; the next recording writes over it, so that no page of it is given back
            and faulted in again in every round.
        capacity: tokens for which memory is reserved where a layer is first heard.

    Attributes:
        tokens: how many tokens each layer has put out.
        alive: False once the weights have changed; nothing may be taken from it then.
    """

    def __init__(self, storage: dict[str, torch.Tensor], capacity: int = 0) -> None:
        self.storage = storage
        self.capacity = capacity
        self.tokens = 0
        self.alive = True
        self._rows: dict[str, int] = {}

    def add(self, name: str, output: torch.Tensor) -> None:
        """Copy `output` [n, out] behind what is there."""
        start = self._rows.get(name, 0)
        end = start + len(output)
        if name not in self.storage or len(self.storage[name]) < end:
            larger = output.new_empty(max(self.capacity, end), output.shape[1])
            if start:
                larger[:start] = self.storage[name][:start]
            self.storage[name] = larger
        self.storage[name][start:end] = output
        self._rows[name] = end

    def take(self, name: str, index: torch.Tensor) -> torch.Tensor | None:
        """A new [len(index), out] tensor of the outputs at these places.

        None where the layer did not put out one row a token: an expert that sees some tokens only, a layer used twice.
        """
        return self.storage[name].index_select(0, index) if self._rows.get(name) == self.tokens else None

    def end(self) -> None:
        """The weights change."""
        self.alive = False


@dataclass(frozen=True)
class Trace:
    """Where a completion's tokens lie in a recording: those of its prompt, and its own but for the last, which nothing
    was predicted from. It means something in this process only: pickled or copied, it becomes None."""

    recording: Recording = field(repr=False)
    prompt: range
    tokens: np.ndarray

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing() -> None:
    return None


def live_traces(batch: ScoringBatch) -> list[Trace | None]:
    """Each row's trace; None where it has none or the weights have changed since it was made."""
    traces = batch.traces or (None,) * len(batch.rows)
    return [trace if trace is not None and trace.recording.alive else None for trace in traces]


def places(batch: ScoringBatch) -> tuple[Recording, np.ndarray] | None:
    """The one recording that holds all tokens of a batch, and where they lie in it, in the order of `shared_layout`.

    None where a row has no trace, where traces come from several recordings or the weights have changed since, and
    where a completion is not what was written any more.
    """
    traces = [trace for trace in live_traces(batch) if trace is not None]
    if len(traces) < len(batch.rows) or len({id(trace.recording) for trace in traces}) != 1:
        return None
    found: list[Any] = []
    for number, prompt in enumerate(batch.prompts):
        rows = [row for row, owner in enumerate(batch.row_prompt) if owner == number]
        if not rows or len(traces[rows[0]].prompt) != len(prompt):
            return None
        found.append(traces[rows[0]].prompt)
        for row in rows:
            if len(traces[row].tokens) != len(batch.rows[row]) - 1:
                return None
            found.append(traces[row].tokens)
    return traces[0].recording, np.concatenate(found)


def recordable(transformer: nn.Module) -> list[str]:
    """transformers' names of the layers whose output a recording can stand for."""
    return [name for name, layer in lora_layers(transformer) if type(layer) is FusedLoraLinear]


@contextlib.contextmanager
def replayed(transformer: nn.Module, recording: Recording, index: torch.Tensor) -> Iterator[None]:
    """Inside, adapted layers put out what was recorded at `index`, the places of the packed row's tokens."""
    layers = {name: layer for name, layer in lora_layers(transformer) if type(layer) is FusedLoraLinear}
    for name, layer in layers.items():
        layer.recorded = functools.partial(recording.take, name, index)
    try:
        yield
    finally:
        for layer in layers.values():
            layer.recorded = None
