"""What the policy is asked to score: prompts, and the completions that follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ScoringBatch:
    """Token sequences to score. One entry of `prompts` serves every row that continues it.

    Attributes:
        prompts: integer arrays [P_i], each with at least one token.
        rows: integer arrays [T_b] of what follows the prompt; all of it is scored, masks are the caller's.
        row_prompt: for each row the index of its prompt.
        model_inputs: opaque keyword arguments for the model's forward (pixel values and the like), or empty.
        traces: for each row what the sampler remembers of it (see `recording`), or None; or empty.

    An empty batch (no rows) is legal: scoring it yields shape [0, 1] and zero gradients for every trainable
    parameter, which is what a rank without work contributes.
    """

    prompts: tuple[np.ndarray, ...]
    rows: tuple[np.ndarray, ...]
    row_prompt: tuple[int, ...]
    model_inputs: Mapping[str, Any] = field(default_factory=dict)
    traces: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.row_prompt):
            raise ValueError(f"{len(self.rows)} rows but {len(self.row_prompt)} entries in row_prompt")
        if any(not 0 <= index < len(self.prompts) for index in self.row_prompt):
            raise ValueError(f"row_prompt points outside the {len(self.prompts)} prompts: {self.row_prompt}")
        for name, arrays in (("prompt", self.prompts), ("row", self.rows)):
            for index, array in enumerate(arrays):
                if len(array) == 0:
                    raise ValueError(f"{name} {index} has no tokens")

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def shape(self) -> tuple[int, int]:
        """[B, T] of what scoring returns; T is the longest row."""
        return len(self.rows), max((len(row) for row in self.rows), default=1)

    def select(self, indices: Sequence[int]) -> ScoringBatch:
        """The sub-batch of these rows, with only the prompts that they use, in the order of first use."""
        used: dict[int, int] = {}
        row_prompt = tuple(used.setdefault(self.row_prompt[index], len(used)) for index in indices)
        return ScoringBatch(
            tuple(self.prompts[prompt] for prompt in used),
            tuple(self.rows[index] for index in indices),
            row_prompt,
            self.model_inputs,
            tuple(self.traces[index] for index in indices) if self.traces else (),
        )

    def mask(self) -> np.ndarray:
        """[B, T] bool: True where a row has a token."""
        lengths = np.array([len(row) for row in self.rows], dtype=np.int64)
        return np.arange(self.shape[1]) < lengths[:, None]
