"""The Linux calls that Python has no function for, through ctypes. Every failure is an OSError that names the call."""

from __future__ import annotations

import ctypes
import os
import struct

from assay.sandbox.syscalls import NUMBERS

libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2


def call(name: str, *args: object) -> int:
    """Make a system call by name with integer, bytes or buffer arguments."""
    number = NUMBERS[name][0 if os.uname().machine == "x86_64" else 1]
    if number is None:
        raise OSError(38, f"{name}: this architecture does not have it")
    wrapped = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return check(name, libc.syscall(ctypes.c_long(number), *wrapped))


def check(name: str, result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def unshare(flags: int) -> None:
    check("unshare", libc.unshare(ctypes.c_int(flags)))


def setns(fd: int, kind: int) -> None:
    check("setns", libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)))


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    result = libc.mount(source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), data.encode())
    check(f"mount {target}", result)


def unmount(target: str) -> None:
    check(f"umount {target}", libc.umount2(target.encode(), MNT_DETACH))


def pivot_root_here() -> None:
    """Make the working directory the root and let the old one go."""
    call("pivot_root", b".", b".")
    unmount(".")
    os.chdir("/")


def make_readonly(path: str) -> None:
    """Turn a mount and everything mounted below it read-only and nosuid."""
    attributes = struct.pack("=QQQQ", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    try:
        call("mount_setattr", AT_FDCWD, path.encode(), AT_RECURSIVE, attributes, len(attributes))
    except OSError as error:
        if error.errno != 38:
            raise
        # Before Linux 5.12: only the top mount, keeping the flags that a user namespace may not clear.
        kept = os.statvfs(path).f_flag & (MS_NODEV | MS_NOEXEC | 0x400 | 0x1000)
        mount("none", path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)


def prctl(option: int, value: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    check(f"prctl({option})", libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def install_filter(code: bytes) -> None:
    """Install a seccomp filter on this thread; needs no_new_privs."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(program, len(program))
    zero = ctypes.c_ulong(0)
    result = libc.prctl(
        ctypes.c_int(PR_SET_SECCOMP),
        ctypes.c_ulong(SECCOMP_MODE_FILTER),
        ctypes.c_ulong(ctypes.addressof(holder)),
        zero,
        zero,
    )
    check("seccomp", result)


def drop_capabilities() -> None:
    """Give up every capability, permitted and inheritable ones too."""
    header = struct.pack("=Ii", 0x20080522, 0)
    call("capset", header, struct.pack("=6I", 0, 0, 0, 0, 0, 0))


def kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(ch for ch in minor if ch.isdigit()) or 0)
