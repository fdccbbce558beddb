"""The producer of scored groups: draws prompts, has the engine write, marks each group as it finishes.

What it returns is the same on every rank: each rank writes and marks its share, then all hold all groups, in the
order of their draws. This is `max_staleness = 0`; `pipeline` writes ahead. The trainer's loop calls both by the same
names and knows neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from assay.policy import Policy
from assay.prompts import Curriculum, Refill, RewardCurriculum
from assay.prompts import collect as fill_batch
from assay.ranks import Ranks
from assay.records import Completion, Group, Messages, Prompt
from assay.rewards import Scorer
from assay.rollouts.codec import group_state, load_group
from assay.rollouts.options import RolloutOptions
from assay.rollouts.protocol import Engine, Request, Sampling

Decode = Callable[[Sequence[int]], str]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Collected:
    """Groups to train on in draw order, what collecting them measured, and all groups that were written since the last
    round, those that dynamic sampling drops included; on every rank alike."""

    groups: list[Group]
    written: list[Group]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Rollouts(Protocol):
    """What the training loop needs: groups to train on, and a place to push the weights to."""

    draws: int

    def collect(self, curriculum: Curriculum, count: int, step: int, trainer_state: Any = None) -> Collected:
        """The next round's groups, marked, for the update after `step`."""
        ...

    def push(self, policy: Policy, version: int, needed: bool = False) -> None:
        """A round is trained: the engine goes on with these weights; at once if `needed` (for held-out evaluation)."""
        ...

    def frozen(self) -> AbstractContextManager[Any]:
        """Hold still while a checkpoint reads the state of this and of the curriculum."""
        ...

    def close(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Producer:
    """Writes and marks groups with the engine's present weights, until a batch is full of informative ones.

    `prompts` is the training pool by content key, `schedules` what changes with the step. Has memory: `draws` counts
    the prompts of the whole run, `refill` holds groups that wait for the next batch.
    """

    def __init__(
        self,
        engine: Engine,
        scorer: Scorer,
        decode: Decode,
        options: RolloutOptions,
        *,
        seed: int,
        prompts: Mapping[str, Prompt],
        refill: Refill,
        schedules: RewardCurriculum,
        ranks: Ranks | None = None,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        self.engine = engine
        self.scorer = scorer
        self.decode = decode
        self.options = options
        self.seed = seed
        self.prompts = prompts
        self.refill = refill
        self.schedules = schedules
        self.ranks = ranks or Ranks()
        self.progress = progress
        self.draws = 0
        self.measured: list[tuple[int, Mapping[str, float]]] = []
        self.max_tokens = options.max_completion_length

    def collect(self, curriculum: Curriculum, count: int, step: int, trainer_state: Any = None) -> Collected:
        """About `count` marked groups (see `RefillOptions.fallback`); the curriculum learns from all there were."""
        self.scorer.reweigh(self.schedules.weights_at(step))
        limits = self.schedules.limits_at(step)
        self.max_tokens = min(limits.get("max_completion_length", self.max_tokens), self.options.max_completion_length)
        self.measured = []

        def sample(prompts: Sequence[Prompt], n: int | None) -> list[Group]:
            return self.answer(prompts, n or self.options.num_generations, trainer_state)

        def extend(groups: Sequence[Group]) -> None:
            self.extend(groups, trainer_state)

        batch = fill_batch(self.refill, curriculum, count, sample, extend)
        metrics = {
            **weighted_mean(self.measured),
            **batch.metrics,
            **curriculum.metrics(),
            **self.schedules.metrics(step),
        }
        return Collected(batch.groups, batch.written, metrics)

    def answer(self, prompts: Sequence[Prompt], n: int, trainer_state: Any = None) -> list[Group]:
        """One marked group of `n` completions for each prompt."""
        groups = [Group(prompt, [], draw=self.draws + offset) for offset, prompt in enumerate(prompts)]
        self.draws += len(prompts)
        return self.complete(groups, n, "", trainer_state)

    def extend(self, groups: Sequence[Group], trainer_state: Any = None) -> None:
        """Write the completions that screening left out, into the groups that are there."""
        missing = [Group(group.prompt, [], group.draw) for group in groups]
        rest = self.options.num_generations - self.refill.options.screen
        for group, more in zip(groups, self.complete(missing, rest, "/rest", trainer_state), strict=True):
            group.completions += more.completions

    def complete(self, groups: list[Group], n: int, stream: str, trainer_state: Any) -> list[Group]:
        """Each rank writes and marks a share of the groups; all get all, in their order."""
        own = self.ranks.share(groups)
        self.write(own, n, stream, trainer_state)
        metrics = self.scorer.finish(own, trainer_state)
        parts = self.ranks.gather((own, metrics))
        # Not the copy that went around: traces do not travel.
        parts[self.ranks.rank] = (own, metrics)
        self.measured += [(len(part), found) for part, found in parts]
        return self.ranks.interleave([part for part, _ in parts])

    def write(self, groups: Sequence[Group], n: int, stream: str, trainer_state: Any) -> None:
        """Fill in completions; marking starts as each group finishes, while the others are still being written."""
        requests = {self.submit(group, n, stream): group for group in groups}
        self.progress("generate", 0, len(groups))
        for done, (handle, completions) in enumerate(self.engine.completed(), start=1):
            group = requests[handle]
            group.completions = completions
            read_back(group, self.decode)
            self.scorer.submit(group, trainer_state)
            self.progress("generate", done, len(groups))
        self.progress("score", 0, len(groups))

    def submit(self, group: Group, n: int, stream: str) -> int:
        """Ask the engine for completions that the next update trains on."""
        sampling = Sampling(self.max_tokens, self.options.temperature)
        return self.engine.submit(replace(request_of(group, n, stream, self.seed, sampling), for_update=True))

    def push(self, policy: Policy, version: int, needed: bool = False) -> None:
        """Every round's weights go to the engine, whether or not they are `needed` for something else."""
        push_policy(self.engine, policy, version)

    def frozen(self) -> AbstractContextManager[Any]:
        """Nothing happens here between two calls."""
        return nullcontext()

    def close(self) -> None:
        """Nothing is in flight between two calls."""

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws, "refill": self.refill.state_dict(group_state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.draws = state["draws"]
        self.refill.load_state_dict(state["refill"], lambda group: load_group(group, self.prompts))


def push_policy(engine: Engine, policy: Policy, version: int) -> None:
    """The policy's present weights, as policy `version`."""
    engine.push(policy.named_full_weights(), version)


def request_of(group: Group, n: int, stream: str, seed: int, sampling: Sampling) -> Request:
    """`n` completions of a group's prompt, from the random stream of its draw."""
    prompt = group.prompt
    return Request(prompt.token_ids, sampling, n, stream_seed(seed, f"{group.draw}{stream}"), prompt.media)


def read_back(group: Group, decode: Decode) -> None:
    """The text of what was written, as the verifiers read it."""
    for completion in group.completions:
        completion.content = content_of(completion, group.prompt, decode)


def stream_seed(seed: int, draw: int | str) -> int:
    """A seed of its own for every draw of a run or prompt of an evaluation, whatever rank or batch it falls into."""
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
