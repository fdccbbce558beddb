"""Completions by any number of `vllm serve` processes, which go on writing while the trainer trains."""

from __future__ import annotations

import itertools
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from assay.errors import InputError, RunError
from assay.policy.model import Policy
from assay.ranks import Ranks
from assay.records import Completion
from assay.rollouts.protocol import Request
from assay.rollouts.vllm_http import SLOW, Server, ServerError, check_model, made
from assay.rollouts.vllm_options import SLOW_ADAPTERS, VllmOptions
from assay.rollouts.vllm_requests import check_request, probe_params, sampling_params
from assay.rollouts.vllm_sync import Transfer, choose_transfer
from assay.rollouts.vllm_weights import Weights, check_base, check_version, compare, tied_head

logger = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
RESUME_HINT = (
    "The run's last checkpoint is kept: start servers with `assay serve RECIPE` and run the same command again"
)


@dataclass
class Job:
    """A request that is being written somewhere. `attempt` counts the servers that had it."""

    handle: int
    request: Request
    server: Server
    attempt: int = 0


class VllmServerEngine:
    """`Engine` over vLLM servers. A request starts at once, on the server with the fewest completions in the making.

    `submit`, `push`, `pause`, `resume` and `cancel` may be called while another thread is in `completed`. A push pauses
    the servers, keeps their requests, replaces the weights, reads them back, empties the prefix cache and resumes;
    completions that were in flight say in `policy_versions` which tokens came from which version. A server that dies or
    hangs is given up with a warning and its requests start anew on the others; when none is left the run ends.

    Args:
        servers: servers that are ready.
        transfer: how weights get there.
        stop_token_ids: tokens that end a completion, beyond a request's own.
        options: time limits.
        ranks: with several, rank 0 alone sends weights.
    """

    is_concurrent = True

    def __init__(
        self,
        servers: list[Server],
        transfer: Transfer,
        stop_token_ids: Iterable[int],
        options: VllmOptions,
        ranks: Ranks | None = None,
    ) -> None:
        self.servers = servers
        self.transfer = transfer
        self.stop_token_ids = frozenset(stop_token_ids)
        self.options = options
        self.ranks = ranks or Ranks()
        self.name = uuid.uuid4().hex[:8]
        self.takes_adapters = transfer.model is not None
        self.dtype: torch.dtype = getattr(torch, servers[0].facts["dtype"])
        self.context = min(int(server.facts["context"]) for server in servers)
        self._changed = threading.Condition()
        self._jobs: dict[int, Job] = {}
        self._results: deque[tuple[int, list[Completion]]] = deque()
        self._failure: Exception | None = None
        self._handles = itertools.count()
        self._closed = threading.Event()
        self._paused = False
        for server in servers:
            threading.Thread(target=self._watch, args=(server,), name=f"watch {server.url}", daemon=True).start()

    @classmethod
    def from_policy(
        cls,
        policy: Policy,
        stop_token_ids: Iterable[int],
        options: VllmOptions,
        ranks: Ranks | None = None,
        tell: Callable[[str], None] = logger.warning,
    ) -> VllmServerEngine:
        """Wait for the servers and give them the policy's present weights as version 0.

        Raises:
            RunError: if a server does not become healthy in time.
            InputError: if one serves another model, is of an unknown version, or was started without what is needed.
        """
        ranks = ranks or Ranks()
        servers = [Server(url, options) for url in options.urls]
        adapters = policy.has_adapters and options.adapters
        for server in servers:
            server.wait_until_ready(tell)
            check_model(server, policy, adapters, servers[0].facts["dtype"])
            if ranks.is_main:
                # What an earlier run left behind when it was killed.
                server.call("POST", "/abort_requests", {})
                server.call("POST", "/resume")
        if adapters and servers[0].facts["device"] == "cpu":
            tell(SLOW_ADAPTERS)
        dtype, head = getattr(torch, servers[0].facts["dtype"]), tied_head(policy.transformer)
        for server in servers if adapters else ():
            check_base(policy.named_full_weights(), dtype, head, server.rpc("assay_digests"), server.url)
        transfer = choose_transfer(options, dtype, head, adapters=adapters)
        engine = cls(servers, transfer, stop_token_ids, options, ranks)
        engine.push(policy.named_full_weights(), 0)
        return engine

    # Requests

    def submit(self, request: Request) -> int:
        check_request(request, self.context)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            job = Job(next(self._handles), request, self.servers[0])
            self._jobs[job.handle] = job
            self._dispatch(job)
        return job.handle

    def completed(self) -> Iterator[tuple[int, list[Completion]]]:
        while True:
            with self._changed:
                while not self._results and self._failure is None and self._jobs and not self._closed.is_set():
                    self._changed.wait()
                if self._failure is not None:
                    raise self._failure
                if not self._results:
                    return
                item = self._results.popleft()
            yield item

    def cancel(self, handles: Iterable[int]) -> None:
        with self._changed:
            gone = [self._jobs.pop(handle) for handle in handles if handle in self._jobs]
            self._changed.notify_all()
        for server in self._alive():
            names = [f"generate-tokens-{self._request_id(job)}" for job in gone if job.server is server]
            if names:
                self._attempt(server, partial(abort, names=names))

    def _request_id(self, job: Job) -> str:
        return f"assay-{self.name}-{job.handle}-{job.attempt}"

    def _alive(self) -> list[Server]:
        return [server for server in self.servers if server.is_alive]

    def _dispatch(self, job: Job) -> None:
        """Start a job on the least busy server; the caller holds the lock."""
        alive = self._alive()
        if not alive:
            self._fail(nobody_left(self.servers))
            return
        job.server = min(alive, key=lambda server: server.load)
        job.attempt += 1
        job.server.load += job.request.n
        threading.Thread(target=self._write, args=(job, job.server, job.attempt), daemon=True).start()

    def _write(self, job: Job, server: Server, attempt: int) -> None:
        """A thread: one request on one server, tried again while the server lives."""
        body = {
            "request_id": self._request_id(job),
            "token_ids": list(job.request.token_ids),
            "sampling_params": sampling_params(job.request, self.stop_token_ids),
            "model": self.transfer.model,
        }
        try:
            for trial in itertools.count():
                try:
                    found = made(server.call("POST", GENERATE, body, timeout=None))
                except ServerError as error:
                    if not self._tries_again(job, server, attempt, trial, error):
                        return
                else:
                    self._deliver(job, attempt, found)
                    return
        finally:
            with self._changed:
                server.load -= job.request.n

    def _is_current(self, job: Job, attempt: int) -> bool:
        return self._jobs.get(job.handle) is job and job.attempt == attempt and not self._closed.is_set()

    def _deliver(self, job: Job, attempt: int, found: list[Completion]) -> None:
        with self._changed:
            if self._is_current(job, attempt):
                del self._jobs[job.handle]
                self._results.append((job.handle, found))
                self._changed.notify_all()

    def _tries_again(self, job: Job, server: Server, attempt: int, trial: int, error: ServerError) -> bool:
        """After a failure: whether this thread goes on; else the job went elsewhere, or the engine has failed."""
        if not self._is_current(job, attempt) or not server.is_alive:
            return False
        if error.is_refusal:
            self._fail(InputError(f"the vLLM server refuses a request: {error}"))
            return False
        if not server.is_healthy(self.options.hang_timeout_s, tries=3):
            self._drop(server, str(error))
            return False
        if trial >= self.options.retries:
            self._fail(RunError(f"a request failed {trial + 1} times, last: {error}; look at that server's log"))
            return False
        logger.warning("a request is tried again: %s", error)
        return not self._closed.wait(0.5 * 2**trial)

    # Servers

    def _watch(self, server: Server) -> None:
        """A thread: notice a server that hangs while it has work, which a waiting request would not."""
        every = min(5.0, self.options.hang_timeout_s / 2)
        while not self._closed.wait(every) and server.is_alive:
            if server.load and not server.is_healthy(self.options.hang_timeout_s, tries=3):
                self._drop(server, f"no answer to its health check for {self.options.hang_timeout_s:g} s")

    def _drop(self, server: Server, why: str) -> None:
        """Never use this server again; its requests start anew on the others."""
        with self._changed:
            if not server.is_alive or self._closed.is_set():
                return
            server.fault = why.removeprefix(server.url)
            moved = [job for job in self._jobs.values() if job.server is server]
            left = self._alive()
            logger.warning(
                "the vLLM server %s is given up (%s); look at its log. %d requests start anew on %d other servers",
                server.url, server.fault, len(moved), len(left),
            )  # fmt: skip
            if not left:
                self._fail(nobody_left(self.servers))
            for job in moved if left else ():
                self._dispatch(job)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _attempt(self, server: Server, act: Callable[[Server], Any]) -> Any:
        """Do something with a server; give it up if it is dead.

        Raises:
            RunError: if it is alive and does not do it.
        """
        try:
            return act(server)
        except ServerError as error:
            if server.is_healthy(self.options.hang_timeout_s, tries=3):
                raise RunError(f"{error}; look at that server's log. {RESUME_HINT}") from error
            self._drop(server, str(error))
            return None

    def _everywhere(self, act: Callable[[Server], Any]) -> None:
        """The same on all servers at once.

        Raises:
            RunError: if one that is alive does not do it, or none is left.
        """
        alive = self._alive()
        with ThreadPoolExecutor(max(1, len(alive))) as pool:
            list(pool.map(lambda server: self._attempt(server, act), alive))
        if not self._alive():
            raise self._failure or nobody_left(self.servers)

    # Weights

    def push(self, weights: Weights, version: int) -> None:
        """Give all servers the weights, and read them back.

        Raises:
            RunError: if what a server holds afterwards is not what was sent, or no server is left.
        """
        trouble: str | None = None
        if self.ranks.is_main:
            try:
                self._push(weights, version)
            except RunError as error:
                trouble = str(error)
        elif not self.takes_adapters:
            # A sharded policy gathers its weights on all ranks together.
            for _ in weights:
                pass
        troubles = [found for found in self.ranks.gather(trouble) if found]
        if troubles:
            raise RunError(troubles[0])

    def _push(self, weights: Weights, version: int) -> None:
        self.transfer.prepare(weights)
        was_paused = self._paused
        if not was_paused:
            self.pause()
        try:
            self._everywhere(lambda server: self._update(server, version))
        finally:
            if not was_paused:
                self.resume()
        self.transfer.finish()

    def _update(self, server: Server, version: int) -> None:
        self.transfer.send(server)
        server.call("POST", "/reset_prefix_cache?reset_running_requests=true", timeout=SLOW)
        server.call("POST", "/update_weight_version", {"new_version": str(version)})
        compare(self.transfer.expected(), server.rpc(self.transfer.digests), server.url, version)
        check_version(str(server.call("GET", "/weight_info")["weight_version"]), version, server.url)

    def probe(self, token_ids: Iterable[int]) -> list[tuple[str, np.ndarray]]:
        """Every server's URL, and [T - 1] log-probs (nats, temperature 1) of a sequence's tokens from the second on.

        Nothing else may run: vLLM 0.32's CPU build cannot score a prompt beside other requests with an adapter.
        """
        tokens = list(token_ids)
        return [(server.url, self._probe(server, tokens)) for server in self._alive()]

    def _probe(self, server: Server, tokens: list[int]) -> np.ndarray:
        body = {"token_ids": tokens, "sampling_params": probe_params(), "model": self.transfer.model}
        try:
            scores = server.call("POST", GENERATE, body, timeout=SLOW)["prompt_logprobs"][1:]
        except ServerError as error:
            raise RunError(f"{error}; look at that server's log") from error
        logps = [scores[index][str(token)]["logprob"] for index, token in enumerate(tokens[1:])]
        return np.array(logps, dtype=np.float32)

    def pause(self) -> None:
        """Stop all servers before the next token, and return once no token is in the making. Requests are kept."""
        self._paused = True
        self._everywhere(lambda server: server.call("POST", "/pause?mode=keep", timeout=self.options.hang_timeout_s))

    def resume(self) -> None:
        self._paused = False
        self._everywhere(lambda server: server.call("POST", "/resume", timeout=self.options.hang_timeout_s))

    def sleep(self) -> None:
        """Servers have memory of their own."""

    def wake(self) -> None:
        """Servers have memory of their own."""

    def close(self) -> None:
        """Forget what is open; the servers go on and can serve another run."""
        if self._failure is None:
            self.cancel(list(self._jobs))
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self.transfer.close()


def abort(server: Server, names: list[str]) -> None:
    server.call("POST", "/abort_requests", {"request_ids": names})


def nobody_left(servers: list[Server]) -> RunError:
    told = "; ".join(f"{server.url}: {server.fault}" for server in servers)
    return RunError(f"no vLLM server is left ({told}). Look at their logs. {RESUME_HINT}")
