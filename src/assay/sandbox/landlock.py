"""Landlock: an unprivileged process gives up everything but reading below some directories (kernel 5.13 and newer)."""

from __future__ import annotations

import os
import struct

from assay.sandbox.linux import call

CREATE_VERSION = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
PATH_BENEATH = 1
# Access rights by ABI: file rights 1-12 first, then REFER, TRUNCATE, IOCTL_DEV; network from 4; scopes from 6.
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
NET_RIGHTS = 0b11
SCOPES = 0b11


def abi() -> int:
    """The newest Landlock that the kernel offers; 0 where there is none."""
    try:
        return call("landlock_create_ruleset", 0, 0, CREATE_VERSION)
    except OSError:
        return 0


def ruleset(version: int, readable: list[str]) -> int:
    """A ruleset (its descriptor) that allows reading below `readable` and nothing else."""
    handled = FILE_RIGHTS[min(version, 5)]
    attributes = struct.pack("=Q", handled)
    if version >= 4:
        attributes += struct.pack("=Q", NET_RIGHTS)
    if version >= 6:
        attributes += struct.pack("=Q", SCOPES)
    fd = call("landlock_create_ruleset", attributes, len(attributes), 0)
    for path in readable:
        allowed = READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            call("landlock_add_rule", fd, PATH_BENEATH, struct.pack("=Qi", allowed, target), 0)
        finally:
            os.close(target)
    return fd


def restrict(ruleset_fd: int) -> None:
    """Confine this thread for good; needs no_new_privs."""
    call("landlock_restrict_self", ruleset_fd, 0)
