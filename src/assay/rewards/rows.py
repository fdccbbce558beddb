"""A dataset row and a completion as the group of one that the scorer takes; for marking without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.records import Completion, Finish, Group, Prompt, Segment, content_key


def group_of_row(row: Mapping[str, Any], content: Any, token_ids: Any = None) -> Group:
    """The row's prompt with `content` (text or messages) as its one completion.

    Token counts come from `token_ids` or the row's `completion_ids`; a row without them has no tokens, which functions
    of length refuse rather than guess.
    """
    if not isinstance(content, (str, list)):
        raise InputError(f"`completion` is {type(content).__name__}; use text or a list of messages")
    ids = np.asarray(token_ids if token_ids is not None else row.get("completion_ids") or [], dtype=np.int64)
    segment = Segment(ids, np.ones(len(ids), dtype=bool), np.zeros(len(ids)))
    asked: Any = row.get("prompt") or row.get("question") or row.get("problem") or ""
    asked = asked if isinstance(asked, (str, list)) else str(asked)
    columns = {name: value for name, value in row.items() if name not in ("completion", "completion_ids")}
    prompt = Prompt(asked, (), columns, task=str(row.get("task", "default")), content_key=content_key(asked))
    return Group(prompt, [Completion([segment], Finish.STOP, content)])
