"""Builds the seccomp filter (classic BPF): which system calls a program may make, with which arguments.

An allow list, not a block list, that answers with errno rather than death, so that honest code meets an ordinary
PermissionError and the C library its fallbacks. Death (SIGSYS) is kept for foreign entry points: i386 and x32 calls
would otherwise slip past a filter that goes by number.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from assay.sandbox.options import Level
from assay.sandbox.syscalls import ALLOWED, FILE_CHANGES, LAST_KNOWN, NUMBERS, PROCESSES, SIGNALS

# struct seccomp_data offsets and BPF opcodes (linux/seccomp.h, linux/bpf_common.h).
NR, ARCH, ARGS = 0, 4, 16
LOAD, EQUAL, GREATER, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
AUDIT_ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
X32_BIT = 0x40000000

CLONE_THREAD = 0x00010000
CLONE_NAMESPACES = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
OPEN_CHANGES = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000  # WRONLY, RDWR, CREAT, TRUNC, __O_TMPFILE
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030, 1032)  # dup, flags, pipe size; never owner, signal or lease
FCNTL_LOCKS = (5, 6, 7, 36, 37, 38)  # for databases on a scratch disk
FUTEX_OPERATIONS = (0, 1, 3, 4, 5, 9, 10)  # wait, wake, requeue; not priority inheritance, which Python never uses
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX
PRCTL_OPTIONS = (2, 3, 15, 16, 21, 23, 39, 0x53564D41)  # names, getters, naming of anonymous memory
DOCKER_REFUSES = """
unshare setns mount umount2 pivot_root mount_setattr open_tree move_mount fsopen bpf perf_event_open
"""
ALL = 0xFFFFFFFF
SELF = 0xFFFFFFF0  # stands for the program's own pid until `for_pid` fills it in


@dataclass(frozen=True)
class Filter:
    """A program for the kernel: instructions of 8 bytes, some of which hold the caller's pid."""

    code: bytes
    pid_slots: tuple[int, ...] = ()

    def for_pid(self, pid: int) -> bytes:
        """The instructions with the caller's pid filled in."""
        patched = bytearray(self.code)
        for slot in self.pid_slots:
            struct.pack_into("=I", patched, slot * 8 + 4, pid)
        return bytes(patched)


def op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def allow(numbers: Iterable[int]) -> list[bytes]:
    return [part for number in numbers for part in (op(EQUAL, number, 0, 1), op(RETURN, ALLOW))]


def refuse(number: int, error: int) -> list[bytes]:
    return [op(EQUAL, number, 0, 1), op(RETURN, ERRNO | error)]


def allow_values(number: int, arg: int, values: Iterable[int], error: int = errno.EPERM, mask: int = 0) -> list[bytes]:
    """Allow the call only if argument `arg` (its low 32 bits, after `mask`) is one of `values`."""
    body = [op(LOAD, ARGS + 8 * arg)]
    if mask:
        body.append(op(AND, mask))
    for value in values:
        body += [op(EQUAL, value, 0, 1), op(RETURN, ALLOW)]
    body.append(op(RETURN, ERRNO | error))
    return [op(EQUAL, number, 0, len(body)), *body]


def allow_self(number: int) -> list[bytes]:
    """Allow the call only if its first argument is the caller's own pid."""
    return allow_values(number, 0, (SELF,))


def allow_if(number: int, *conditions: tuple[int, int, int]) -> list[bytes]:
    """Allow the call only if all conditions (byte offset among the arguments, mask, value) hold."""
    checks = [[op(LOAD, ARGS + offset), op(AND, mask), op(EQUAL, value, 0, 0)] for offset, mask, value in conditions]
    body: list[bytes] = []
    for index, check in enumerate(checks):
        left = sum(map(len, checks[index + 1 :])) + 1
        body += [*check[:2], op(EQUAL, conditions[index][2], 0, left)]
    body += [op(RETURN, ALLOW), op(RETURN, ERRNO | errno.EPERM)]
    return [op(EQUAL, number, 0, len(body)), *body]


