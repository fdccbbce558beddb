"""What the charts draw, read once: the history, and a bounded sample of rollouts from both ends of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from assay.monitoring.doctor.finding import Diagnosis
from assay.monitoring.history import History
from assay.monitoring.sources import Run

MAX_ROWS = 4000
COLUMNS = (
    "step", "group", "sample", "prompt_key", "prompt", "gold", "text", "num_tokens", "finish", "reward", "correct",
    "advantage", "judgements", "sampling_logps", "old_logps", "loss_mask", "policy_versions", "tags",
)  # fmt: skip


@dataclass
class ReportData:
    """A run and its diagnosis. `first_rows` and `last_rows` are rollouts of the first and last stored steps."""

    run: Run
    diagnosis: Diagnosis
    max_rows: int = MAX_ROWS
    price: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def history(self) -> History:
        return self.run.history

    @cached_property
    def last_rows(self) -> list[Mapping[str, Any]]:
        """Newest step first; never from the first half of the stored steps, so that both ends can be compared."""
        steps = self.run.rollouts.steps() if self.run.rollouts else []
        return self._rows(steps[len(steps) // 2 :][::-1])

    @cached_property
    def first_rows(self) -> list[Mapping[str, Any]]:
        steps = self.run.rollouts.steps() if self.run.rollouts else []
        return self._rows(steps[: len(steps) // 2])

    def pass_rates(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Share of correct answers by prompt, over judged answers."""
        verdicts: dict[str, list[bool]] = {}
        for row in rows:
            verdict = row["correct"]
            if verdict is None and row["reward"] is not None and row["reward"] in (0.0, 1.0):
                verdict = row["reward"] == 1.0
            if verdict is not None:
                verdicts.setdefault(row["prompt_key"], []).append(bool(verdict))
        return {key: float(np.mean(values)) for key, values in verdicts.items()}

    def _rows(self, steps: Sequence[int]) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        if self.run.rollouts is None:
            return rows
        for step in steps:
            rows += self.run.rollouts.read(step, COLUMNS)
            if len(rows) >= self.max_rows:
                break
        return rows
