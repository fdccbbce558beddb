"""One engine for several callers at once: a thread of its own drains it and gives each request's future its answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import torch

from assay.errors import RunError
from assay.records import Completion
from assay.rollouts.protocol import Engine, Request

logger = logging.getLogger(__name__)

Answer = Future[list[Completion]]


class SharedEngine:
    """Requests from any thread; `ask` returns a future. The engine's `submit`, `push`, `pause`, `resume` and `cancel`
    must be callable while another thread is in its `completed`.

    It is an `Engine` itself, for one more caller (held-out evaluation): `completed` yields only what `submit` was
    given, not what others asked for. An error of the engine fails every request that is open, and every later one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.changed = threading.Condition()
        self.open: dict[int, Answer] = {}
        self.own: dict[int, Answer] = {}
        self.failure: BaseException | None = None
        self.closed = False
        self.thread: threading.Thread | None = None

    def ask(self, request: Request) -> tuple[int, Answer]:
        """Submit a request; its handle, and the future of its completions. Callbacks run in the draining thread."""
        with self.changed:
            if self.failure is not None:
                raise self.failure
            if self.closed:
                raise RunError("the engine is closed; no request can be submitted")
            handle = self.engine.submit(request)
            answer: Answer = Future()
            self.open[handle] = answer
            if self.thread is None:
                self.thread = threading.Thread(target=self.drain, name="assay-rollouts", daemon=True)
                self.thread.start()
            self.changed.notify_all()
        return handle, answer

    def drain(self) -> None:
        """The thread: hand out what the engine finishes, until closed."""
        try:
            while expected := self.next_requests():
                for handle, completions in self.engine.completed():
                    with self.changed:
                        answer = self.open.pop(handle, None)
                    if answer is not None:
                        answer.set_result(completions)
                with self.changed:
                    lost = expected & self.open.keys()
                if lost and not self.closed:
                    raise RunError(f"the engine went idle without having finished {len(lost)} of its requests")
        except BaseException as error:  # noqa: BLE001 - every caller gets it from its future
            self.fail(error)

    def next_requests(self) -> set[int]:
        """The handles that are open, once there are any; empty when closed."""
        with self.changed:
            while not self.open and not self.closed:
                self.changed.wait()
            return set() if self.closed else set(self.open)

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = error
            answers = list(self.open.values())
            self.open.clear()
        for answer in answers:
            answer.set_exception(error)

    # The engine protocol

    def submit(self, request: Request) -> int:
        handle, answer = self.ask(request)
        self.own[handle] = answer
        return handle

    def completed(self) -> Iterator[tuple[int, list[Completion]]]:
        while self.own:
            wait(self.own.values(), return_when=FIRST_COMPLETED)
            for handle in [handle for handle, answer in self.own.items() if answer.done()]:
                yield handle, self.own.pop(handle).result()

    def cancel(self, handles: Iterable[int]) -> None:
        """Forget requests of any caller; their futures are cancelled."""
        handles = list(handles)
        # Forgotten before the engine forgets them: else the thread would take them for lost.
        with self.changed:
            answers = [self.open.pop(handle) for handle in handles if handle in self.open]
        self.engine.cancel(handles)
        for handle in handles:
            self.own.pop(handle, None)
        for answer in answers:
            answer.cancel()

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.engine.push(weights, version)

    def pause(self) -> None:
        self.engine.pause()

    def resume(self) -> None:
        self.engine.resume()

    def sleep(self) -> None:
        self.engine.sleep()

    def wake(self) -> None:
        self.engine.wake()

    def close(self) -> None:
        """Cancel what is open, close the engine, and wait for the thread."""
        with self.changed:
            self.closed = True
            handles = list(self.open)
            self.changed.notify_all()
        if self.failure is None:
            self.cancel(handles)
        self.engine.close()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout=30)
            if self.thread.is_alive():
                logger.warning("the engine did not end its requests within 30 s; its thread dies with the process")

    def __getattr__(self, name: str) -> Any:
        """What an engine can do beyond the protocol."""
        return getattr(self.__dict__["engine"], name)