def build(level: Level, processes: bool, machine: str | None = None) -> Filter:
    """The filter of a level; `processes` allows child processes, which needs a pid namespace.

    Raises ValueError on a machine whose system-call numbers we do not have.
    """
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCH:
        raise ValueError(f"no system-call table for {machine}; there are tables for {', '.join(AUDIT_ARCH)}")
    arch, column = AUDIT_ARCH[machine]
    numbers = {name: pair[column] for name, pair in NUMBERS.items() if pair[column] is not None}
    own_namespace = level is Level.ISOLATED
    if processes and not own_namespace:
        raise ValueError("child processes need level isolated: without a pid namespace they could outlive the run")

    rules = [op(LOAD, ARCH), op(EQUAL, arch, 1, 0), op(RETURN, KILL), op(LOAD, NR)]
    if machine == "x86_64":
        rules += [op(AT_LEAST, X32_BIT, 0, 1), op(RETURN, KILL)]
    names = ALLOWED.split()
    if own_namespace:
        names += [*FILE_CHANGES.split(), *SIGNALS.split(), "open", "openat"]
    if processes:
        names += PROCESSES.split()
    rules += allow(number for name in names if (number := numbers.get(name)) is not None)
    for name, rule in argument_rules(own_namespace, processes, numbers):
        if name in numbers:
            rules += rule
    rules += [op(GREATER, LAST_KNOWN, 0, 1), op(RETURN, ERRNO | errno.ENOSYS), op(RETURN, ERRNO | errno.EPERM)]
    slots = tuple(i for i, part in enumerate(rules) if part[4:] == struct.pack("=I", SELF))
    return Filter(b"".join(rules), slots)


def argument_rules(
    own_namespace: bool, processes: bool, numbers: dict[str, int | None]
) -> list[tuple[str, list[bytes]]]:
    """The calls whose arguments decide, as (name, instructions)."""

    def rule(name: str, make, *args) -> tuple[str, list[bytes]]:
        number = numbers.get(name)
        return name, make(number, *args) if number is not None else []

    wanted, mask = (0, CLONE_NAMESPACES) if processes else (CLONE_THREAD, CLONE_NAMESPACES | CLONE_THREAD)
    rules = [
        # AF_UNIX streams, which asyncio wakes itself with; a datagram could be sent to any socket with a name.
        rule("socketpair", allow_if, (0, ALL, 1), (8, 0xF, 1)),
        rule("sendto", allow_if, (32, ALL, 0), (36, ALL, 0)),
        rule("fcntl", allow_values, 1, FCNTL_COMMANDS + (FCNTL_LOCKS if own_namespace else ())),
        rule("futex", allow_values, 1, FUTEX_OPERATIONS, errno.ENOSYS, 0x7F),
        rule("ioctl", allow_values, 1, IOCTLS, errno.ENOTTY),
        rule("prctl", allow_values, 0, PRCTL_OPTIONS),
        rule("clone", allow_values, 0, (wanted,), errno.EPERM, mask),
        rule("clone3", refuse, errno.ENOSYS),  # its flags lie behind a pointer; the C library falls back to clone
        rule("openat2", refuse, errno.ENOSYS),
        rule("prlimit64", allow_values, 0, (0,)),
        rule("sched_setaffinity", allow_values, 0, (0,)),
        rule("setpriority", allow_if, (0, ALL, 0), (8, ALL, 0)),
        rule("personality", allow_values, 0, (0xFFFFFFFF,)),
    ]
    if not own_namespace:
        # Landlock alone does not stop O_TRUNC before ABI 3, nor signals before ABI 6.
        rules += [
            rule("open", allow_values, 1, (0,), errno.EACCES, OPEN_CHANGES),
            rule("openat", allow_values, 2, (0,), errno.EACCES, OPEN_CHANGES),
            rule("kill", allow_self),
            rule("tgkill", allow_self),
        ]
    return rules


def emulated_docker(machine: str | None = None, landlock: bool = True) -> Filter:
    """Refuses what Docker's default profile refuses without CAP_SYS_ADMIN and allows the rest; for tests of the ladder.

    Facts from moby's profiles/seccomp: unshare, setns, mount and the new mount interface, clone with namespace flags;
    clone3 is answered with ENOSYS. `landlock=False` refuses the Landlock calls as older profiles did.
    """
    machine = machine or platform.machine()
    arch, column = AUDIT_ARCH[machine]
    names = DOCKER_REFUSES.split()
    if not landlock:
        names += ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
    rules = [op(LOAD, ARCH), op(EQUAL, arch, 1, 0), op(RETURN, ALLOW), op(LOAD, NR)]
    for name in names:
        rules += refuse(NUMBERS[name][column] or -1, errno.EPERM)
    rules += refuse(NUMBERS["clone3"][column] or -1, errno.ENOSYS)
    rules += allow_values(NUMBERS["clone"][column] or -1, 0, (0,), errno.EPERM, CLONE_NAMESPACES)
    return Filter(b"".join([*rules, op(RETURN, ALLOW)]))
