"""One program in flight, as the trainer sees it, and the verdict on how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from assay.sandbox import wire
from assay.sandbox.options import Level, Limits
from assay.sandbox.results import Ended, RunResult, Usage

STALL_CPU_S = 0.05
CLOSED_GRACE_S = 0.25


class ProgramEnded(Exception):
    """The program ended while an answer was awaited; `result` says how."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.ended)
        self.result = result


def memory_file(data: bytes | None = None) -> int:
    """A descriptor on a file that is only in memory; with `data` it is read-only and at its start."""
    if not sys.platform.startswith("linux"):
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(data or b"")
            file.seek(0)
            return os.dup(file.fileno())
    fd = os.memfd_create("assay", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if data is not None:
        import fcntl

        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, 1033, 0xF)  # F_ADD_SEALS: no more seals, shrinking, growing or writing
    return fd


class Run:
    """A started program: send it frames, receive frames, wait for its end. Lives on the pool's event loop."""

    def __init__(self, limits: Limits, level: Level, kill: Callable[[str], None]) -> None:
        self.limits, self.level, self.kill = limits, level, kill
        self.loop = asyncio.get_running_loop()
        self.wire, self.theirs = socket.socketpair()
        self.wire.setblocking(False)
        self.stdout, self.stderr = memory_file(), memory_file()
        self.done: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        self.buffer = bytearray()
        self.ready = False
        self.excused = False  # whoever started it deals with a stall itself
        self.result: RunResult | None = None

    async def send(self, frame: dict[str, Any]) -> None:
        """Send a frame; a program that is gone is noticed at the next receive."""
        data = wire.pack(frame)
        try:
            sent = self.wire.send(data)
            if sent < len(data):
                await self.loop.sock_sendall(self.wire, data[sent:])
        except BlockingIOError:
            await self.loop.sock_sendall(self.wire, data)
        except (BrokenPipeError, ConnectionResetError):
            return

    async def receive(self) -> dict[str, Any]:
        """The program's next frame. Raises ProgramEnded, also where it broke the protocol."""
        while True:
            try:
                frame = wire.take(self.buffer, self.limits.result_kb << 10)
            except wire.WireError as error:
                raise ProgramEnded(await self.finish(str(error))) from error
            if frame is None:
                await self.fill()
            elif not self.ready and frame == {"ready": True}:
                self.ready = True
            else:
                return frame

    async def fill(self) -> None:
        """Wait for more bytes. Raises ProgramEnded at the end of the stream."""
        try:
            data = await self.loop.sock_recv(self.wire, 1 << 16)
        except ConnectionResetError:
            data = b""
        if data:
            self.buffer += data
            return
        await asyncio.wait({self.done}, timeout=CLOSED_GRACE_S)
        raise ProgramEnded(await self.finish("" if self.done.done() else "it closed the wire and went on"))

    async def ask(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Send one request, wait for its one answer, which must repeat the request's random id. Raises ProgramEnded.

        Answers that nobody asked for, and answers to another request, end the program.
        """
        if self.buffer:
            raise ProgramEnded(await self.finish("it answered before it was asked"))
        ident = secrets.token_hex(8)
        await self.send({**frame, "id": ident})
        answer = await self.receive()
        if answer.pop("id", None) != ident:
            raise ProgramEnded(await self.finish("an answer to no request"))
        return answer

    async def finish(self, broken: str = "") -> RunResult:
        """Let the program end (or kill it where it broke the protocol) and say how it went."""
        if self.result is None:
            if broken:
                self.kill(Ended.PROTOCOL_ERROR)
            else:
                with contextlib.suppress(OSError):  # gone already, which is what we want
                    self.wire.shutdown(socket.SHUT_WR)
            done = await self.done
            self.drain()
            self.result = self.judge(done, broken or ("answers nobody asked for" if self.buffer else ""))
            self.close()
        return self.result

    def drain(self) -> None:
        """Take what the program sent and nobody read; it is dead, so this cannot block for long."""
        try:
            while len(self.buffer) < 1 << 20 and (data := self.wire.recv(1 << 16)):
                self.buffer += data
        except (BlockingIOError, ConnectionResetError):
            pass  # empty
        if not self.ready:
            try:
                self.ready = wire.take(self.buffer, 1 << 10) == {"ready": True}
            except wire.WireError:
                self.ready = False

    def judge(self, done: dict[str, Any], broken: str) -> RunResult:
        code = done.get("status", 0)
        usage = Usage(*(round(done.get(key, 0.0), 6) for key in ("cpu_s", "wall_s", "max_rss_mb", "stalled_s")))
        stdout, long_out = self.read(self.stdout)
        stderr, long_err = self.read(self.stderr)
        detail = broken
        if "failed" in done or not self.ready:
            ended = Ended.INFRA_ERROR
            detail = done.get("failed") or stderr.decode(errors="replace").strip() or "the child never got ready"
        elif done["killed_for"] and code == -signal.SIGKILL:
            ended = Ended(done["killed_for"])
        elif code in (-signal.SIGKILL, -signal.SIGXCPU) and usage.cpu_s >= self.limits.cpu_seconds - 0.3:
            ended = Ended.CPU_LIMIT
        elif code == -signal.SIGSYS:
            ended = Ended.BLOCKED_SYSCALL
        elif long_out or long_err:
            ended = Ended.OUTPUT_LIMIT
        elif code and stderr.rstrip().endswith(b"MemoryError"):
            ended = Ended.MEMORY_LIMIT
        elif broken:
            ended = Ended.PROTOCOL_ERROR
        else:
            ended = Ended.EXITED if code >= 0 else Ended.SIGNALLED
        exit_code, number = (code, None) if code >= 0 else (None, -code)
        return RunResult(ended, exit_code, number, stdout, stderr, usage, self.level, detail)

    def read(self, fd: int) -> tuple[bytes, bool]:
        """What was printed, up to the limit, and whether it was more."""
        most = self.limits.output_kb << 10
        return os.pread(fd, most, 0), os.fstat(fd).st_size > most

    def close(self) -> None:
        self.wire.close()
        os.close(self.stdout)
        os.close(self.stderr)

    @property
    def looks_stalled(self) -> bool:
        """Whether the wall limit struck a program that hardly ran: the host's fault as often as the program's."""
        result = self.result
        return result is not None and result.ended is Ended.WALL_LIMIT and result.usage.cpu_s < STALL_CPU_S
