"""What happened to a program, and what this host was seen to enforce."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from assay.sandbox.options import Level


class Ended(StrEnum):
    """How one program ended. `infra_error` is ours (a dead worker, a host that ran out); the rest is the program's."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    CPU_LIMIT = "cpu_limit"
    WALL_LIMIT = "wall_limit"
    MEMORY_LIMIT = "memory_limit"
    THREAD_LIMIT = "thread_limit"
    OUTPUT_LIMIT = "output_limit"
    PROTOCOL_ERROR = "protocol_error"
    BLOCKED_SYSCALL = "blocked_syscall"
    CANCELLED = "cancelled"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True)
class Usage:
    """What a run took: CPU and wall in seconds, the largest resident set in MiB. `stalled_s` is host time given
    back.
    """

    cpu_s: float = 0.0
    wall_s: float = 0.0
    max_rss_mb: float = 0.0
    stalled_s: float = 0.0


@dataclass(frozen=True)
class RunResult:
    """What one program did. `exit_code` is None where a signal ended it; `retried` counts stalls and crashes of
    ours.
    """

    ended: Ended
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    usage: Usage = Usage()
    level: Level = Level.LIMITS_ONLY
    detail: str = ""
    retried: int = 0

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit status 0."""
        return self.ended is Ended.EXITED and self.exit_code == 0


@dataclass(frozen=True)
class Probe:
    """One promise, tried for real from where a program stands. `needed_for` is the lowest level that promises it."""

    promise: str
    held: bool
    needed_for: Level
    seen: str = ""


@dataclass(frozen=True)
class Isolation:
    """What this host enforces: the witnessed level, by which mechanisms, the probes, and why not more."""

    level: Level
    mechanisms: tuple[str, ...]
    probes: tuple[Probe, ...] = ()
    missing: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> str:
        """One line for a log."""
        held = sum(probe.held for probe in self.probes)
        return (
            f"sandbox: {self.level.label} ({'; '.join(self.mechanisms) or 'no kernel mechanism'})."
            f" Witnessed: {held}/{len(self.probes)} probes held."
        )


class IsolationError(ValueError):
    """This host enforces less than was required; the message says what it refuses and which key accepts less."""


class InfraError(RuntimeError):
    """The sandbox itself failed (a worker died, the host refused a resource); says nothing about the program."""
