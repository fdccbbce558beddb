"""The held-out change between the run's start and its end, prompt by prompt, from heldout.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.monitoring.doctor.statistics import Z95
from assay.monitoring.history import read_json_lines

FILE = "heldout.jsonl"


@dataclass(frozen=True)
class Change:
    """Mean change of the pass rate and half the width of its 95% interval; `better` and `worse` count prompts.

    `p` is McNemar's exact two-sided test of those counts. `prompts` is 0 where only shares were stored, not verdicts:
    then the interval is the wider one of two unpaired samples and `p` is NaN.
    """

    value: float
    half: float
    prompts: int = 0
    better: int = 0
    worse: int = 0
    p: float = math.nan

    def __str__(self) -> str:
        text = f"{self.value:+.3f} (95% +- {self.half:.3f}"
        if self.prompts:
            text += (
                f", paired on {self.prompts} prompts: {self.better} better, {self.worse} worse, McNemar p={self.p:.2g}"
            )
        return text + ")"


def paired_change(directory: Path, figure: str) -> Change | None:
    """The change of `figure` (accuracy, pass_rate) from the first quarter of the evaluations to the last, at least one
    each; None where the run kept no verdicts of at least four evaluations, or no prompt was judged in both.
    """
    by_step = verdicts(directory / FILE, figure)
    steps = sorted(by_step)
    if len(steps) < 4:
        return None
    size = max(1, len(steps) // 4)
    before, after = (rates([by_step[step] for step in part]) for part in (steps[:size], steps[-size:]))
    shared = [key for key in before if key in after]
    return change(np.array([after[key] - before[key] for key in shared])) if shared else None


def change(differences: np.ndarray) -> Change:
    """The mean of paired differences with an interval that stays open where nothing differed (Agresti and Min 2005,
    Stat. Med. 24:729: half a prompt is added to each cell of the two-by-two table).

    >>> found = change(np.array([1.0] * 9 + [-1.0] * 2 + [0.0] * 89))
    >>> round(found.value, 2), found.better, found.worse, round(found.p, 3)
    (0.07, 9, 2, 0.065)
    """
    from scipy.stats import binomtest

    total, squares = float(differences.sum()), float(np.square(differences).sum())
    count = len(differences) + 2
    half = Z95 * math.sqrt(max(0.0, (squares + 1) - total**2 / count)) / count
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    p = float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    return Change(total / len(differences), half, len(differences), better, worse, p)


def verdicts(path: Path, figure: str) -> dict[int, Mapping[str, Any]]:
    """The run's own held-out set by step; a step that was evaluated twice, after a resume, counts as it was last."""
    if not path.exists():
        return {}
    wanted = [line for line in read_json_lines(path)[0] if line.get("set") == "" and line.get("figure") == figure]
    return {int(line["step"]): line for line in wanted if {"step", "keys", "correct", "judged"} <= line.keys()}


def prompts_judged(directory: Path, figure: str) -> int:
    """Prompts of the last evaluation whose verdicts were kept; 0 where none were."""
    kept = verdicts(directory / FILE, figure)
    return len(kept[max(kept)]["keys"]) if kept else 0


def rates(lines: list[Mapping[str, Any]]) -> dict[str, float]:
    """Share of right answers by prompt over some evaluations; prompts without a verdict are left out."""
    right: dict[str, float] = {}
    judged: dict[str, float] = {}
    for line in lines:
        for key, correct, count in zip(line["keys"], line["correct"], line["judged"]):
            right[key] = right.get(key, 0.0) + correct
            judged[key] = judged.get(key, 0.0) + count
    return {key: right[key] / count for key, count in judged.items() if count > 0}
