"""The filters, run on an interpreter of the kernel's BPF written here, and the tables against the kernel's headers."""

import errno
import re
import struct
from pathlib import Path

import pytest

from assay.sandbox import seccomp
from assay.sandbox.options import Level
from assay.sandbox.syscalls import ALLOWED, FILE_CHANGES, NUMBERS, PROCESSES, SIGNALS

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)"),
    "aarch64": ("/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
}
PID = 4242
ORDINARY = "read write mmap getrandom clock_gettime rt_sigaction exit_group"
DANGEROUS = """
unshare setns mount bpf io_uring_setup ptrace keyctl memfd_create shmget setuid seccomp socket connect bind
perf_event_open userfaultfd process_vm_readv pidfd_open chroot capset
"""


def decide(machine, code, nr, args=(), arch=None):
    """What the kernel would do with a call: allow, kill or an errno."""
    arch = arch if arch is not None else seccomp.AUDIT_ARCH[machine][0]
    data = struct.pack("=IIQ6Q", nr & 0xFFFFFFFF, arch, 0, *(x & (2**64 - 1) for x in (*args, *[0] * (6 - len(args)))))
    counter, accumulator = 0, 0
    for _ in range(5000):
        op, true, false, value = struct.unpack_from("=HBBI", code, counter * 8)
        counter += 1
        if op == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif op == 0x54:
            accumulator &= value
        elif op == 0x06:
            if value == 0x7FFF0000:
                return "allow"
            return "kill" if value == 0x80000000 else errno.errorcode[value & 0xFFFF]
        else:
            taken = {0x15: accumulator == value, 0x25: accumulator > value, 0x35: accumulator >= value}[op]
            counter += true if taken else false
    raise AssertionError("the filter does not end")


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request):
    return request.param


@pytest.fixture(params=[(Level.ISOLATED, False), (Level.ISOLATED, True), (Level.RESTRICTED, False)], ids=str)
def call(request, machine):
    """decide() by name for one filter; None where the machine has no such call."""
    level, processes = request.param
    code = seccomp.build(level, processes, machine).for_pid(PID)
    column = seccomp.AUDIT_ARCH[machine][1]

    def by_name(name, *args):
        number = NUMBERS[name][column]
        return None if number is None else decide(machine, code, number, args)

    by_name.level, by_name.processes, by_name.code = level, processes, code
    return by_name


@pytest.mark.parametrize(("column", "machine"), list(enumerate(HEADERS)))
def test_numbers_are_the_kernels(column, machine):
    path, pattern = HEADERS[machine]
    if not Path(path).exists():
        pytest.skip(f"the kernel's headers are not installed here ({path})")
    kernel = {name: int(number) for name, number in re.findall(pattern, Path(path).read_text())}
    kernel.setdefault("newfstatat", kernel.get("fstatat"))
    wrong = {
        name: (pair[column], kernel.get(name)) for name, pair in NUMBERS.items() if pair[column] != kernel.get(name)
    }
    assert not wrong


def test_every_word_of_the_lists_has_a_number():
    for words in (ALLOWED, FILE_CHANGES, PROCESSES, SIGNALS):
        assert set(words.split()) <= set(NUMBERS)


def test_foreign_entry_points_are_death(machine, call):
    assert decide(machine, call.code, 0, arch=0x40000003) == "kill"  # i386
    if machine == "x86_64":
        assert decide(machine, call.code, 0x40000000 | 39) == "kill"  # x32 getpid
        assert decide(machine, call.code, 0xFFFFFFFF) == "kill"


def test_unknown_calls_do_not_exist(machine, call):
    assert {decide(machine, call.code, number) for number in range(451, 600)} == {"ENOSYS"}


def test_whatever_is_not_named_is_refused(machine, call):
    column = seccomp.AUDIT_ARCH[machine][1]
    named = {pair[column] for pair in NUMBERS.values()}
    assert {decide(machine, call.code, n) for n in range(451) if n not in named} == {"EPERM"}


@pytest.mark.parametrize("name", ORDINARY.split())
def test_ordinary_calls_are_allowed(call, name):
    assert call(name, 1, 2, 3) == "allow"


@pytest.mark.parametrize("name", DANGEROUS.split())
def test_dangerous_calls_are_refused_with_any_arguments(call, name):
    for args in ((), (-1,) * 6, (PID, 1, 1, 1, 1, 1)):
        assert call(name, *args) == "EPERM"


