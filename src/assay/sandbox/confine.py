"""How each level confines a program: what the zygote prepares once, and what each child does to itself before it runs.

A confinement is prepared in the zygote (`prepare`), which fails with OSError or ValueError where the host refuses;
then for every program `before_fork` runs in the zygote and `enter` in the child, which after it can no longer reach
anything.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from assay.sandbox import landlock, linux, root, seccomp
from assay.sandbox.options import Level

FIRST_UID = 2_000_000_000  # far from users, system accounts and the ranges of containers
NOBODY = 65534
INSIDE_UID = 1000
PENDING_SIGNALS = 256  # counted for the whole user: without it timers could use up the trainer's own


class LimitsOnly:
    """Resource limits and nothing else; works on any POSIX system and is no security boundary."""

    level = Level.LIMITS_ONLY
    counts_threads = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.mechanisms: list[str] = ["resource limits"]
        self.base_bytes = 0
        self.runs = 0

    def prepare(self) -> None:
        self.base_bytes = address_space()

    def before_fork(self) -> None:
        self.runs += 1

    def enter(self, limits: Mapping[str, Any]) -> None:
        os.chdir("/")
        set_limits(limits, self.base_bytes, None)


class NoReadWall(LimitsOnly):
    """A seccomp filter: no network, processes, signals to others or writes, but files stay readable."""

    level = Level.NO_READ_WALL

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.filters: dict[bool, seccomp.Filter] = {}
        self.readable: list[str] = []
        self.uid: Callable[[], int] | None = None

    def prepare(self) -> None:
        super().prepare()
        self.readable = root.readable_paths(self.config["paths"])
        self.filters[False] = seccomp.build(self.level, processes=False)
        self.mechanisms.insert(0, f"seccomp filter of {len(self.filters[False].code) // 8} instructions")
        self.choose_uid()

    def choose_uid(self) -> None:
        """As root, give every program a user id of its own, unless that user could not read the interpreter."""
        if os.geteuid() != 0:
            return
        if not all(map(world_readable, self.readable)):
            self.mechanisms.append("root without capabilities (the interpreter is readable by root only)")
            return
        first = FIRST_UID + os.getpid() % 100_000 * 1000
        distinct = can_become(first)
        if not distinct and not can_become(NOBODY):
            self.mechanisms.append("root without capabilities")
            return
        self.uid = (lambda: first + self.runs % 1000) if distinct else (lambda: NOBODY)
        self.counts_threads = distinct
        self.mechanisms.append("a user id of its own" if distinct else "user nobody")

    def enter(self, limits: Mapping[str, Any]) -> None:
        os.setsid()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if self.uid is not None:
            become(self.uid())
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
        os.chdir("/")
        threads = limits["threads"] if self.counts_threads else None
        set_limits(limits, self.base_bytes, threads)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        self.wall_off()
        linux.drop_capabilities()
        linux.install_filter(self.filters[False].for_pid(os.getpid()))

    def wall_off(self) -> None:
        pass


class Restricted(NoReadWall):
    """The seccomp filter and Landlock: besides, only the interpreter's files are readable. Needs no privilege."""

    level = Level.RESTRICTED

    def prepare(self) -> None:
        super().prepare()
        version = min(landlock.abi(), int(self.config["landlock_abi"]))
        if version < 1:
            raise OSError(38, "Landlock is not available (kernel older than 5.13, switched off, or refused)")
        self.ruleset = landlock.ruleset(version, [*self.readable, *filter(os.path.exists, root.DEVICES)])
        self.mechanisms.insert(1, f"Landlock ABI {version}")

    def wall_off(self) -> None:
        landlock.restrict(self.ruleset)


