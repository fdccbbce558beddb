"""Completions by transformers in this process, from an own copy of the weights."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
import transformers

from assay.errors import InputError
from assay.policy.adapters import plain_copy
from assay.policy.model import Policy
from assay.policy.recording import Trace
from assay.records import Completion, Finish, Segment, VersionSpan
from assay.rollouts.choice import choose_decoder, choose_recorder
from assay.rollouts.protocol import Request
from assay.rollouts.recorder import Recorder
from assay.rollouts.sampling import RandomStream, draw
from assay.rollouts.shared_cache import SharedCacheDecoder


@dataclass(frozen=True)
class TransformersEngineOptions:
    """The transformers engine's part of the `rollouts:` section."""

    kv_cache_gib: Annotated[float, "Memory for keys and values; more rows are written at once with more."] = 2.0
    max_rows: Annotated[int, "Most completions that are written at once; 0 leaves it to the memory."] = 0
    keep_outputs_gib: Annotated[float, "Memory for layer outputs that the update uses again; 0 keeps none."] = 0.0

    def __post_init__(self) -> None:
        if self.kv_cache_gib <= 0:
            raise InputError(f"kv_cache_gib is {self.kv_cache_gib}; it must be positive")
        if self.keep_outputs_gib < 0:
            raise InputError(f"keep_outputs_gib is {self.keep_outputs_gib}; it must not be negative (0 keeps none)")
        if self.max_rows < 0:
            raise InputError(f"max_rows is {self.max_rows}; it must not be negative (0 means no limit)")


@dataclass
class _Row:
    """A completion in the making."""

    handle: int
    request: Request
    stream: RandomStream
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    entropy: float = 0.0
    spans: list[VersionSpan] = field(default_factory=list)
    finish: Finish | None = None
    trace: Trace | None = None

    def completion(self) -> Completion:
        length = len(self.tokens)
        segment = Segment(
            np.array(self.tokens, dtype=np.int64),
            np.ones(length, dtype=bool),
            np.array(self.logps, dtype=np.float32),
        )
        return Completion(
            segments=[segment],
            finish=self.finish or Finish.ABORT,
            policy_versions=tuple(self.spans),
            tags={"sampling_entropy": self.entropy / max(1, length)},
            trace=self.trace if len(self.spans) == 1 else None,
        )


