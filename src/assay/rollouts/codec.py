"""Groups as plain dictionaries of tensors and scalars, so that unspent ones can lie in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from assay.errors import RunError
from assay.records import Completion, Finish, Group, Judgement, Outcome, Prompt, Segment, VersionSpan

Plain = dict[str, Any]


def group_state(group: Group) -> Plain:
    """A group without its prompt, which the pool holds: only the prompt's content key is kept."""
    return {
        "prompt": group.prompt.content_key,
        "draw": group.draw,
        "completions": [completion_state(completion) for completion in group.completions],
    }


def load_group(state: Plain, prompts: Mapping[str, Prompt]) -> Group:
    """The inverse of `group_state`; `prompts` maps content keys to the pool's prompts."""
    if state["prompt"] not in prompts:
        raise RunError(
            f"the checkpoint holds a group of prompt {state['prompt']}, which the dataset no longer has; "
            "restore the data"
        )
    completions = [load_completion(completion) for completion in state["completions"]]
    return Group(prompt=prompts[state["prompt"]], completions=completions, draw=state["draw"])


def completion_state(completion: Completion) -> Plain:
    return {
        "segments": [
            {
                "token_ids": torch.tensor(segment.token_ids, dtype=torch.int64),
                "loss_mask": torch.tensor(segment.loss_mask, dtype=torch.bool),
                "sampling_logps": torch.tensor(segment.sampling_logps, dtype=torch.float32),
            }
            for segment in completion.segments
        ],
        "finish": completion.finish.value,
        "content": completion.content,
        "judgements": {
            name: {**asdict(judgement), "outcome": judgement.outcome.value}
            for name, judgement in completion.judgements.items()
        },
        "reward": completion.reward,
        "correct": completion.correct,
        "advantage": completion.advantage,
        "policy_versions": [(span.start, span.version) for span in completion.policy_versions],
        "tags": completion.tags,
    }


def load_completion(state: Plain) -> Completion:
    return Completion(
        segments=[
            Segment(**{name: tensor.numpy() for name, tensor in segment.items()}) for segment in state["segments"]
        ],
        finish=Finish(state["finish"]),
        content=state["content"],
        judgements={
            name: Judgement(
                **{**judgement, "outcome": Outcome(judgement["outcome"]), "span": as_span(judgement["span"])}
            )
            for name, judgement in state["judgements"].items()
        },
        reward=state["reward"],
        correct=state["correct"],
        advantage=state["advantage"],
        policy_versions=tuple(VersionSpan(start, version) for start, version in state["policy_versions"]),
        tags=state["tags"],
    )


def as_span(span: Any) -> tuple[int, int] | None:
    return None if span is None else (span[0], span[1])
