"""Where the tokens of a batch go: one packed row with every prompt once, or a right-padded rectangle."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from assay.policy.batch import ScoringBatch


@dataclass(frozen=True)
class Layout:
    """Model inputs for a batch, and where its scores come out.

    Attributes:
        input_ids: [R, L] integer tensor.
        position_ids: [R, L].
        score_index: [N] index into the flattened [R * L] hidden states; entry n predicts target n.
        targets: [N] token ids to score, rows one after another.
        row_index, column_index: [N] where score n belongs in the [B, T] result.
        shape: (B, T).
        shared: how the packed row is cut up, or None for a padded rectangle.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    score_index: torch.Tensor
    targets: torch.Tensor
    row_index: torch.Tensor
    column_index: torch.Tensor
    shape: tuple[int, int]
    shared: SharedPrefix | None

    def scatter(self, scores: torch.Tensor) -> torch.Tensor:
        """[N] scores -> [B, T], zero where a row has no token."""
        full = scores.new_zeros(self.shape)
        return full.index_put((self.row_index, self.column_index), scores)


@dataclass(frozen=True)
class SharedPrefix:
    """A packed row: for each prompt its tokens and then those of its completions, which see it and themselves only.

    Attributes:
        prompts: (start, end) of each prompt in the packed row.
        rows: for each prompt the (start, end) of its completions' inputs; possibly empty spans are left out.
        length: L.
        device: where masks are built.
    """

    prompts: tuple[tuple[int, int], ...]
    rows: tuple[tuple[tuple[int, int], ...], ...]
    length: int
    device: torch.device
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def groups(self) -> list[tuple[int, int, int]]:
        """(start, middle, end) of each group: its prompt lies before `middle`, its completions after."""
        return [(start, end, max([last for _, last in spans], default=end)) for (start, end), spans in self._spans()]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt with one of its completions."""
        return max(
            (end - start) + max([last - first for first, last in spans], default=0)
            for (start, end), spans in self._spans()
        )

    @cached_property
    def buckets(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Completions in batches of similar length: (index [n, T] into the packed row, valid [n, T]).

        Where a row is shorter than T, its last token is repeated and marked invalid.
        """
        spans = sorted((span for spans in self.rows for span in spans), key=lambda span: span[0] - span[1])
        buckets: list[list[tuple[int, int]]] = []
        for span in spans:
            if buckets and span[1] - span[0] > 0.75 * (buckets[-1][0][1] - buckets[-1][0][0]):
                buckets[-1].append(span)
            else:
                buckets.append([span])
        result = []
        for bucket in buckets:
            starts, ends = (torch.tensor(side, device=self.device)[:, None] for side in zip(*bucket))
            index = starts + torch.arange(bucket[0][1] - bucket[0][0], device=self.device)
            result.append((torch.minimum(index, ends - 1), index < ends))
        return result

    def _spans(self) -> list[tuple[tuple[int, int], tuple[tuple[int, int], ...]]]:
        return list(zip(self.prompts, self.rows))

    @cached_property
    def _segments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For each token: its group, its row within the group (0 is the prompt) and its position."""
        group, row, position = (np.zeros(self.length, dtype=np.int64) for _ in range(3))
        for index, ((start, end), spans) in enumerate(zip(self.prompts, self.rows)):
            group[start:end] = index
            position[start:end] = np.arange(end - start)
            for number, (first, last) in enumerate(spans, start=1):
                group[first:last] = index
                row[first:last] = number
                position[first:last] = np.arange(end - start, end - start + last - first)
        group_, row_, position_ = (torch.from_numpy(array).to(self.device) for array in (group, row, position))
        return group_, row_, position_

    def mask(self, sliding_window: int | None = None) -> torch.Tensor:
        """[1, 1, L, L] bool, True where a query (dim 2) may see a key (dim 3)."""
        if sliding_window not in self._masks:
            group, row, position = self._segments
            same_row = (row[:, None] == row[None, :]) | (row[None, :] == 0)
            distance = position[:, None] - position[None, :]
            allowed = (group[:, None] == group[None, :]) & same_row & (distance >= 0)
            if sliding_window is not None:
                allowed &= distance < sliding_window
            self._masks[sliding_window] = allowed[None, None]
        return self._masks[sliding_window]


def shared_layout(batch: ScoringBatch, device: torch.device) -> Layout:
    """One packed row: each prompt once, followed by its completions without their last token (it predicts nothing)."""
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    prompt_spans, row_spans = [], []
    score_index: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(batch.rows)
    cursor = 0
    for prompt_number, prompt in enumerate(batch.prompts):
        prompt_end = cursor + len(prompt)
        prompt_spans.append((cursor, prompt_end))
        ids.append(np.asarray(prompt, dtype=np.int64))
        positions.append(np.arange(len(prompt)))
        cursor = prompt_end
        spans = []
        for row_number in (r for r, p in enumerate(batch.row_prompt) if p == prompt_number):
            inputs = np.asarray(batch.rows[row_number][:-1], dtype=np.int64)
            score_index[row_number] = np.concatenate([[prompt_end - 1], np.arange(cursor, cursor + len(inputs))])
            if len(inputs):
                spans.append((cursor, cursor + len(inputs)))
                ids.append(inputs)
                positions.append(np.arange(len(prompt), len(prompt) + len(inputs)))
                cursor += len(inputs)
        row_spans.append(tuple(spans))
    shared = SharedPrefix(tuple(prompt_spans), tuple(row_spans), cursor, device)
    return _layout(batch, np.concatenate(ids)[None], np.concatenate(positions)[None], score_index, device, shared)


def padded_layout(batch: ScoringBatch, device: torch.device) -> Layout:
    """A [B, longest] rectangle, right-padded, so that causal attention needs no mask: nothing real sees the padding."""
    sequences = [
        np.concatenate([batch.prompts[prompt], row[:-1]]).astype(np.int64)
        for prompt, row in zip(batch.row_prompt, batch.rows)
    ]
    width = max(map(len, sequences))
    ids = np.zeros((len(sequences), width), dtype=np.int64)
    score_index = []
    for number, (sequence, row) in enumerate(zip(sequences, batch.rows)):
        ids[number, : len(sequence)] = sequence
        end = number * width + len(sequence)
        score_index.append(np.arange(end - len(row), end))
    positions = np.broadcast_to(np.arange(width), ids.shape).copy()
    return _layout(batch, ids, positions, score_index, device, None)


def _layout(
    batch: ScoringBatch,
    ids: np.ndarray,
    positions: np.ndarray,
    score_index: list[np.ndarray],
    device: torch.device,
    shared: SharedPrefix | None,
) -> Layout:
    lengths = [len(row) for row in batch.rows]

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Layout(
        input_ids=tensor(ids),
        position_ids=tensor(positions),
        score_index=tensor(np.concatenate(score_index)),
        targets=tensor(np.concatenate(batch.rows).astype(np.int64)),
        row_index=tensor(np.repeat(np.arange(len(lengths)), lengths)),
        column_index=tensor(np.concatenate([np.arange(length) for length in lengths])),
        shape=batch.shape,
        shared=shared,
    )