def test_threads_but_no_namespaces_and_no_processes(call):
    thread, fork = 0x3D0F00, 17
    assert call("clone", thread) == "allow"
    assert call("clone", fork) == ("allow" if call.processes else "EPERM")
    for bit in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert call("clone", thread | bit) == "EPERM"
        assert call("clone", fork | bit) == "EPERM"
    assert call("clone3", 0) == "ENOSYS"
    for name in ("execve", "execveat", "fork", "vfork"):
        assert call(name) in (None, "allow" if call.processes else "EPERM")


def test_signals_only_where_there_is_a_pid_namespace_or_to_oneself(call):
    for name in ("kill", "tgkill"):
        assert call(name, PID, 9) == "allow"
        for other in (1, 0, -1, -PID, PID + 1):
            assert call(name, other, 9) == ("allow" if call.level is Level.ISOLATED else "EPERM")


def test_files_are_opened_to_read_only_where_there_is_no_private_disk(call):
    refused = "allow" if call.level is Level.ISOLATED else "EACCES"
    for flags in (0, 0o2000000, 0o200000 | 0o2000000, 0o10000000):  # O_RDONLY, O_CLOEXEC, O_DIRECTORY, O_PATH
        assert call("openat", -100, 0, flags) == "allow"
    for flags in (1, 2, 3, 0o100, 0o1000, 0o20200000, 0o1001):
        assert call("openat", -100, 0, flags) == refused
    for name in FILE_CHANGES.split():
        assert call(name) in (None, "allow" if call.level is Level.ISOLATED else "EPERM")
    assert call("openat2") == "ENOSYS"


def test_descriptors_cannot_be_made_to_signal_others(call):
    for command in (
        8,
        10,
        15,
        1024,
        1026,
        1031,
        1033,
    ):  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY, pipe size, seals
        assert call("fcntl", 0, command) == "EPERM"
    for command in (0, 1, 2, 3, 4, 1030):
        assert call("fcntl", 0, command) == "allow"
    for request in (0x8901, 0x8902, 0x5412):  # FIOSETOWN, SIOCSPGRP, TIOCSTI
        assert call("ioctl", 0, request) == "ENOTTY"


def test_sockets_are_pairs_of_streams_that_reach_nobody_else(call):
    assert call("socketpair", 1, 1) == call("socketpair", 1, 1 | 0o2000000 | 0o4000) == "allow"
    for family, kind in ((1, 2), (1, 3), (1, 5), (2, 1), (16, 1), (1 << 16 | 2, 1)):
        assert call("socketpair", family, kind) == "EPERM"
    assert call("sendto", 3, 0, 1, 0, 0, 0) == "allow"
    assert call("sendto", 3, 0, 1, 0, 0x7FFF0000, 110) == "EPERM"
    assert call("sendto", 3, 0, 1, 0, 1 << 40, 110) == "EPERM"


def test_plain_futexes_only(call):
    for operation in (0, 1, 3, 4, 5, 9, 10):
        assert call("futex", 0, operation) == call("futex", 0, operation | 128) == "allow"  # shared and private
    for operation in (2, 6, 7, 8, 11, 12, 13):
        assert call("futex", 0, operation | 128) == "ENOSYS"


def test_file_locks_only_where_there_is_a_private_disk(call):
    for command in (5, 6, 7, 36, 37, 38):
        assert call("fcntl", 0, command) == ("allow" if call.level is Level.ISOLATED else "EPERM")


def test_limits_and_priorities_of_oneself_only(call):
    assert call("prlimit64", 0, 7) == "allow"
    assert call("prlimit64", PID + 1, 7) == "EPERM"
    assert call("setpriority", 0, 0, 5) == "allow"
    for which, who in ((0, 1), (1, 0), (2, 0)):
        assert call("setpriority", which, who, 5) == "EPERM"
    for option in (1, 4, 8, 22, 24, 36, 38, 0x59616D61):
        assert call("prctl", option) == "EPERM"


def test_child_processes_need_a_pid_namespace():
    with pytest.raises(ValueError, match="level isolated"):
        seccomp.build(Level.RESTRICTED, processes=True)


def test_a_machine_without_a_table_is_refused():
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.build(Level.ISOLATED, False, "riscv64")
