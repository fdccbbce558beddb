"""From scored groups to the tensors of an update window, and from a window to the rows of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from assay.errors import RunError
from assay.objectives import Rows
from assay.policy import ScoringBatch, plan_micro_batches
from assay.policy.recording import live_traces
from assay.records import Completion, Group, Segment


@dataclass(frozen=True)
class Window:
    """This rank's share of one optimiser update: N rows of at most T completion tokens.

    `batch` holds the token sequences, `rows` their tensors [N, ...], `group_ids` [N] the position of each row's group
    in the window over all ranks, `no_signal` [N] the rows without advantage. All rows are here; which of them are
    forwarded is the objective's choice. `completions` are the records that the rows came from.
    """

    batch: ScoringBatch
    rows: Rows
    group_ids: torch.Tensor
    no_signal: torch.Tensor
    completions: tuple[Completion, ...] = ()

    def __len__(self) -> int:
        return len(self.batch.rows)

    def written(self, indices: Sequence[int]) -> list[Completion]:
        """The records of some rows; none where the window came without."""
        return [self.completions[index] for index in indices] if self.completions else []

    def forwarded(self, with_silent: bool) -> list[int]:
        """Indices of the rows that the policy must score: all with a counted token and, unless asked, a signal."""
        useful = self.rows.mask.any(-1)
        return (useful if with_silent else useful & ~self.no_signal).nonzero().flatten().tolist()


def tensors_of(completions: Sequence[Completion]) -> tuple[list[np.ndarray], torch.Tensor, torch.Tensor]:
    """Token arrays, authorship mask [N, T] and sampling log-probabilities [N, T] (NaN where there is none)."""
    segments = [only_segment(completion) for completion in completions]
    tokens = [np.asarray(segment.token_ids, dtype=np.int64) for segment in segments]
    width = max((len(row) for row in tokens), default=1)
    mask = pad([segment.loss_mask for segment in segments], width, False, torch.bool)
    sampling = pad([segment.sampling_logps for segment in segments], width, float("nan"), torch.float32)
    return tokens, mask, sampling


def keep_token_values(completions: Sequence[Completion], name: str, values: torch.Tensor | None) -> None:
    """Leave the trainer's [N, T] `old_logps` or `entropies` in the completions' tags, for rollouts and heat maps.

    What an earlier pass left stays: it saw the policy that wrote the tokens.
    """
    if values is None:
        return
    table = values.detach().float().cpu().numpy()
    for row, completion in enumerate(completions):
        authored = only_segment(completion).loss_mask
        completion.tags.setdefault(name, table[row, : len(authored)][authored])


def only_segment(completion: Completion) -> Segment:
    if len(completion.segments) != 1 or len(completion.segments[0]) == 0:
        raise RunError(
            f"a completion has {len(completion.segments)} token sequences of "
            f"{[len(part) for part in completion.segments]} tokens; training needs exactly one with at least one token"
        )
    return completion.segments[0]


def pad(arrays: Sequence[np.ndarray], width: int, fill: float | bool, dtype: torch.dtype) -> torch.Tensor:
    """[N, width], right-padded with `fill`."""
    padded = torch.full((len(arrays), width), fill, dtype=dtype)
    for row, array in enumerate(arrays):
        padded[row, : len(array)] = torch.as_tensor(np.asarray(array), dtype=dtype)
    return padded


def scoring_batch(groups: Sequence[Group], tokens: Sequence[np.ndarray]) -> ScoringBatch:
    """The rows of `groups` in order, each pointing at its group's prompt."""
    prompts = tuple(np.asarray(group.prompt.token_ids, dtype=np.int64) for group in groups)
    owner = tuple(index for index, group in enumerate(groups) for _ in group.completions)
    traces = tuple(completion.trace for group in groups for completion in group.completions)
    return ScoringBatch(prompts, tuple(tokens), owner, traces=traces)


def micro_batches(batch: ScoringBatch, token_budget: int, *, shared: bool) -> list[list[int]]:
    """Row indices of each micro-batch; rows with a trace that still means something stand apart, since a forward pass
    is replayed whole or not."""
    traces = live_traces(batch)
    traced = [row for row, trace in enumerate(traces) if trace is not None]
    others = [row for row, trace in enumerate(traces) if trace is None]
    plan: list[list[int]] = []
    for part in filter(None, (traced, others)):
        some = batch.select(part)
        lengths = [len(prompt) for prompt in some.prompts], [len(row) for row in some.rows]
        cut = plan_micro_batches(*lengths, some.row_prompt, token_budget, shared=shared)
        plan += [[part[position] for position in micro] for micro in cut]
    return plan


def select(rows: Rows, indices: Sequence[int], width: int) -> Rows:
    """The tensors of some rows, cut to `width` tokens."""
    index = torch.as_tensor(indices, dtype=torch.long)
    return mapped(rows, lambda tensor: tensor[index] if tensor.dim() == 1 else tensor[index, :width])


def to_device(rows: Rows, device: torch.device) -> Rows:
    return mapped(rows, lambda tensor: tensor.to(device))


def mapped(rows: Rows, function: Callable[[torch.Tensor], torch.Tensor]) -> Rows:
    """Every tensor that is there, through `function`."""
    tensors: dict[str, Any] = {field.name: getattr(rows, field.name) for field in fields(Rows)}
    changed: dict[str, Any] = {name: None if item is None else function(item) for name, item in tensors.items()}
    return Rows(**changed)
