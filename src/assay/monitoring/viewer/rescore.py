"""Marks stored rollouts again, with a verifier that may have been edited since; the store is left as it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.monitoring.imports import RolloutSource
from assay.records import Completion, Finish, Group, Prompt, Segment
from assay.rewards import Scorer


class Rescorer:
    """`spec` names one reward function as a recipe would; it is loaded anew each time, so that edits count."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        # A name that cannot be loaded is the user's mistake now, not at the first click.
        Scorer([spec]).close()

    def rescore(self, source: RolloutSource, step: int, group: int) -> list[dict[str, Any]]:
        """New judgements of one group: [{"sample", "name", "outcome", "reward", "extracted", "span", "detail"}]."""
        rows = [row for row in source.read(step) if row["group"] == group]
        if not rows:
            raise InputError(f"step {step} has no group {group}")
        restored = group_of_rows(rows)
        forget_file(self.spec)
        with Scorer([self.spec]) as scorer:
            scorer.score([restored])
        return [
            {
                "sample": row["sample"],
                "name": name,
                "outcome": str(judgement.outcome),
                "reward": judgement.reward,
                "extracted": judgement.extracted,
                "span": list(judgement.span) if judgement.span else None,
                "detail": judgement.detail,
            }
            for row, completion in zip(rows, restored.completions)
            for name, judgement in completion.judgements.items()
        ]


def forget_file(spec: str) -> None:
    """Drop the module of a FILE.py:FUNCTION reward, which the registry keeps for the length of a run."""
    path = spec.rpartition(":")[0]
    if not path.endswith(".py"):
        return
    wanted = Path(path).resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.startswith("assay_user_") and Path(file).resolve() == wanted:
            del sys.modules[name]


def group_of_rows(rows: Sequence[Mapping[str, Any]]) -> Group:
    """The records that a rollout file's rows were written from, without verdicts."""
    first = rows[0]
    content = json.loads(first["prompt"]) if first["prompt_format"] == "messages" else first["prompt"]
    row = json.loads(first["row"] or "{}")
    prompt = Prompt(
        content,
        tuple(first["prompt_token_ids"] or ()),
        {"gold": first["gold"], **row, "prompt": content},
        task=first["task"],
        content_key=first["prompt_key"],
    )
    return Group(prompt, [_completion(item) for item in rows], first["draw"] or 0)


def _completion(row: Mapping[str, Any]) -> Completion:
    segments, start = [], 0
    for length in row["segment_lengths"] or []:
        part = slice(start, start + length)
        segments.append(
            Segment(
                np.array(row["token_ids"][part], dtype=np.int64),
                np.array(row["loss_mask"][part], dtype=bool),
                np.array(row["sampling_logps"][part], dtype=np.float32),
            )
        )
        start += length
    content = json.loads(row["messages"]) if row["messages"] else row["text"]
    return Completion(segments, Finish(row["finish"] or Finish.STOP), content, advantage=row["advantage"] or 0.0)
