"""The zygote: a small warm interpreter that forks once for every program and watches over the forks.

Started with a clean environment by spawn.py, never forked from the trainer. It knows which programs run and their
limits, but never their code, inputs or results: those travel over descriptors that it hands to the child and closes.
It is single-threaded, reads only what the trainer sends, and ends with the trainer: when the control socket closes,
everything below it dies.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import types
from typing import Any, NoReturn

WIRE = 3
TICK = 0.1
MAX_STALL = 30.0
STDLIB = """
abc argparse array ast asyncio base64 bisect calendar cmath collections collections.abc contextlib copy csv
dataclasses datetime decimal enum fractions functools hashlib heapq inspect io itertools json keyword linecache locale
math numbers operator os pprint queue random re sched secrets shutil signal site statistics string struct tempfile
textwrap threading time tokenize traceback types typing unicodedata uuid warnings weakref
"""


def stand_in_for_packages() -> None:
    """Make `assay` and `assay.sandbox` bare folders, so that our modules load without the library around them."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("assay", os.path.dirname(here)), ("assay.sandbox", here)):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package


class Run:
    """One program in flight."""

    def __init__(self, ident: int, pid: int, limits: dict[str, Any]) -> None:
        self.ident, self.pid, self.limits = ident, pid, limits
        self.started = time.monotonic()
        self.stalled = 0.0
        self.killed_for = ""

    @property
    def deadline(self) -> float:
        return self.started + self.limits["wall_seconds"] + self.stalled

    def kill(self, reason: str) -> None:
        self.killed_for = self.killed_for or reason
        os.kill(self.pid, signal.SIGKILL)


class Zygote:
    """Forks programs on request, enforces wall time and thread counts, reports how each ended."""

    def __init__(self, control: socket.socket, confinement: Any) -> None:
        from assay.sandbox import harness, wire

        self.control, self.confinement = control, confinement
        self.harness, self.wire = harness, wire
        self.buffer, self.fds = bytearray(), list[int]()
        self.runs: dict[int, Run] = {}
        self.wake_read, self.wake_write = socket.socketpair()
        self.wake_read.setblocking(False)
        self.wake_write.setblocking(False)
        signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            self.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        except (OSError, AttributeError):
            self.proc = -1

    def serve(self) -> None:
        """Until the trainer goes away."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wake_read, select.POLLIN)
        while True:
            timeout = self.timeout()
            asleep = time.monotonic()
            ready = poller.poll(None if timeout is None else timeout * 1000)
            if timeout is not None:
                self.give_back(time.monotonic() - asleep - timeout)
            for fd, _ in ready:
                if fd == self.control.fileno():
                    if not self.receive():
                        return
                else:
                    with contextlib.suppress(BlockingIOError):
                        self.wake_read.recv(4096)
            self.reap()
            self.enforce()

    def timeout(self) -> float | None:
        if not self.runs:
            return None
        soonest = min(run.deadline for run in self.runs.values()) - time.monotonic()
        return min(TICK, max(soonest, 0.001))

    def give_back(self, overslept: float) -> None:
        """A late wake-up means that the host stood still: no program pays for that time."""
        if overslept > 0.02:
            for run in self.runs.values():
                run.stalled = min(run.stalled + overslept, MAX_STALL)

    def receive(self) -> bool:
        """Take what the trainer sent; False when it is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 65536, 8)
        except ConnectionError:
            return False
        if not data:
            return False
        self.buffer += data
        self.fds += fds
        while (frame := self.wire.take(self.buffer, 1 << 20)) is not None:
            if frame["op"] == "run":
                own, self.fds = self.fds[:4], self.fds[4:]
                self.start(frame["id"], frame["limits"], own)
            elif frame["op"] == "kill" and frame["id"] in self.runs:
                self.runs[frame["id"]].kill(frame["reason"])
        return True

    def start(self, ident: int, limits: dict[str, Any], fds: list[int]) -> None:
        try:
            self.confinement.before_fork()
            pid = os.fork()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            self.report({"op": "done", "id": ident, "failed": f"fork: {error}"})
            return
        if pid == 0:
            self.become_program(limits, fds)
        for fd in fds:
            os.close(fd)
        self.runs[ident] = Run(ident, pid, limits)

    def become_program(self, limits: dict[str, Any], fds: list[int]) -> NoReturn:
        """In the child: confine, say that the confinement stands, run the program, never return."""
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.confinement.enter(limits)
            os.dup2(fds[1], 0)
            os.dup2(fds[2], 1)
            os.dup2(fds[3], 2)
            os.dup2(fds[0], WIRE)
            os.closerange(WIRE + 1, 4096)
            status = self.harness.main(WIRE)
        except BaseException as error:  # noqa: BLE001 - the child must not return into the zygote's loop
            with contextlib.suppress(OSError):
                os.write(2, f"sandbox set-up: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)

    def reap(self) -> None:
        for ident, run in list(self.runs.items()):
            pid, status, usage = os.wait4(run.pid, os.WNOHANG)
            if pid:
                del self.runs[ident]
                scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
                self.report(
                    {
                        "op": "done",
                        "id": ident,
                        "status": os.waitstatus_to_exitcode(status),
                        "killed_for": run.killed_for,
                        "cpu_s": usage.ru_utime + usage.ru_stime,
                        "wall_s": time.monotonic() - run.started,
                        "max_rss_mb": usage.ru_maxrss / scale,
                        "stalled_s": run.stalled,
                    }
                )

    def enforce(self) -> None:
        now = time.monotonic()
        for run in self.runs.values():
            if run.killed_for:
                continue
            if now >= run.deadline:
                run.kill("wall_limit")
            elif not self.confinement.counts_threads and self.threads_of(run.pid) > run.limits["threads"]:
                run.kill("thread_limit")

    def threads_of(self, pid: int) -> int:
        """Where the kernel cannot count threads for one program, we look every tick."""
        try:
            fd = os.open(f"{pid}/stat", os.O_RDONLY, dir_fd=self.proc)
        except OSError:
            return 0
        try:
            return int(os.read(fd, 4096).rpartition(b")")[2].split()[17])
        finally:
            os.close(fd)

    def report(self, frame: dict[str, Any]) -> None:
        self.control.sendall(self.wire.pack(frame))


def main() -> None:
    stand_in_for_packages()
    from assay.sandbox import confine, harness, wire  # noqa: F401 - harness: before the file system is gone
    from assay.sandbox.options import Level

    os.umask(0o022)
    control = socket.socket(fileno=int(sys.argv[1]))
    buffer = bytearray()
    while (config := wire.take(buffer, 1 << 20)) is None:
        data = control.recv(65536)
        if not data:
            return
        buffer += data
    sys.path += config["paths"]
    sys.executable = os.path.realpath(sys.executable)  # what a program finds; a virtual environment's link is not there
    for name in (*STDLIB.split(), *config["preload"]):
        importlib.import_module(name)
    level = Level(config["level"])
    confinement = confine.CONFINEMENTS[level](config)
    try:
        confinement.prepare()
        zygote = Zygote(control, confinement)
    except (OSError, ValueError) as error:
        control.sendall(wire.pack({"op": "hello", "failed": getattr(error, "strerror", None) or str(error)}))
        return
    sys.modules["site"].setquit()  # `exit()` ends contest programs, and -S leaves it out
    gc.collect()
    gc.freeze()
    control.sendall(wire.pack({"op": "hello", "mechanisms": confinement.mechanisms, "python": sys.version.split()[0]}))
    zygote.serve()


if __name__ == "__main__":
    main()
    os._exit(0)
