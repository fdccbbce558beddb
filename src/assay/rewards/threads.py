"""Daemon threads with a wall-clock limit per job, and one event loop for coroutines.

`concurrent.futures` joins its threads when the interpreter exits, so that one reward function that never returns would
keep the process alive. Here a job over its limit is given up: its future fails, its thread is replaced, and a late
result is dropped. The thread itself cannot be killed; functions that may hang belong into worker processes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any


class TimeLimit(Exception):
    """A job took longer than it was given."""


@dataclass
class Job:
    call: Callable[[], Any]
    limit_s: float
    future: Future[Any] = field(default_factory=Future)
    deadline: float = float("inf")


class ThreadPool:
    """Runs jobs on `size` daemon threads; a job's limit counts from its start, not from its submission."""

    def __init__(self, size: int):
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.running: dict[int, Job] = {}
        self.changed = threading.Condition()
        self.closed = False
        self.size = size
        for _ in range(size):
            self.start_thread()
        threading.Thread(target=self.watch, name="assay-reward-limits", daemon=True).start()

    def submit(self, call: Callable[[], Any], limit_s: float) -> Future[Any]:
        if self.closed:
            raise RuntimeError("the scorer is closed")
        job = Job(call, limit_s)
        self.jobs.put(job)
        return job.future

    def start_thread(self) -> None:
        threading.Thread(target=self.work, name="assay-reward", daemon=True).start()

    def work(self) -> None:
        while (job := self.jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            key = threading.get_ident()
            with self.changed:
                job.deadline = time.monotonic() + job.limit_s
                self.running[key] = job
                self.changed.notify()
            try:
                result, error = job.call(), None
            except BaseException as raised:  # noqa: BLE001 - handed to whoever waits for the result
                result, error = None, raised
            with self.changed:
                given_up = self.running.get(key) is not job
                if not given_up:
                    del self.running[key]
            if given_up:
                return  # a replacement runs already
            settle(job.future, result, error)
            del job, result, error

    def watch(self) -> None:
        with self.changed:
            while not self.closed:
                now = time.monotonic()
                for key, job in list(self.running.items()):
                    if job.deadline <= now:
                        del self.running[key]
                        settle(job.future, None, TimeLimit(f"took longer than {job.limit_s:g} s"))
                        self.start_thread()
                soonest = min((job.deadline for job in self.running.values()), default=None)
                self.changed.wait(None if soonest is None else max(0.0, soonest - now))

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify()
        for _ in range(self.size):
            self.jobs.put(None)


def settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return  # given up or cancelled meanwhile: nobody waits for it


class LoopThread:
    """An event loop on a daemon thread; coroutines submitted to it are awaited concurrently."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="assay-reward-loop", daemon=True).start()

    def submit(self, make: Callable[[], Coroutine[Any, Any, Any]], limit_s: float) -> Future[Any]:
        async def limited() -> Any:
            try:
                async with asyncio.timeout(limit_s) as scope:
                    return await make()
            except TimeoutError as error:
                if scope.expired():
                    raise TimeLimit(f"took longer than {limit_s:g} s") from error
                raise

        return asyncio.run_coroutine_threadsafe(limited(), self.loop)

    def close(self) -> None:
        async def shut() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(shut(), self.loop).result(timeout=5)
        self.loop.call_soon_threadsafe(self.loop.stop)
