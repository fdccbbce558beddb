"""The columns of a rollout file: schema version 1.

A row is one completion. Rows of a group are adjacent and share `step`, `group`, `draw`, `prompt_key`. Columns are only
ever added; one that changes its meaning gets a new name and the version a new number. The parquet metadata key
`assay.rollouts.version` tells the version; any parquet tool reads the rest.

step                the optimisation step that the completion was drawn for
group, sample       index of the group within the step, and of the completion within the group
draw                number of the draw of this prompt in the run (records.Group.draw)
prompt_key, task    identity of the prompt across runs, and its task
prompt              text, or a JSON list of messages where `prompt_format` is "messages"
prompt_token_ids    what the model read
media               references of images, sounds, videos: kind, reference, sha256
row                 the dataset row as JSON: everything a verifier may ask for
gold                the row's gold answer as text (null where the row has none under a known name)
text, messages      what was written, decoded; `messages` is JSON where the prompt was conversational
token_ids, loss_mask, sampling_logps
                    all segments one after another; mask True = written by the policy; log-probs (nats) NaN elsewhere
segment_lengths     where to cut the three lists above
old_logps, entropies
                    the trainer's log-probs and entropies of policy-authored tokens, where the trainer kept them
num_tokens          policy-authored tokens
finish              stop, length, abort: said by the engine
reward              weighted sum; null where nothing could be judged
correct             the primary verdict; null where there is none
advantage           what the update used (0 where the row did not count)
judgements          one per reward function: name, outcome, reward, extracted, span_start, span_end, detail
policy_versions     start (index into policy-authored tokens) and version of each span
tags                JSON object: flags of the tampering detector and whatever else was attached
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from assay.records import Completion, Group

VERSION = 1
VERSION_KEY = b"assay.rollouts.version"
# Names under which datasets keep the gold answer, most specific first; `gold_field` overrides.
GOLD_FIELDS = ("gold", "gold_answer", "ground_truth", "answer", "solution", "target", "label", "expected")
TOKEN_TAGS = ("old_logps", "entropies")

_JUDGEMENT = pa.struct(
    [
        ("name", pa.string()),
        ("outcome", pa.string()),
        ("reward", pa.float64()),
        ("extracted", pa.string()),
        ("span_start", pa.int32()),
        ("span_end", pa.int32()),
        ("detail", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int32()),
        ("sample", pa.int32()),
        ("draw", pa.int64()),
        ("prompt_key", pa.string()),
        ("task", pa.string()),
        ("prompt", pa.string()),
        ("prompt_format", pa.string()),
        ("prompt_token_ids", pa.list_(pa.int32())),
        ("media", pa.list_(pa.struct([("kind", pa.string()), ("reference", pa.string()), ("sha256", pa.string())]))),
        ("row", pa.string()),
        ("gold", pa.string()),
        ("text", pa.string()),
        ("messages", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("sampling_logps", pa.list_(pa.float32())),
        ("segment_lengths", pa.list_(pa.int32())),
        ("old_logps", pa.list_(pa.float32())),
        ("entropies", pa.list_(pa.float32())),
        ("num_tokens", pa.int32()),
        ("finish", pa.string()),
        ("reward", pa.float64()),
        ("correct", pa.bool_()),
        ("advantage", pa.float64()),
        ("judgements", pa.list_(_JUDGEMENT)),
        ("policy_versions", pa.list_(pa.struct([("start", pa.int32()), ("version", pa.int64())]))),
        ("tags", pa.string()),
    ],
    metadata={VERSION_KEY: str(VERSION).encode()},
)


def rows_of_groups(step: int, groups: Sequence[Group], gold_field: str = "") -> list[dict[str, Any]]:
    """One dictionary a completion, by the schema's names; token columns are numpy arrays."""
    return [row for index, group in enumerate(groups) for row in _rows_of_group(step, index, group, gold_field)]


def _rows_of_group(step: int, index: int, group: Group, gold_field: str) -> Iterator[dict[str, Any]]:
    prompt = group.prompt
    shared = {
        "step": step,
        "group": index,
        "draw": group.draw,
        "prompt_key": prompt.content_key,
        "task": prompt.task,
        "prompt": _json(prompt.content) if prompt.is_conversational else prompt.content,
        "prompt_format": "messages" if prompt.is_conversational else "text",
        "prompt_token_ids": list(prompt.token_ids),
        "media": [{"kind": item.kind, "reference": item.reference, "sha256": item.sha256} for item in prompt.media],
        "row": _json({name: value for name, value in prompt.row.items() if name != "prompt"}),
        "gold": gold_of(prompt.row, gold_field),
    }
    for sample, completion in enumerate(group.completions):
        yield {**shared, "sample": sample, **_completion_columns(completion)}


def _completion_columns(completion: Completion) -> dict[str, Any]:
    segments = completion.segments
    tags = {name: value for name, value in completion.tags.items() if name not in TOKEN_TAGS}
    return {
        "text": completion.text,
        "messages": None if isinstance(completion.content, str) else _json(completion.content),
        "token_ids": _joined([segment.token_ids for segment in segments], np.int32),
        "loss_mask": _joined([segment.loss_mask for segment in segments], np.bool_),
        "sampling_logps": _joined([segment.sampling_logps for segment in segments], np.float32),
        "segment_lengths": [len(segment) for segment in segments],
        **{name: _token_values(completion.tags.get(name)) for name in TOKEN_TAGS},
        "num_tokens": completion.num_tokens,
        "finish": str(completion.finish),
        "reward": completion.reward,
        "correct": completion.correct,
        "advantage": float(completion.advantage),
        "judgements": [
            {
                "name": name,
                "outcome": str(judgement.outcome),
                "reward": judgement.reward,
                "extracted": judgement.extracted,
                "span_start": judgement.span[0] if judgement.span else None,
                "span_end": judgement.span[1] if judgement.span else None,
                "detail": judgement.detail,
            }
            for name, judgement in completion.judgements.items()
        ],
        "policy_versions": [{"start": span.start, "version": span.version} for span in completion.policy_versions],
        "tags": _json(tags),
    }


def gold_of(row: Mapping[str, Any], gold_field: str = "") -> str | None:
    """The gold answer of a dataset row as text: the named field, else the first known name that the row has."""
    for name in (gold_field,) if gold_field else GOLD_FIELDS:
        if row.get(name) is not None:
            value = row[name]
            return value if isinstance(value, str) else _json(value)
    return None


def _joined(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    """Arrays, not lists: arrow takes them over several times faster."""
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _token_values(values: Any) -> np.ndarray | None:
    return None if values is None else np.asarray(values, dtype=np.float32)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
