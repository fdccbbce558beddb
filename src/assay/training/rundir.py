"""A run is a directory: where its parts lie, and the lock that keeps a second process out of it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from assay.errors import InputError, RunError


@dataclass(frozen=True)
class RunDirectory:
    """Names inside `runs/<name>/`; creating it and writing small files in it, whole or not at all."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    def create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_text("")
            probe.unlink()
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(
                f"run directory {str(self.path)!r}: a file of that name is in the way; change output_dir or name"
            ) from error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise InputError(
                f"run directory {str(self.path)!r} cannot be written ({reason}); change output_dir or name"
            ) from error

    def write_json(self, path: Path, content: Any) -> None:
        write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    @contextmanager
    def lock(self) -> Iterator[TextIO]:
        """Hold the run; a second process gets an error that names the first. A kill releases it."""
        with open(self.path / ".lock", "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise InputError(
                    f"run directory {str(self.path)!r} is in use by process {owner}; wait for it, stop it, "
                    "or set another name"
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield file


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a crash leaves either the old or the new content."""
    aside = path.with_name(f".{path.name}.tmp")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


@contextmanager
def disk_errors(what: str, kept: str) -> Iterator[None]:
    """Turn a full or unwritable disk into one line that says what is kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EFBIG):
            raise
        reason = os.strerror(error.errno)
        raise RunError(f"{what} failed: {reason}. {kept}; make room and run the same command to continue") from error
