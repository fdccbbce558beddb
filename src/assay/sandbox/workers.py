"""One zygote on the pool's event loop: starts programs on it and hears how they ended."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from dataclasses import asdict
from typing import Any

from assay.sandbox import spawn, wire
from assay.sandbox.options import Limits
from assay.sandbox.runs import Run, memory_file

IDENTS = itertools.count()


class Worker:
    """A zygote and its programs in flight. When it dies, each of them ends as `infra_error`."""

    def __init__(self, zygote: spawn.Zygote) -> None:
        self.zygote = zygote
        self.control = zygote.control
        self.runs: dict[int, Run] = {}
        self.buffer = bytearray()
        self.dead = False
        self.nothing = os.open(os.devnull, os.O_RDONLY)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.control.fileno(), self.hear)

    def start(self, limits: Limits, stdin: bytes) -> Run:
        """Start a program; it waits for its job on the wire."""
        ident = next(IDENTS)
        run = Run(limits, self.zygote.level, lambda reason: self.kill(ident, reason))
        source = memory_file(stdin) if stdin else self.nothing
        self.runs[ident] = run
        try:
            frame = wire.pack({"op": "run", "id": ident, "limits": asdict(limits)})
            socket.send_fds(self.control, [frame], [run.theirs.fileno(), source, run.stdout, run.stderr])
        except OSError as error:
            self.die(f"its worker could not be reached: {error}")
        finally:
            run.theirs.close()
            if stdin:
                os.close(source)
        return run

    def kill(self, ident: int, reason: str) -> None:
        if ident in self.runs and not self.dead:
            try:
                self.control.send(wire.pack({"op": "kill", "id": ident, "reason": reason}))
            except OSError as error:
                self.die(f"its worker could not be reached: {error}")

    def hear(self) -> None:
        """Take the zygote's reports; the end of its stream is its death."""
        try:
            data = self.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.die("its worker died")
            return
        self.buffer += data
        while (frame := wire.take(self.buffer, 1 << 20)) is not None:
            self.settle(self.runs.pop(frame["id"]), frame)

    def settle(self, run: Run, frame: dict[str, Any]) -> None:
        if not run.done.done():
            run.done.set_result(frame)

    def die(self, why: str) -> None:
        if self.dead:
            return
        self.dead = True
        self.loop.remove_reader(self.control.fileno())
        words = self.zygote.last_words()
        self.zygote.end()
        os.close(self.nothing)
        for run in self.runs.values():
            self.settle(run, {"failed": f"{why}{': ' + words if words else ''}"})
        self.runs.clear()

    def end(self) -> None:
        """Kill the zygote and all its programs."""
        self.die("the sandbox was closed")

    def let_go(self) -> None:
        """In a forked child: close our copy of the control socket, touch nothing else."""
        if not self.dead:
            os.close(self.control.detach())
