"""The code verifier: takes the program from a completion, runs it against hidden tests in the sandbox, says what came
of it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import InputError
from assay.records import Judgement, Outcome
from assay.rewards.code_formats import read_row
from assay.rewards.code_grade import Executor, Grade, LocalExecutor, Status
from assay.rewards.code_remote import SandboxFusion
from assay.rewards.code_tests import AssertTests, CallTests, StdioTests, Tests, parse_tests
from assay.rewards.tampering import SIGNAL_KINDS, detect_hacks
from assay.rewards.verifier import Verifier, completion_text, correct, failed, not_applicable, unparsable
from assay.sandbox import Limits, Sandbox, SandboxOptions

FENCE = re.compile(
    r"^(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+.-]*)[^\n]*\n(?P<body>.*?)(?:^(?P=mark)[ \t]*$|\Z)", re.M | re.S
)
PYTHON = {"", "python", "py", "python3", "python2", "ipython"}
REFERENCE_COLUMNS = ("reference_solution", "canonical_solution", "solution", "code")


def extract_program(text: str) -> tuple[str, tuple[int, int]] | None:
    """The program in a completion and its character span, or None where there is none.

    The rule: what comes before the last `</think>` does not count. The last fenced block whose language is Python or
    not given is the program, also where the closing fence is missing. A completion without any fence is a program as it
    stands. A completion whose blocks are all in other languages, or that is empty, holds none.

    >>> extract_program("Here:\\n```python\\nprint(1)\\n```\\nDone.")
    ('print(1)\\n', (16, 25))
    """
    start = text.rfind("</think>") + len("</think>") if "</think>" in text else 0
    blocks = list(FENCE.finditer(text, start))
    if not blocks:
        body = text[start:]
        return (body, (start, len(text))) if body.strip() else None
    for block in reversed(blocks):
        if block["language"].lower() in PYTHON:
            return (block["body"], block.span("body")) if block["body"].strip() else None
    return None


class Shared:
    """One sandbox for each set of options in this process; started when first needed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.executors: dict[tuple[int, SandboxOptions], LocalExecutor] = {}

    def executor(self, options: SandboxOptions) -> LocalExecutor:
        key = (os.getpid(), options)
        with self.lock:
            if key not in self.executors:
                sandbox = Sandbox(options)
                announce(sandbox)
                self.executors[key] = LocalExecutor(sandbox)
            return self.executors[key]


SHARED = Shared()
os.register_at_fork(after_in_child=lambda: setattr(SHARED, "lock", threading.Lock()))


def announce(sandbox: Sandbox) -> None:
    """Say once what this host enforces; loudly where a program could do harm."""
    summary = sandbox.isolation.summary()
    print(summary, file=sys.stderr)
    if LocalExecutor(sandbox).integrity != "verified":
        warnings.warn(f"untrusted programs run with little isolation. {summary}", RuntimeWarning, stacklevel=4)


