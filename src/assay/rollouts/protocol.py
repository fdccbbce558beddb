"""What every rollout engine offers; nothing outside this room knows which engine runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from assay.records import Completion, Media

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. `temperature` 0 is greedy; top-p, top-k and min-p are for evaluation only."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def is_truncated(self) -> bool:
        """Whether the sampler's support is smaller than the vocabulary, which would bias importance ratios."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


@dataclass(frozen=True)
class Request:
    """Write `n` completions of one prompt. Completion g draws from its own stream, seeded by (seed, g).

    `for_update` says that the policy will be updated on them before its weights change: an engine that can remembers
    how it wrote them (`Completion.trace`).
    """

    token_ids: tuple[int, ...]
    sampling: Sampling
    n: int
    seed: int
    media: tuple[Media, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    for_update: bool = False


class Engine(Protocol):
    """Token ids in, token ids out. Completions come back with `segments`, `finish` and `policy_versions` filled in.

    `content` stays empty: text belongs to whoever holds the tokenizer. An engine that sees the whole distribution puts
    the mean entropy (nats a token) of what it drew from into `tags["sampling_entropy"]`.

    A concurrent engine starts a request when it is submitted, and all its calls but `completed` may come from another
    thread while one thread is in `completed`.
    """

    def submit(self, request: Request) -> int:
        """Queue a request and return its handle."""
        ...

    def completed(self) -> Iterator[tuple[int, list[Completion]]]:
        """Yield (handle, its n completions) as each request finishes, until none is left."""
        ...

    def cancel(self, handles: Iterable[int]) -> None: ...

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take the policy's weights (transformers' names, adapters merged) as policy `version`.

        Requests in flight are kept: they go on with the new weights and say so in `policy_versions`.
        """
        ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None:
        """Forget what is open; a `completed` in another thread ends."""
        ...


def generate(engine: Engine, requests: Iterable[Request]) -> list[list[Completion]]:
    """Submit all requests and drain the engine; results are in the order of the requests."""
    handles = [engine.submit(request) for request in requests]
    done = dict(engine.completed())
    return [done[handle] for handle in handles]
