"""Killable worker processes: a job over its limits costs its own worker and nothing else.

A worker is a fresh interpreter (no fork of a process that holds CUDA or locks). The kernel enforces the limits, so that
they hold inside one long C call, off the main thread, and after this process was killed: ITIMER_PROF ends the worker
after its CPU seconds, RLIMIT_AS bounds its memory, and a lifeline pipe whose other end closes delivers SIGIO to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

HEADER = struct.Struct("!I")
START_LIMIT_S = 120.0
SELF_INFLICTED = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}


class LimitReached(Exception):
    """The job itself used up its CPU time or memory, or crashed the worker in the same way twice."""


class WorkerLost(Exception):
    """The worker died or starved through no fault of the job; it was tried twice."""


class HandlerBroken(RuntimeError):
    """The handler cannot be imported: the installation is at fault, not a job."""


class JobFailed(Exception):
    """The handler raised; the text is the exception's."""


@dataclass(frozen=True)
class Limits:
    """Per job: CPU seconds, wall-clock seconds (a starved or sleeping job), and address space in MB (0 = no limit)."""

    cpu_s: float = 3.0
    wall_s: float = 60.0
    memory_mb: int = 2048


class Worker:
    """One child process that answers one request at a time."""

    def __init__(self, handler: str, limits: Limits):
        lifeline_read, self.lifeline = os.pipe()
        command = [
            sys.executable,
            "-m",
            "assay.rewards.worker_main",
            handler,
            str(lifeline_read),
            str(limits.memory_mb),
        ]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(lifeline_read,),
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONHASHSEED": "0",
                },
            )
        except BaseException:
            os.close(self.lifeline)
            raise
        finally:
            os.close(lifeline_read)
        self.ready = False

    def request(self, message: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """Send a job and wait. Raises TimeoutError over the wall-clock limit and EOFError where the worker died."""
        if not self.ready:
            self.greet()
        payload = json.dumps({"cpu_s": limits.cpu_s, "message": message}).encode()
        with contextlib.suppress(BrokenPipeError):  # a dead worker shows when its answer is read
            stream = cast(BinaryIO, self.process.stdin)
            stream.write(HEADER.pack(len(payload)) + payload)
            stream.flush()
        return self.read(time.monotonic() + limits.wall_s)

    def greet(self) -> None:
        """Wait until the handler is imported. Raises HandlerBroken where it cannot be: no job would ever run."""
        greeting = self.read(time.monotonic() + START_LIMIT_S)
        if "broken" in greeting:
            raise HandlerBroken(f"the worker process cannot start: {greeting['broken']}")
        self.ready = True

    def read(self, deadline: float) -> dict[str, Any]:
        (size,) = HEADER.unpack(self.read_exactly(HEADER.size, deadline))
        return cast(dict[str, Any], json.loads(self.read_exactly(size, deadline)))

    def read_exactly(self, size: int, deadline: float) -> bytes:
        descriptor = cast(BinaryIO, self.process.stdout).fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        data = b""
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if not poll.poll(left * 1000):
                continue
            chunk = os.read(descriptor, size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def death_signal(self) -> int:
        """The signal that ended the worker, 0 where it exited by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return max(0, -self.process.wait(timeout=5))
        return 0

    def kill(self) -> None:
        """End the worker and whatever it started, and reap it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                cast(BinaryIO, stream).close()
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def __del__(self) -> None:
        if getattr(self, "lifeline", -1) >= 0:
            self.kill()


class WorkerPool:
    """At most `size` workers for one handler (`module:function`, JSON object in, JSON object out); thread-safe.

    Workers start when first needed. A killed worker's replacement starts at once, so that the next job finds it warm.
    """

    def __init__(self, handler: str, size: int = 0, limits: Limits | None = None):
        self.handler, self.size, self.limits = handler, size or os.cpu_count() or 1, limits or Limits()
        self.reset()

    def reset(self) -> None:
        self.owner = os.getpid()
        self.slots = threading.Semaphore(self.size)
        self.idle: list[Worker] = []
        self.lock = threading.Lock()
        self.closed = False

    def call(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Run one job. Raises LimitReached, WorkerLost or JobFailed."""
        if os.getpid() != self.owner:
            self.reset()  # after a fork the pipes belong to the parent
        with self.slots:
            for attempt in (1, 2):
                worker = self.take()
                try:
                    reply = worker.request(message, self.limits)
                except EOFError:
                    died_of = worker.death_signal()
                    self.replace(worker)
                    if died_of == signal.SIGPROF:
                        raise LimitReached(f"the limit of {self.limits.cpu_s:g} CPU seconds") from None
                    if attempt == 2:
                        if died_of in SELF_INFLICTED:
                            raise LimitReached(f"it crashed the worker ({signal.Signals(died_of).name})") from None
                        raise WorkerLost(f"the worker died twice (signal {died_of})") from None
                except TimeoutError:
                    self.replace(worker)
                    if attempt == 2:
                        raise WorkerLost(f"no answer in {self.limits.wall_s:g} s of wall-clock time") from None
                except BaseException:
                    worker.kill()  # interrupted half-way: the pipe is out of step
                    raise
                else:
                    return self.accept(worker, reply)
        raise AssertionError("unreachable")

    def accept(self, worker: Worker, reply: dict[str, Any]) -> dict[str, Any]:
        if reply.get("memory"):
            self.replace(worker)  # an interpreter that ran out of memory once is not to be trusted
            raise LimitReached(f"the limit of {self.limits.memory_mb} MB of memory")
        self.give(worker)
        if "error" in reply:
            raise JobFailed(reply["error"])
        return cast(dict[str, Any], reply["result"])

    def take(self) -> Worker:
        with self.lock:
            if self.closed:
                raise RuntimeError("the worker pool is closed")
            if self.idle:
                return self.idle.pop()
        return Worker(self.handler, self.limits)

    def give(self, worker: Worker) -> None:
        with self.lock:
            if not self.closed:
                self.idle.append(worker)
                return
        worker.kill()

    def replace(self, worker: Worker) -> None:
        worker.kill()
        with self.lock:
            if self.closed:
                return
        self.give(Worker(self.handler, self.limits))

    def warm_up(self) -> None:
        """Start the first worker now rather than at the first job."""
        self.give(self.take())

    def close(self) -> None:
        with self.lock:
            self.closed = True
            idle, self.idle = self.idle, []
        if os.getpid() == self.owner:
            for worker in idle:
                worker.kill()
