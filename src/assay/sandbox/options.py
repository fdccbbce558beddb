"""What a program may use, and how much isolation a host must give before we run one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated


class Level(IntEnum):
    """How strongly a program is confined; each level promises everything that the one below promises."""

    LIMITS_ONLY = 0
    NO_READ_WALL = 1
    RESTRICTED = 2
    ISOLATED = 3

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")

    @classmethod
    def parse(cls, text: str) -> Level:
        """The level of a name.

        >>> Level.parse("no-read-wall")
        <Level.NO_READ_WALL: 1>
        """
        for level in cls:
            if level.label == text:
                return level
        raise ValueError(f"{text!r} is not a level of isolation; the levels are {', '.join(x.label for x in cls)}")


@dataclass(frozen=True)
class Limits:
    """What one program may use. Reaching a limit ends the program and is its own fault, never an error of ours."""

    cpu_seconds: Annotated[int, "Raise it for programs that compute for long."] = 5
    wall_seconds: Annotated[float, "Raise it for programs that wait; our own stalls are not counted."] = 8.0
    memory_mb: Annotated[int, "Raise it for programs with big tables; it comes on top of the bare interpreter."] = 512
    threads: Annotated[int, "Lower it where many threads would disturb the host."] = 32
    processes: Annotated[int, "Child processes a program may have; more than 0 needs level isolated."] = 0
    scratch_mb: Annotated[int, "Space for the program's own files (level isolated)."] = 16
    scratch_inodes: Annotated[int, "How many files and folders it may create."] = 1024
    file_mb: Annotated[int, "Largest single file, standard output included."] = 16
    open_files: Annotated[int, "Raise it for programs that open many files at once."] = 64
    stack_mb: Annotated[int, "Raise it for deep recursion in the main thread."] = 64
    output_kb: Annotated[int, "Most a program may print on each of stdout and stderr before it fails."] = 256
    result_kb: Annotated[int, "Most that one returned value may take."] = 1024

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            least = {"processes": 0.0, "scratch_mb": 0.0, "wall_seconds": 0.05}.get(name, 1.0)
            if value < least:
                raise ValueError(f"sandbox limits: {name} is {value!r}; it must be at least {least:g}")

    @property
    def worst_case_bytes(self) -> int:
        """Most memory that one run can hold: every process at its limit, files in memory, both outputs."""
        megabytes = self.memory_mb * (1 + self.processes) + self.scratch_mb + 2 * self.file_mb
        return megabytes << 20


@dataclass(frozen=True)
class SandboxOptions:
    """How programs are run. Read by `Sandbox`; the defaults fit a laptop, a GPU node and a default Docker container."""

    workers: Annotated[int, "Warm interpreters kept ready; 0 takes one a core, 8 at most."] = 0
    runs_per_worker: Annotated[int, "Programs in flight on one worker; more hides waiting, fewer saves memory."] = 2
    preload: Annotated[tuple[str, ...], "Packages imported before any program runs, such as numpy."] = ()
    python: Annotated[str | None, "Another interpreter (3.11 or newer) for the programs; default is this one."] = None
    require: Annotated[str, "Lowest level of isolation to accept; below it nothing runs."] = "restricted"
    allow_unsafe: Annotated[bool, "Needed beside a `require` below restricted: says that you know what that means."] = (
        False
    )
    at_most: Annotated[str, "Do not try more than this level; for tests and odd hosts."] = "isolated"
    landlock_abi: Annotated[int, "Use no newer Landlock than this; for tests. 0 turns Landlock off."] = 99
    memory_share: Annotated[float, "Share of the available memory that all programs together may take."] = 0.5
    limits: Annotated[Limits, "Limits of a program that does not bring its own."] = Limits()

    def __post_init__(self) -> None:
        required = Level.parse(self.require)
        Level.parse(self.at_most)
        if required < Level.RESTRICTED and not self.allow_unsafe:
            raise ValueError(
                f"sandbox require={self.require} is below restricted, where a program can read your files or worse;"
                " set allow_unsafe=true beside it to accept that"
            )
        if self.workers < 0 or self.runs_per_worker < 1:
            raise ValueError("sandbox workers must be 0 (one a core) or more, runs_per_worker at least 1")
        if not 0 < self.memory_share <= 1:
            raise ValueError(f"sandbox memory_share is {self.memory_share}; it must lie in (0, 1]")
