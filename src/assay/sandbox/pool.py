"""The sandbox as its users see it: a pool of zygotes behind a synchronous and an asynchronous interface."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, TypeVar

from assay.sandbox import spawn
from assay.sandbox.options import Level, Limits, SandboxOptions
from assay.sandbox.results import Ended, InfraError, Isolation, IsolationError, RunResult
from assay.sandbox.runs import Run
from assay.sandbox.workers import Worker

T = TypeVar("T")
SPAWN_RETRIES = 3
MOST_WALLS = 2.5  # a conversation that has taken more is not held again after a stall


class Stalled(Exception):
    """A run hit its wall limit almost without running; worth a second try."""


class Session:
    """What one conversation may do: start programs. They are gone when it ends."""

    def __init__(self, pool: Pool, last_try: bool) -> None:
        self.pool, self.last_try = pool, last_try
        self.runs: list[Run] = []

    async def start(self, job: dict[str, Any], limits: Limits | None = None, stdin: bytes = b"") -> Run:
        """Start a program; `job` is what the harness takes (mode, code, ...)."""
        limits = limits or self.pool.options.limits
        worker = await self.pool.worker()
        run = worker.start(limits, stdin)
        self.runs.append(run)
        await run.send(job)
        return run

    async def end(self) -> None:
        for run in self.runs:
            if run.result is None:
                run.kill(Ended.CANCELLED)
                await run.finish("the conversation was over")

    def check(self) -> None:
        """Raise Stalled or InfraError where a run failed through no fault of its program."""
        for run in self.runs:
            if run.result is not None and run.result.ended is Ended.INFRA_ERROR:
                raise InfraError(run.result.detail)
            short = self.took <= MOST_WALLS * run.limits.wall_seconds
            if run.looks_stalled and not run.excused and not self.last_try and short:
                raise Stalled

    @property
    def took(self) -> float:
        """Wall seconds of all its programs."""
        return sum(run.result.usage.wall_s for run in self.runs if run.result is not None)


class Pool:
    """The event-loop side: workers, the queue for slots and memory, retries."""

    def __init__(self, options: SandboxOptions, first: spawn.Zygote) -> None:
        self.options, self.level = options, first.level
        self.count = options.workers or min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, 8)
        self.budget = int(spawn.available_memory() * options.memory_share)
        self.slots = max(2, self.count * options.runs_per_worker)
        self.free_slots, self.free_bytes = self.slots, self.budget
        self.waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self.first = first
        self.workers: list[Worker] = []
        self.stalls = self.crashes = 0

    async def open(self) -> None:
        self.workers = [Worker(self.first)]
        rest = [asyncio.to_thread(spawn.start, self.options, self.level) for _ in range(self.count - 1)]
        self.workers += [Worker(zygote) for zygote in await asyncio.gather(*rest)]
        self.replacing = asyncio.Lock()

    async def worker(self) -> Worker:
        """The least busy worker that lives; dead ones are replaced first."""
        async with self.replacing:
            for index, worker in enumerate(self.workers):
                if worker.dead:
                    self.workers[index] = await self.replacement()
        return min(self.workers, key=lambda worker: len(worker.runs))

    async def replacement(self) -> Worker:
        for attempt in range(SPAWN_RETRIES):
            try:
                return Worker(await asyncio.to_thread(spawn.start, self.options, self.level))
            except (InfraError, spawn.Refused) as error:
                if attempt == SPAWN_RETRIES - 1:
                    raise InfraError(f"a dead sandbox worker could not be replaced: {error}") from error
                await asyncio.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")

    async def converse(self, talk: Callable[[Session], Awaitable[T]], runs: int, limits: Limits) -> tuple[T, int]:
        """Hold one conversation, once more where the sandbox itself failed; returns it with the number of retries."""
        size = min(limits.worst_case_bytes * runs, self.budget)
        for attempt in range(2):
            async with self.reserved(runs, size):
                session = Session(self, last_try=attempt == 1)
                try:
                    try:
                        outcome = await talk(session)
                    finally:
                        await session.end()
                    session.check()
                    return outcome, attempt
                except Stalled:
                    self.stalls += 1
                except InfraError:
                    self.crashes += 1
                    if session.last_try:
                        raise
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def reserved(self, runs: int, size: int) -> AsyncIterator[None]:
        """Slots and memory for a conversation's programs, first come first served, all at once or not at all."""
        if self.waiting or not self.fits(runs, size):
            turn = asyncio.get_running_loop().create_future()
            self.waiting.append((runs, size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.release(runs, size)
                raise
        else:
            self.take(runs, size)
        try:
            yield
        finally:
            self.release(runs, size)

    def fits(self, runs: int, size: int) -> bool:
        return self.free_slots >= runs and (self.free_bytes >= size or self.free_bytes == self.budget)

    def take(self, runs: int, size: int) -> None:
        self.free_slots -= runs
        self.free_bytes -= size

    def release(self, runs: int, size: int) -> None:
        self.free_slots += runs
        self.free_bytes += size
        while self.waiting:
            runs, size, turn = self.waiting[0]
            if not turn.cancelled():
                if not self.fits(runs, size):
                    return
                self.take(runs, size)
                turn.set_result(None)
            self.waiting.popleft()

    async def close(self) -> None:
        for worker in self.workers:
            worker.end()


class Sandbox:
    """Runs untrusted Python programs on warm workers. Thread-safe; close it, or use it in a `with` statement.

    Construction starts the workers, tries what this host enforces from where a program stands (`isolation`), and raises
    IsolationError if that is less than `options.require`.
    """

    def __init__(self, options: SandboxOptions | None = None) -> None:
        from assay.sandbox import witness

        self.options = options or SandboxOptions()
        first, missing = spawn.climb_down(self.options)
        self.pool = Pool(self.options, first)
        self.owner = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="assay-sandbox", daemon=True)
        self.thread.start()
        self.finalizer = weakref.finalize(self, shut_down, self.loop, self.thread, self.pool, self.owner)
        try:
            self.call(self.pool.open())
            self.isolation: Isolation = witness.witness(self, missing)
            self.pool.level = self.isolation.level
            required = Level.parse(self.options.require)
            if self.isolation.level < required:
                raise IsolationError(witness.refusal(self.isolation, required))
        except BaseException:
            self.close()
            raise
        OPEN.add(self)

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine on the pool's thread and wait for it."""
        return self.submit(coroutine).result()

    def submit(self, coroutine: Any) -> concurrent.futures.Future[Any]:
        if os.getpid() != self.owner or not self.finalizer.alive:
            coroutine.close()
            raise RuntimeError("this sandbox is closed, or belongs to the process that this one was forked from")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def converse(
        self, talk: Callable[[Session], Awaitable[T]], runs: int = 1, limits: Limits | None = None
    ) -> concurrent.futures.Future[tuple[T, int]]:
        """Hold a conversation with `runs` programs at once; the future gives (its result, retries).

        `talk` runs on the pool's thread and may run twice: once more after a stall or a crash of ours. It must not
        block. The future raises InfraError where the sandbox failed both times. `runs` is at most 2.
        """
        return self.submit(self.pool.converse(talk, runs, limits or self.options.limits))

    def start(
        self, code: str, stdin: bytes | str = b"", argv: Iterable[str] = (), limits: Limits | None = None
    ) -> concurrent.futures.Future[RunResult]:
        """Run one program as a script and return at once; the future gives its RunResult and never raises for it."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        job = {"mode": "script", "code": code, "argv": list(argv)}

        async def talk(session: Session) -> RunResult:
            return await (await session.start(job, limits, data)).finish()

        async def whole() -> RunResult:
            try:
                result, retried = await self.pool.converse(talk, 1, limits or self.options.limits)
            except InfraError as error:
                return RunResult(Ended.INFRA_ERROR, level=self.pool.level, detail=str(error), retried=1)
            return replace(result, retried=retried)

        return self.submit(whole())

    def run(
        self, code: str, stdin: bytes | str = b"", argv: Iterable[str] = (), limits: Limits | None = None
    ) -> RunResult:
        """Run one program as a script and wait for it."""
        return self.start(code, stdin, argv, limits).result()

    async def run_async(
        self, code: str, stdin: bytes | str = b"", argv: Iterable[str] = (), limits: Limits | None = None
    ) -> RunResult:
        """Run one program as a script from a coroutine."""
        return await asyncio.wrap_future(self.start(code, stdin, argv, limits))

    def run_many(self, programs: Iterable[str], limits: Limits | None = None) -> Iterator[tuple[int, RunResult]]:
        """Yield (index, result) as each program ends; a slow one holds none of the others."""
        futures = {self.start(code, limits=limits): index for index, code in enumerate(programs)}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()

    @property
    def retries(self) -> dict[str, int]:
        """How often a run was tried again since the start: stalls of the host, crashes of a worker."""
        return {"stalls": self.pool.stalls, "crashes": self.pool.crashes}

    def facts(self) -> dict[str, Any]:
        """Level, mechanisms and limits as plain data, for a run's config."""
        return {
            "level": self.isolation.level.label,
            "mechanisms": list(self.isolation.mechanisms),
            "limits": asdict(self.options.limits),
        }

    def close(self) -> None:
        """End every worker and program. Idempotent."""
        self.finalizer()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


OPEN: weakref.WeakSet[Sandbox] = weakref.WeakSet()


def shut_down(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pool: Pool, owner: int) -> None:
    if os.getpid() != owner:
        return
    if (
        threading.current_thread() is thread
    ):  # the last reference fell on the pool's own thread, which cannot wait for itself
        ending = loop.create_task(end_everything(pool))
        ending.add_done_callback(lambda _: loop.stop())
        return
    asyncio.run_coroutine_threadsafe(end_everything(pool), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def end_everything(pool: Pool) -> None:
    await pool.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def let_go_in_child() -> None:
    """A forked child must not keep zygotes alive after the trainer has died."""
    for sandbox in list(OPEN):
        for worker in sandbox.pool.workers:
            worker.let_go()


os.register_at_fork(after_in_child=let_go_in_child)


@atexit.register
def close_all() -> None:
    for sandbox in list(OPEN):
        sandbox.close()
