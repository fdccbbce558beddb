"""The producer of scored groups: draws prompts, has the engine write, marks each group as it finishes.

What it returns is the same on every rank: each rank writes and marks its share, then all hold all groups, in the
order of their draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.prompts import Curriculum
from assay.ranks import Ranks
from assay.records import Completion, Group, Messages, Prompt
from assay.rewards import Scorer
from assay.rollouts.options import RolloutOptions
from assay.rollouts.protocol import Engine, Request, Sampling

Decode = Callable[[Sequence[int]], str]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Collected:
    """Groups in draw order, on every rank alike, and what collecting them measured."""

    groups: list[Group]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Producer:
    """Writes and marks groups with the engine's present weights. `draws` counts the prompts of the whole run."""

    def __init__(
        self,
        engine: Engine,
        scorer: Scorer,
        decode: Decode,
        options: RolloutOptions,
        *,
        seed: int,
        ranks: Ranks | None = None,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        self.engine = engine
        self.scorer = scorer
        self.decode = decode
        self.options = options
        self.seed = seed
        self.ranks = ranks or Ranks()
        self.progress = progress
        self.draws = 0

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.options.max_completion_length, self.options.temperature)

    def collect(self, curriculum: Curriculum, count: int, trainer_state: Any = None) -> Collected:
        """`count` groups of `num_generations` marked completions; the curriculum learns from all that was generated."""
        collected = self.answer(curriculum.draw(count), trainer_state)
        curriculum.observe(collected.groups)
        return Collected(collected.groups, {**collected.metrics, **curriculum.metrics()})

    def answer(self, prompts: Sequence[Prompt], trainer_state: Any = None) -> Collected:
        """One marked group for each prompt."""
        numbered = [Group(prompt, [], draw=self.draws + offset) for offset, prompt in enumerate(prompts)]
        self.draws += len(prompts)
        own = self.ranks.share(numbered)
        self.write(own, trainer_state)
        metrics = self.scorer.finish(own, trainer_state)
        parts = self.ranks.gather((own, metrics))
        groups = self.ranks.interleave([part for part, _ in parts])
        return Collected(groups, weighted_mean([(len(part), found) for part, found in parts]))

    def write(self, groups: Sequence[Group], trainer_state: Any) -> None:
        """Fill in the completions; marking starts as each group finishes, while the others are still being written."""
        requests = {
            self.engine.submit(
                Request(
                    token_ids=group.prompt.token_ids,
                    sampling=self.sampling,
                    n=self.options.num_generations,
                    seed=stream_seed(self.seed, group.draw),
                    media=group.prompt.media,
                )
            ): group
            for group in groups
        }
        self.progress("generate", 0, len(groups))
        for done, (handle, completions) in enumerate(self.engine.completed(), start=1):
            group = requests[handle]
            for completion in completions:
                completion.content = content_of(completion, group.prompt, self.decode)
            group.completions = completions
            self.scorer.submit(group, trainer_state)
            self.progress("generate", done, len(groups))
        self.progress("score", 0, len(groups))

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.draws = state["draws"]


def stream_seed(seed: int, draw: int | str) -> int:
    """A seed of its own for every draw of a run (or prompt of an evaluation), whatever rank or batch it falls into."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{draw}".encode()).digest()[:7], "big")


def content_of(completion: Completion, prompt: Prompt, decode: Decode) -> str | Messages:
    """The completion's text, as a message where the prompt is a conversation."""
    text = "".join(decode(segment.token_ids[segment.loss_mask].tolist()) for segment in completion.segments)
    return [{"role": "assistant", "content": text}] if prompt.is_conversational else text


def weighted_mean(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Means over ranks, weighted by how many groups each had."""
    sums: dict[str, float] = {}
    weights: dict[str, int] = {}
    for count, metrics in parts:
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + count * value
            weights[name] = weights.get(name, 0) + count
    return {name: sums[name] / weights[name] for name in sums if weights[name]}