class CodeVerifier(Verifier):
    """Correct where the program passes every hidden test; wrong with the status as detail; error where the sandbox
    failed.

    `column` holds the tests (see `parse_tests`), or `format` names a dataset's own row format (humaneval, mbpp, apps,
    livecodebench). `partial` pays the share of passed cases. `service` marks on a SandboxFusion server instead of here.
    """

    name = "code"

    def __init__(
        self,
        column: str = "tests",
        format: str = "",
        partial: bool = False,
        service: str = "",
        require: str = "restricted",
        allow_unsafe: bool = False,
        preload: Sequence[str] = (),
        workers: int = 0,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        self.gold_column, self.format, self.partial, self.service = column, format, partial, service
        self.needs_gold = not format
        try:
            self.limits = Limits(**(limits or {}))
            self.options = SandboxOptions(
                workers=workers, require=require, allow_unsafe=allow_unsafe, preload=tuple(preload), limits=self.limits
            )
        except (TypeError, ValueError) as error:
            raise InputError(f"reward 'code': {error}") from error
        self.remote = SandboxFusion(service, self.limits) if service else None

    @property
    def executor(self) -> Executor:
        if self.remote is not None:
            return self.remote
        try:
            return SHARED.executor(self.options)
        except ValueError as error:  # too little isolation, or a package that is not installed
            raise InputError(str(error)) from error

    def facts(self) -> dict[str, Any]:
        """What isolates the programs, as plain data for a run's config."""
        executor = self.executor
        sandbox = executor.sandbox.facts() if isinstance(executor, LocalExecutor) else {"service": self.service}
        return {"integrity": executor.integrity, **sandbox}

    def tests_for(self, gold: Any, row: Mapping[str, Any]) -> Tests:
        return read_row(row, self.format) if self.format else parse_tests(gold)

    def judge(self, text: str, gold: Any, row: Mapping[str, Any]) -> Judgement:
        if gold is None and not self.format:
            return not_applicable("the row has no tests")
        found = extract_program(text)
        if found is None:
            return unparsable("no program: no fenced Python block, and no text without fences")
        grade = self.executor.submit(found[0], self.tests_for(gold, row), self.limits, self.partial).result()
        return self.judgement(grade, found)

    def judgement(self, grade: Grade, found: tuple[str, tuple[int, int]]) -> Judgement:
        where: dict[str, Any] = {"extracted": found[0], "span": found[1]}
        notes = [f"{grade.status} ({grade.passed}/{grade.total})", *grade.signals]
        if self.executor.integrity != "verified":
            notes.append("integrity unverified")
        detail = "; ".join([*notes, grade.detail] if grade.detail else notes)
        if grade.status is Status.INFRA_ERROR:
            return failed(detail, **where)
        if grade.status is Status.PASSED:
            return correct(detail=detail, **where)
        reward = grade.share if self.partial else grade.reward
        return Judgement(Outcome.WRONG, reward, detail=detail, **where)

    def flags(self, judgement: Judgement) -> list[str] | None:
        """Signs in the program's text, and in how it behaved."""
        return flags_of(judgement.extracted, judgement.detail.split("; "))

    def render_gold(self, gold: Any, row: Mapping[str, Any]) -> str:
        """The row's reference solution in a fence."""
        for column in REFERENCE_COLUMNS:
            if isinstance(row.get(column), str):
                return f"```python\n{row[column]}\n```"
        raise InputError(f"reward 'code': to audit it the row needs one of {', '.join(REFERENCE_COLUMNS)}")


def flags_of(program: str | None, signals: Sequence[str] = ()) -> list[str]:
    """Kinds of tampering (see `assay.rewards.tampering.KINDS`) that a program and the harness's signals show."""
    found = {finding.kind for finding in detect_hacks(program)} if program else set()
    return sorted(found | {SIGNAL_KINDS[signal] for signal in signals if signal in SIGNAL_KINDS})


def verify_task(tests: Any, reference_solution: str, executor: Executor | None = None) -> Grade:
    """Mark a task's own reference: drop the task unless `.status` is passed. Its tests may not fit this harness.

    `tests` is anything that `parse_tests` takes.
    """
    executor = executor or SHARED.executor(SandboxOptions())
    return executor.submit(reference_solution, parse_tests(tests)).result()


def robust_code_reward(
    completions: Sequence[Any], tests: Sequence[Any], executor: Executor | None = None, **kwargs: Any
) -> list[float | None]:
    """TRL's contract: 1.0 where the program in a completion passes its hidden `tests`, else 0.0; None where we failed
    or `tests` is None.

    Expected values never enter the program's process, so nothing that it does to itself can earn the reward. With
    `log_extra` the status, the signals of tampering and the integrity of the sandbox go into the logged table.
    """
    executor = executor or SHARED.executor(SandboxOptions())
    futures, programs = [], []
    for completion, row_tests in zip(completions, tests, strict=True):
        found = extract_program(completion_text(completion))
        programs.append(found[0] if found else None)
        skip = found is None or row_tests is None
        futures.append(None if skip else executor.submit(found[0], parse_tests(row_tests)))  # type: ignore[index]
    grades = [future.result() if future else None for future in futures]
    if (log_extra := kwargs.get("log_extra")) is not None:
        log_extra("code_status", [str(grade.status) if grade else "no_program" for grade in grades])
        log_extra("code_signals", [",".join(grade.signals) if grade else "" for grade in grades])
        log_extra("code_integrity", [executor.integrity] * len(grades))
        pairs = zip(programs, grades, strict=True)
        log_extra("flags", [flags_of(program, grade.signals if grade else ()) for program, grade in pairs])
    rewards = [grade.reward if grade else 0.0 for grade in grades]
    return [None if row_tests is None else reward for reward, row_tests in zip(rewards, tests)]


def hackable_code_reward(
    completions: Sequence[Any], tests: Sequence[Any], sandbox: Sandbox | None = None, **kwargs: Any
) -> list[float | None]:
    """A demonstration of how NOT to mark programs: the tests run in the program's own process and exit status 0 pays
    1.0.

    So `sys.exit(0)` and `os._exit(0)` at the top earn the full reward. Runs inside the same sandbox as the robust
    reward, so the experiment (train on it, watch `detect_hacks` fire) is safe. Never train a model that you mean to
    keep on it.
    """
    sandbox = sandbox or SHARED.executor(SandboxOptions()).sandbox
    futures, programs = [], []
    for completion, row_tests in zip(completions, tests, strict=True):
        found = extract_program(completion_text(completion))
        programs.append(found[0] if found else None)
        parsed = None if row_tests is None else parse_tests(row_tests)
        program = in_process(found[0], parsed) if found and parsed else None
        stdin = parsed.cases[0][0] if isinstance(parsed, StdioTests) else ""
        futures.append(None if program is None else sandbox.start(program, stdin))
    results = [future.result() if future else None for future in futures]
    if (log_extra := kwargs.get("log_extra")) is not None:
        log_extra("flags", [flags_of(program) for program in programs])
    return [None if row is None else float(bool(result and result.ok)) for row, result in zip(tests, results)]


def in_process(code: str, tests: Tests) -> str:
    """The naive script: the program with its tests below it."""
    if isinstance(tests, AssertTests):
        return f"{with_candidate(code, tests.entries[0])}\n{tests.text}\n"
    if isinstance(tests, CallTests):
        entry = tests.entry.replace("()", "")
        call = entry if "." not in entry else "{}().{}".format(*entry.split("."))
        checks = [
            f"assert {call}(*{list(case.args)!r}, **{dict(case.kwargs)!r}) == {case.expected!r}" for case in tests.cases
        ]
        return "\n".join([code, *checks, ""])
    return code


def with_candidate(code: str, entry: str) -> str:
    return f"{code}\ncandidate = {entry}" if "." not in entry else code
