"""The private file system of level isolated: the interpreter, read-only, three devices, and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from assay.sandbox import linux

SCRATCH = "/box"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo")
# Where the new root may be mounted for a moment: any existing folder that holds nothing we need. Nothing is created.
MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/tmp", "/home", "/var", "/run", "/sys")


def readable_paths(extra: Iterable[str]) -> list[str]:
    """What a program may read: the interpreter, its shared libraries, zone data, and the package folders in `extra`.

    A folder below another in the list is left out. `/usr` and `/usr/local` are never given whole.
    """
    paths = {*SYSTEM, *extra}
    for prefix in {sys.base_prefix, sys.base_exec_prefix}:
        if prefix in ("/usr", "/usr/local"):
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            paths |= {f"{prefix}/lib/{version}", f"{prefix}/bin/{version}"}
        else:
            paths.add(prefix)
    paths |= {entry for entry in sys.path if entry and os.path.isdir(entry)}
    real = sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})
    return [path for path in real if not any(path != other and is_below(path, other) for other in real)]


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def build_root(readable: list[str]) -> None:
    """Replace this mount namespace's root by a private one. Needs CAP_SYS_ADMIN over a mount namespace of its own."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    base = next(
        (point for point in MOUNT_POINTS if os.path.isdir(point) and not any(is_below(x, point) for x in readable)),
        None,
    )
    if base is None:
        raise OSError(2, f"no folder among {', '.join(MOUNT_POINTS)} is free to mount the private root on")
    linux.mount("assay", base, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,nr_inodes=2048,mode=755")
    for path in readable:
        bind(path, base + path)
        linux.make_readonly(base + path)
    for name in ("/lib", "/lib64", "/usr/lib64", "/bin", "/sbin"):
        link = os.readlink(name) if os.path.islink(name) else None
        if link and not os.path.lexists(base + name):
            os.makedirs(os.path.dirname(base + name), exist_ok=True)
            os.symlink(link, base + name)
    for device in filter(os.path.exists, DEVICES):
        bind(device, base + device)
        linux.make_readonly(base + device)  # still writable as a device; its mode and times are not
    os.mkdir(base + SCRATCH)
    if not os.path.lexists(base + "/tmp"):
        os.symlink(SCRATCH, base + "/tmp")
    os.chdir(base)
    linux.mount(
        "none", base, None, linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    )
    linux.pivot_root_here()


def bind(source: str, target: str) -> None:
    """Bind a file or folder, with what is mounted below it, at a path that is made for it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)
