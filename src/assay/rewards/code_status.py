"""How a program did under its tests: statuses that never look alike, and the grade that carries one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from assay.sandbox import Ended, Usage

NO_USAGE = Usage()


class Status(StrEnum):
    """How a program did. All but `passed` and `infra_error` are the program's failures; `infra_error` is ours and has
    no reward.
    """

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    LOAD_ERROR = "load_error"
    NO_ENTRY_POINT = "no_entry_point"
    CPU_LIMIT = "cpu_limit"
    WALL_LIMIT = "wall_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    PROTOCOL_ERROR = "protocol_error"
    BLOCKED_SYSCALL = "blocked_syscall"
    INFRA_ERROR = "infra_error"


STATUS_OF_END = {
    Ended.EXITED: Status.RUNTIME_ERROR,
    Ended.SIGNALLED: Status.RUNTIME_ERROR,
    Ended.CPU_LIMIT: Status.CPU_LIMIT,
    Ended.WALL_LIMIT: Status.WALL_LIMIT,
    Ended.MEMORY_LIMIT: Status.MEMORY_LIMIT,
    Ended.THREAD_LIMIT: Status.RUNTIME_ERROR,
    Ended.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
    Ended.PROTOCOL_ERROR: Status.PROTOCOL_ERROR,
    Ended.BLOCKED_SYSCALL: Status.BLOCKED_SYSCALL,
    Ended.CANCELLED: Status.INFRA_ERROR,
    Ended.INFRA_ERROR: Status.INFRA_ERROR,
}


@dataclass(frozen=True)
class Grade:
    """`passed` of `total` cases; `signals` are what the harness saw that honest programs do not do."""

    status: Status
    passed: int = 0
    total: int = 0
    signals: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    level: str = ""
    detail: str = ""
    retried: int = 0

    @property
    def reward(self) -> float | None:
        """1.0 if every case passed, else 0.0; None where we failed."""
        return None if self.status is Status.INFRA_ERROR else float(self.status is Status.PASSED)

    @property
    def share(self) -> float | None:
        """The share of cases that passed; None where we failed. Only whole when all cases were run."""
        if self.status is Status.INFRA_ERROR or self.status is Status.PASSED:
            return self.reward
        return self.passed / self.total if self.total else 0.0