class Isolated(LimitsOnly):
    """Namespaces of its own (user, pid, mount, ipc; no network), a private root, a scratch disk, the seccomp filter."""

    level = Level.ISOLATED
    counts_threads = True

    def prepare(self) -> None:
        super().prepare()
        self.filters = {flag: seccomp.build(self.level, processes=flag) for flag in (False, True)}
        self.counts_threads = linux.kernel_version() >= (5, 14)
        self.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        readable = root.readable_paths(self.config["paths"])
        own = linux.NEWUSER | linux.NEWPID | linux.NEWNS | linux.NEWNET | linux.NEWIPC
        built = self.drop_root(readable)
        uid, gid = os.geteuid(), os.getegid()
        linux.unshare(own)
        self.write_maps(0, uid, gid)
        if not built:
            root.build_root(readable)
        become_first_process()
        self.pid_namespace = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc)
        self.mechanisms[:0] = [
            "user, pid, mount, ipc namespaces; no network",
            f"seccomp filter of {len(self.filters[False].code) // 8} instructions",
        ]

    def drop_root(self, readable: list[str]) -> bool:
        """As root, become an unprivileged user; says whether the private root could be built before."""
        if os.geteuid() != 0:
            return False
        try:
            linux.unshare(linux.NEWNS)
            built = True
            root.build_root(readable)
        except PermissionError:
            built = False
            if not all(map(world_readable, readable)):
                raise
        become(FIRST_UID + os.getpid() % 100_000 * 1000)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # without it our own /proc entry would belong to root
        return built

    def write_maps(self, inside: int, uid: int, gid: int) -> None:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
            fd = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.proc)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)

    def before_fork(self) -> None:
        """The next child is the first process of a pid namespace of its own: when it dies, all below it die."""
        super().before_fork()
        linux.setns(self.pid_namespace, linux.NEWPID)
        linux.unshare(linux.NEWPID)

    def enter(self, limits: Mapping[str, Any]) -> None:
        os.setsid()
        linux.unshare(linux.NEWUSER | linux.NEWNS | linux.NEWIPC)
        self.write_maps(INSIDE_UID, 0, 0)
        if limits["scratch_mb"]:
            size = f"size={limits['scratch_mb']}m,nr_inodes={limits['scratch_inodes'] + 1},mode=700"
            linux.mount("scratch", root.SCRATCH, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
        os.chdir(root.SCRATCH)
        tasks = limits["threads"] + limits["processes"] if self.counts_threads else None
        set_limits(limits, self.base_bytes, tasks)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.drop_capabilities()
        linux.install_filter(self.filters[limits["processes"] > 0].for_pid(os.getpid()))


CONFINEMENTS: dict[Level, type[LimitsOnly]] = {
    kind.level: kind for kind in (LimitsOnly, NoReadWall, Restricted, Isolated)
}


def become_first_process() -> None:
    """Fork: the child is the first process of the new pid namespace and goes on, the parent only waits for it."""
    child = os.fork()
    if child == 0:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(0, 3)
    os.closerange(3, 1024)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def become(uid: int) -> None:
    """Become a user without groups; gives up root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def can_become(uid: int) -> bool:
    """Whether this process could become that user, tried in a child."""
    child = os.fork()
    if child == 0:
        try:
            become(uid)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def world_readable(path: str) -> bool:
    """Whether any user may read `path` and pass every folder on the way."""
    needed = 0o5 if os.path.isdir(path) else 0o4
    if os.stat(path).st_mode & needed != needed:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & 0o1:
            return False
    return True


def address_space() -> int:
    """Bytes of address space that the bare interpreter takes."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def set_limits(limits: Mapping[str, Any], base_bytes: int, tasks: int | None) -> None:
    """Set the hard limits; the program can lower them but never raise them."""
    mega = 1 << 20
    wanted = {
        "CPU": limits["cpu_seconds"],
        "AS": base_bytes + limits["memory_mb"] * mega,
        "STACK": limits["stack_mb"] * mega,
        "FSIZE": limits["file_mb"] * mega,
        "NOFILE": limits["open_files"],
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
        "SIGPENDING": PENDING_SIGNALS,
    }
    if tasks is not None:
        wanted["NPROC"] = tasks
    for name, value in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None or (name == "AS" and sys.platform == "darwin"):  # macOS refuses it
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
