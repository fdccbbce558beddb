"""Starts zygotes and goes down the ladder until one stands."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from assay.sandbox import wire
from assay.sandbox.options import Level, SandboxOptions
from assay.sandbox.results import InfraError

START_SECONDS = 60.0
END_SECONDS = 2.0
# The whole environment of a zygote: nothing of the trainer's. One hash seed, so that set order is the same on every
# worker.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Refused(OSError):
    """This host does not give the level that was tried; says why."""


@dataclass
class Zygote:
    """A running zygote as the trainer sees it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    level: Level
    mechanisms: tuple[str, ...]
    errors: IO[bytes]

    def last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-1000:].decode(errors="replace").strip()

    def end(self) -> None:
        """Close the control socket, which ends it and everything below it; kill where that does not help."""
        self.control.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def package_paths(preload: tuple[str, ...]) -> list[str]:
    """The folders that hold the packages to preload. Raises ValueError for one that is not installed."""
    paths = []
    for name in preload:
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is None:
            raise ValueError(f"sandbox preload: no package {name!r} is installed here")
        if spec.origin and spec.origin not in ("built-in", "frozen"):
            folder = Path(spec.origin).parents[1 if spec.submodule_search_locations else 0]
            if not folder.is_relative_to(sysconfig.get_path("stdlib")) or folder.name == "site-packages":
                paths.append(str(folder))
    return sorted(set(paths))


def start(options: SandboxOptions, level: Level, directory: str = "") -> Zygote:
    """Start a zygote at exactly this level. Raises Refused where the host says no, InfraError where it died."""
    ours, theirs = socket.socketpair()
    program = Path(__file__).with_name("zygote.py")
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the zygote
    read_end = theirs.fileno()
    command = [options.python or sys.executable, "-P", "-s", "-S", "-B", str(program), str(read_end)]
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        pass_fds=(read_end,),
        start_new_session=True,
        cwd="/",
    )
    theirs.close()
    config = {
        "level": int(level),
        "preload": list(options.preload),
        "paths": package_paths(options.preload),
        "landlock_abi": options.landlock_abi,
    }
    zygote = Zygote(process, ours, level, (), errors)
    try:
        hello = greet(ours, config)
    except (OSError, wire.WireError) as error:
        words = zygote.last_words()
        zygote.end()
        raise InfraError(f"the sandbox's worker did not start: {words or error}") from error
    if "failed" in hello:
        zygote.end()
        raise Refused(hello["failed"])
    zygote.mechanisms = tuple(hello["mechanisms"])
    return zygote


def greet(control: socket.socket, config: dict[str, Any]) -> dict[str, Any]:
    """Send the configuration, wait for the answer."""
    control.settimeout(START_SECONDS)
    control.sendall(wire.pack(config))
    buffer = bytearray()
    while (hello := wire.take(buffer, 1 << 20)) is None:
        data = control.recv(65536)
        if not data:
            raise OSError("it ended without a word")
        buffer += data
    control.setblocking(False)
    return hello


def climb_down(options: SandboxOptions) -> tuple[Zygote, tuple[str, ...]]:
    """The first zygote of the ladder that stands, and why the rungs above it do not."""
    missing: list[str] = []
    for level in sorted(Level, reverse=True):
        if level > Level.parse(options.at_most):
            continue
        if level > Level.LIMITS_ONLY and not sys.platform.startswith("linux"):
            missing.append(f"{level.label}: needs Linux, this is {sys.platform}")
            continue
        try:
            return start(options, level), tuple(missing)
        except Refused as error:
            missing.append(f"{level.label}: {error}")
    raise InfraError(f"no level of isolation could be started here: {'; '.join(missing)}")


def available_memory() -> int:
    """Bytes that this process may still take, by the host and by its control groups."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) << 10)
    except OSError:
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            most = Path(limit).read_text().strip()
            if most != "max":
                found.append(max(0, int(most) - int(Path(used).read_text())))
        except (OSError, ValueError):
            continue
    return min(found)
