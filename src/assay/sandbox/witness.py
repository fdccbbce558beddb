"""Tries, from where a program stands, what this host really enforces. The level is what was seen, not what was asked
for.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.sandbox.options import Level, Limits
from assay.sandbox.results import Ended, InfraError, Isolation, Probe

if TYPE_CHECKING:
    from assay.sandbox.pool import Sandbox

CANARY = "assay-canary-contents"

# Each function returns what it got; an exception is what we hope for. Nothing here can do harm where it succeeds.
PROGRAM = """
import ctypes, json, os, socket, sys, threading
canary, writable, port, victim = json.loads(sys.argv[1])
def network(): socket.create_connection(("127.0.0.1", port), 2).close()
def read(): return open(canary).read()
def write(): open(writable, "w").write("x")
def truncate(): os.truncate(canary, 21)
def see(): return os.kill(victim, 0)
def environ(): return open(f"/proc/{os.getppid()}/environ").read() or open(f"/proc/{victim}/environ").read()
def fork():
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
def execute(): os.execv("/bin/true", ["true"]) if False else os.posix_spawn("/bin/true", ["true"], {})
def namespace():
    if ctypes.CDLL(None).unshare(0x10000000): raise OSError("unshare refused")
def scratch():
    if os.getcwd() != "/box": raise OSError("there is none")
    open("mine", "w").write("x" * 1000)
    os.remove("mine")
    return "kept"
out = {}
for probe in (network, read, write, truncate, see, environ, fork, execute, namespace, scratch):
    try: out[probe.__name__] = [True, str(probe())[:60]]
    except BaseException as error: out[probe.__name__] = [False, f"{type(error).__name__}: {error}"[:120]]
print(json.dumps(out))
"""

# probe -> (promise, lowest level that promises it)
PROMISES = {
    "network": ("no network, the host's own loopback included", Level.NO_READ_WALL),
    "write": ("no file outside the sandbox can be written", Level.NO_READ_WALL),
    "truncate": ("no file of yours can be emptied", Level.NO_READ_WALL),
    "see": ("other processes cannot be signalled", Level.NO_READ_WALL),
    "fork": ("no child processes", Level.NO_READ_WALL),
    "execute": ("no other program can be executed", Level.NO_READ_WALL),
    "namespace": ("no new namespaces (a doorway to kernel code)", Level.NO_READ_WALL),
    "read": ("your files cannot be read", Level.RESTRICTED),
    "environ": ("the trainer's environment cannot be read", Level.RESTRICTED),
    "scratch": ("a private scratch disk of its own", Level.ISOLATED),
}


@contextmanager
def bait() -> Iterator[tuple[str, str, int, int]]:
    """A file to read, a folder to write to, a port to reach and a process to signal; all gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="assay-witness-") as folder, socket.socket() as listener:
        os.chmod(folder, 0o777)
        canary = Path(folder, "canary")
        canary.write_text(CANARY)
        canary.chmod(0o666)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        victim = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        try:
            yield str(canary), str(Path(folder, "written")), listener.getsockname()[1], victim.pid
        finally:
            victim.kill()
            victim.communicate()


def witness(sandbox: Sandbox, missing: Iterable[str]) -> Isolation:
    """Run the probes and the limits on `sandbox`. Raises InfraError where not even a harmless program runs."""
    zygote = sandbox.pool.first
    small = Limits(cpu_seconds=2, wall_seconds=20, memory_mb=128, scratch_mb=1, file_mb=1)
    with bait() as arguments:
        endless = sandbox.start("while True: pass", limits=replace(small, wall_seconds=0.3))
        hungry = sandbox.start("x = bytearray(300 << 20)", limits=small)
        tried = sandbox.run(PROGRAM, argv=[json.dumps(arguments)], limits=small)
        touched = Path(arguments[1]).exists() or Path(arguments[0]).stat().st_size != len(CANARY)
    if not tried.ok:
        raise InfraError(f"the sandbox's probes did not run: {tried.detail or tried.stderr.decode(errors='replace')}")
    probes = [judge(name, seen, touched) for name, seen in json.loads(tried.stdout).items()]
    limits = (
        ("memory cap", hungry.result().ended is Ended.MEMORY_LIMIT, hungry.result().ended),
        ("wall limit kills", endless.result().ended is Ended.WALL_LIMIT, endless.result().ended),
    )
    probes += [Probe(text, held, Level.LIMITS_ONLY, str(seen)) for text, held, seen in limits]
    level = max(x for x in Level if x <= zygote.level and (x == 0 or all(p.held for p in probes if p.needed_for <= x)))
    return Isolation(level, zygote.mechanisms, tuple(probes), tuple(missing))


def judge(name: str, seen: tuple[bool, str], touched: bool) -> Probe:
    promise, needed_for = PROMISES[name]
    succeeded, text = seen
    if name == "scratch":
        return Probe(promise, succeeded, needed_for, text)
    return Probe(promise, not succeeded and not (name in ("write", "truncate") and touched), needed_for, text)


def refusal(isolation: Isolation, required: Level) -> str:
    """One line: what this host refuses and which key accepts less."""
    broken = [probe.promise for probe in isolation.probes if not probe.held and probe.needed_for <= required]
    why = "; ".join(isolation.missing) or "no mechanism is missing"
    return (
        f"this host gives untrusted programs only level {isolation.level.label}, and {required.label} is required"
        f" ({why}; not held: {', '.join(broken) or 'nothing'}). Run where seccomp and Landlock or user namespaces are"
        f" allowed, or accept less with require={isolation.level.label} and allow_unsafe=true"
    )


def report(isolation: Isolation) -> dict[str, Any]:
    """The isolation as plain data: `level`, `mechanisms`, `probes` (promise, held, needed_for, seen), `missing`."""
    probes = [{**asdict(probe), "needed_for": probe.needed_for.label} for probe in isolation.probes]
    return {
        "level": isolation.level.label,
        "mechanisms": list(isolation.mechanisms),
        "probes": probes,
        "missing": list(isolation.missing),
    }