class TransformersEngine:
    """`Engine` over a transformers model. Completion g of a request depends on its seed, g and the weights only, up to
    float ties between batch compositions; the same requests in the same order give the same bits.

    Weights arrive by `push` and are copied; those that the policy never changes are shared with it. `push` may come
    from another thread or between two `completed` items: rows in flight go on with the new weights from their next
    token (their cached keys and values stay) and say so in `policy_versions`.

    Args:
        model: a plain transformers model (see `from_policy`).
        stop_token_ids: tokens that end a completion, beyond a request's own.
        options: memory limits.
        shared: names of weights that nobody ever changes, whose memory the model shares with the policy.
        float32_logits: multiply with the output embedding in float32 (the policy's `fp32_lm_head`).
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        stop_token_ids: Iterable[int],
        options: TransformersEngineOptions | None = None,
        *,
        shared: Iterable[str] = (),
        float32_logits: bool = False,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.stop_token_ids = frozenset(stop_token_ids)
        self.options = options or TransformersEngineOptions()
        self.version = 0
        self._shared = set(shared)
        self._queue: list[_Row] = []
        # Rows of each request that is not finished; a large request may take several waves.
        self._open: dict[int, list[_Row]] = {}
        self._next_handle = 0
        for name, parameter in self.model.named_parameters():
            if name not in self._shared:
                parameter.data = parameter.data.clone()
        self.model.tie_weights()
        self._running = threading.Event()
        self._running.set()
        # Held while the weights are read (one token of all rows) or written.
        self._weights = threading.Lock()
        self.decoder = choose_decoder(self.model, float32_logits)

    @classmethod
    def from_policy(
        cls, policy: Policy, stop_token_ids: Iterable[int], options: TransformersEngineOptions | None = None
    ) -> TransformersEngine:
        """An engine beside a policy in one process, holding its present weights as version 0."""
        plain: Any = plain_copy(policy.transformer)
        if not policy.has_adapters:
            plain.to(getattr(torch, policy.choices["dtype"]))
        engine = cls(
            plain,
            stop_token_ids,
            options,
            shared=policy.frozen_weight_names(),
            float32_logits=policy.options.fp32_lm_head,
        )
        engine.push(policy.named_full_weights(), version=0)
        if isinstance(engine.decoder, SharedCacheDecoder):
            limit = int(engine.options.keep_outputs_gib * 2**30)
            engine.decoder.recorder = choose_recorder(policy, engine.decoder, limit)
        return engine

    @property
    def recorder(self) -> Recorder | None:
        """Keeps what the update can use again, where that works for the model and there is memory for it."""
        return self.decoder.recorder if isinstance(self.decoder, SharedCacheDecoder) else None

    def submit(self, request: Request) -> int:
        if not request.token_ids or request.n < 1 or request.sampling.max_tokens < 1:
            raise InputError("a request needs at least one prompt token, one completion and one token to write")
        if request.media:
            raise InputError("the transformers engine does not read media; use a vLLM engine")
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and len(request.token_ids) + request.sampling.max_tokens > limit:
            raise InputError(
                f"a prompt of {len(request.token_ids)} tokens and {request.sampling.max_tokens} new ones exceed the "
                f"model's {limit} positions; shorten prompts or lower max_completion_length"
            )
        handle = self._next_handle
        self._next_handle += 1
        self._open[handle] = [_Row(handle, request, RandomStream(request.seed, g)) for g in range(request.n)]
        self._queue += self._open[handle]
        return handle

    def completed(self) -> Iterator[tuple[int, list[Completion]]]:
        while wave := self._next_wave():
            yield from self._write(wave)

    def cancel(self, handles: Iterable[int]) -> None:
        """Forget these requests, queued or half written; they are never yielded."""
        for handle in handles:
            self._open.pop(handle, None)

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy the weights in. A weight that is not named keeps its value.

        Raises:
            KeyError: for a name that the model does not have.
        """
        with self._weights, torch.no_grad():
            if self.recorder:
                self.recorder.forget()
            self.decoder.head.forget()
            own = dict(self.model.named_parameters(remove_duplicate=False))
            for name, tensor in weights:
                parameter = own[name]
                if name in self._shared and parameter.data_ptr() == tensor.data_ptr():
                    continue
                if name in self._shared:
                    parameter.data = torch.empty_like(parameter)
                    self._shared.discard(name)
                parameter.copy_(tensor)
            self.model.tie_weights()
            self.version = version

    def pause(self) -> None:
        """Stop before the next token, and return once no token is in the making."""
        self._running.clear()
        with self._weights:
            pass

    def resume(self) -> None:
        self._running.set()

    def sleep(self) -> None:
        """Give accelerator memory back until `wake`."""
        self.decoder.stop()
        if self.model.device.type != "cpu":
            self._device = self.model.device
            self.model.to("cpu")

    def wake(self) -> None:
        if hasattr(self, "_device"):
            self.model.to(self._device)

    def close(self) -> None:
        self.decoder.stop()
        self._queue.clear()
        self._open.clear()

    def _next_wave(self) -> list[_Row]:
        """The next rows of the queue, as many as the memory holds; at least one."""
        wave: list[_Row] = []
        tokens, limit = 0, self._token_budget()
        max_rows = self.options.max_rows or len(self._queue)
        while self._queue and len(wave) < max_rows:
            row = self._queue[0]
            if row.handle in self._open:
                is_first = not wave or wave[-1].handle != row.handle
                tokens += row.request.sampling.max_tokens + (len(row.request.token_ids) if is_first else 0)
                if wave and tokens > limit:
                    break
                wave.append(row)
            self._queue.pop(0)
        return wave

    def _token_budget(self) -> int:
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        per_token = 2 * config.num_hidden_layers * heads * size * self.model.dtype.itemsize
        return int(self.options.kv_cache_gib * 2**30 / per_token)

    def _write(self, wave: list[_Row]) -> Iterator[tuple[int, list[Completion]]]:
        """Write all rows of a wave token by token; yield each request when its last row ends."""
        alive, logits, tokens = wave, None, torch.empty(0)
        try:
            while alive:
                self._running.wait()
                with self._weights, torch.inference_mode():
                    if not self._running.is_set():
                        continue
                    logits = self._start(alive) if logits is None else self.decoder.step(tokens)
                    drawn = draw(logits, [row.request.sampling for row in alive], [row.stream.next() for row in alive])
                    self._append(
                        alive, drawn.tokens.tolist(), drawn.logps.tolist(), drawn.entropies.tolist(), self.version
                    )
                    if self.recorder:
                        self._trace(alive, self.recorder)
                yield from self._finished({row.handle for row in alive})
                left = [i for i, row in enumerate(alive) if row.finish is None and row.handle in self._open]
                tokens = drawn.tokens
                if left and len(left) < len(alive):
                    index = torch.tensor(left, device=tokens.device)
                    with torch.inference_mode():
                        self.decoder.keep(index)
                        tokens = tokens[index]
                alive = [alive[i] for i in left]
        finally:
            self.decoder.stop()

    def _trace(self, alive: list[_Row], recorder: Recorder) -> None:
        for index, row in enumerate(alive):
            if row.finish is not None and row.request.for_update:
                row.trace = recorder.trace(index)

    def _start(self, wave: list[_Row]) -> torch.Tensor:
        """Prefill each request's prompt once for its rows in this wave."""
        if self.recorder:
            self.recorder.wanted = any(row.request.for_update for row in wave)
        counts: dict[int, int] = {}
        for row in wave:
            counts[row.handle] = counts.get(row.handle, 0) + 1
        requests = {row.handle: row.request for row in wave}
        longest = max(request.sampling.max_tokens for request in requests.values())
        return self.decoder.start([r.token_ids for r in requests.values()], list(counts.values()), longest)

    def _append(
        self, alive: list[_Row], tokens: list[int], logps: list[float], entropies: list[float], version: int
    ) -> None:
        for row, token, logp, entropy in zip(alive, tokens, logps, entropies):
            if not row.spans or row.spans[-1].version != version:
                row.spans.append(VersionSpan(len(row.tokens), version))
            row.tokens.append(token)
            row.logps.append(logp)
            row.entropy += entropy
            if token in self.stop_token_ids or token in row.request.stop_token_ids:
                row.finish = Finish.STOP
            elif len(row.tokens) >= row.request.sampling.max_tokens:
                row.finish = Finish.LENGTH

    def _finished(self, handles: set[int]) -> Iterator[tuple[int, list[Completion]]]:
        for handle in sorted(handles & self._open.keys()):
            if all(row.finish is not None for row in self._open.get(handle, [])) and handle in self._open:
                yield handle, [row.completion() for row in self._open.pop(handle)]
