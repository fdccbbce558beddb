"""heldout.jsonl of a run directory: which held-out prompts were answered right at which step, for pairing later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.evaluation.heldout import HeldoutResult
from assay.evaluation.progress import HeldoutRound
from assay.monitoring.history import read_json_lines
from assay.monitoring.store import MetricsLog

FILE = "heldout.jsonl"
# (set, figure) -> step -> verdicts
Verdicts = dict[tuple[str, str], dict[int, HeldoutResult]]


class HeldoutLog:
    """Appends the verdicts of each evaluation; a step evaluated again after a resume simply has a later line."""

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / FILE

    def append(self, evaluation: HeldoutRound) -> None:
        """One line a set and figure, whole or (after a kill) torn and skipped by readers."""
        lines = [
            {"step": evaluation.step, "set": name, "figure": figure, **result.state_dict()}
            for (name, figure), result in evaluation.results.items()
        ]
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    def rewind(self, step: int) -> None:
        """Drop what came after `step`, the checkpoint that a run resumes from."""
        MetricsLog(self.path).truncate(step)


def read_verdicts(run_dir: str | Path) -> Verdicts:
    """All verdicts of a run; empty where it kept none."""
    path = Path(run_dir) / FILE
    verdicts: Verdicts = {}
    for line in read_json_lines(path)[0] if path.exists() else []:
        if _is_verdict(line):
            verdicts.setdefault((line["set"], line["figure"]), {})[line["step"]] = HeldoutResult.from_state(line)
    return verdicts


def _is_verdict(line: Mapping[str, Any]) -> bool:
    return {"step", "set", "figure", "keys", "correct", "judged", "samples"} <= line.keys()
