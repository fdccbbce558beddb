"""What a program is worth: conversations with the sandbox that compare outside it, where the program cannot reach."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from assay.rewards.code_compare import same, same_output
from assay.rewards.code_status import STATUS_OF_END, Grade, Status
from assay.rewards.code_tests import AssertTests, CallTests, Case, StdioTests, Tests
from assay.sandbox import Ended, InfraError, Limits, ProgramEnded, Run, RunResult, Sandbox, Session, Usage
from assay.sandbox.wire import WireError, encode

TEST_GRACE_S = 4.0
ALL_CASES_WALLS = 2.0  # separate runs of one program may together take this many wall limits
DETAIL_CHARS = 500


class Executor(Protocol):
    """Marks programs somewhere: on this host's `LocalExecutor`, or on a service such as `SandboxFusion`."""

    integrity: str
    """`verified` where expected values stay out of the program's reach and isolation was witnessed, else
    `unverified`.
    """

    def submit(
        self, code: str, tests: Tests, limits: Limits | None = None, all_cases: bool = False
    ) -> concurrent.futures.Future[Grade]:
        """Mark a program; the future gives a Grade and never raises for the program's or the executor's failures."""
        ...

    def close(self) -> None: ...


class LocalExecutor:
    """Marks programs in a `Sandbox` of this host."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        level = sandbox.isolation.level
        self.integrity = "verified" if level.label in ("isolated", "restricted") else "unverified"

    def submit(
        self, code: str, tests: Tests, limits: Limits | None = None, all_cases: bool = False
    ) -> concurrent.futures.Future[Grade]:
        """See `Executor`. `all_cases` goes on after a failed case, for partial credit."""
        whole = with_prelude(code, tests)

        async def talk(session: Session) -> Grade:
            if isinstance(tests, CallTests):
                return await grade_calls(session, whole, tests, limits, all_cases)
            if isinstance(tests, StdioTests):
                return await grade_stdio(session, whole, tests, limits, all_cases)
            return await grade_asserts(session, whole, tests, limits)

        async def mark() -> Grade:
            pool = self.sandbox.pool
            runs = 2 if isinstance(tests, AssertTests) else 1
            try:
                grade, retried = await pool.converse(talk, runs, limits or pool.options.limits)
            except InfraError as error:
                return Grade(Status.INFRA_ERROR, level=pool.level.label, detail=str(error), retried=1)
            return replace(grade, level=pool.level.label, retried=grade.retried + retried)

        return self.sandbox.submit(mark())

    def grade(self, code: str, tests: Tests, limits: Limits | None = None, all_cases: bool = False) -> Grade:
        """Mark one program and wait."""
        return self.submit(code, tests, limits, all_cases).result()

    def grade_many(self, jobs: Iterable[tuple[str, Tests]], all_cases: bool = False) -> Iterator[tuple[int, Grade]]:
        """Yield (index, grade) as each is marked."""
        futures = {self.submit(code, tests, None, all_cases): i for i, (code, tests) in enumerate(jobs)}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()

    async def grade_stream(
        self, jobs: Iterable[tuple[str, Tests]], all_cases: bool = False
    ) -> AsyncIterator[tuple[int, Grade]]:
        """`grade_many` for coroutines."""

        async def one(index: int, code: str, tests: Tests) -> tuple[int, Grade]:
            return index, await asyncio.wrap_future(self.submit(code, tests, None, all_cases))

        for task in asyncio.as_completed([one(i, code, tests) for i, (code, tests) in enumerate(jobs)]):
            yield await task

    def close(self) -> None:
        self.sandbox.close()


def with_prelude(code: str, tests: Tests) -> str:
    """The program with its prompt before it, where the prompt begins the function that the program only completes."""
    entry = getattr(tests, "entry", "").split(",")[0].strip().rpartition(".")[2]
    if not tests.prelude or (entry and re.search(rf"^\s*(async\s+)?def\s+{re.escape(entry)}\b", code, re.MULTILINE)):
        return code
    return tests.prelude + code


def after_end(result: RunResult, passed: int, total: int, signals: Iterable[str] = ()) -> Grade:
    """The grade of a program that ended when it should have answered."""
    seen = list(signals)
    if result.ended is Ended.EXITED:
        seen.append("exited_before_answering")
    if result.ended in (Ended.PROTOCOL_ERROR, Ended.BLOCKED_SYSCALL):
        seen.append(result.ended)
    how = f"exit status {result.exit_code}" if result.exit_code is not None else f"signal {result.signal}"
    detail = result.detail or f"{how} {result.stderr[-DETAIL_CHARS:].decode(errors='replace')}".strip()
    return Grade(STATUS_OF_END[result.ended], passed, total, tuple(seen), result.usage, detail=detail)


def after_refusal(answer: dict[str, Any], passed: int, total: int) -> Grade | None:
    """The grade where an answer frame is no value: it raised, or returned something that is not plain data."""
    if "load_error" in answer:
        error = answer["load_error"] if type(answer["load_error"]) is dict else {}
        early = ("exited_before_answering",) if error.get("raised") == "SystemExit" else ()
        status = Status.MEMORY_LIMIT if error.get("raised") == "MemoryError" else Status.LOAD_ERROR
        return Grade(status, passed, total, early, detail=str(error.get("text", ""))[-DETAIL_CHARS:])
    if "no_entry" in answer:
        return Grade(Status.NO_ENTRY_POINT, passed, total, detail=f"the program has no {answer['no_entry']}")
    if "raised" in answer:
        early = ("exited_before_answering",) if answer["raised"] == "SystemExit" else ()
        status = Status.MEMORY_LIMIT if answer["raised"] == "MemoryError" else Status.RUNTIME_ERROR
        return Grade(status, passed, total, early, detail=str(answer.get("text", ""))[-DETAIL_CHARS:])
    if "not_plain" in answer:
        kind = str(answer["not_plain"])[:100]
        return Grade(
            Status.WRONG_ANSWER, passed, total, ("not_plain_result",), detail=f"returned {kind}, not plain data"
        )
    return None


async def load(session: Session, code: str, entries: list[str], limits: Limits | None, total: int) -> Run | Grade:
    """Start the program and wait until it is loaded; a Grade where it did not get there."""
    run = await session.start({"mode": "calls", "code": code, "entries": entries}, limits)
    try:
        loaded = await run.receive()
    except ProgramEnded as end:
        return after_end(end.result, 0, total)
    if loaded != {"loaded": True}:
        result = await run.finish()
        grade = after_refusal(loaded, 0, total) or after_end(replace(result, ended=Ended.PROTOCOL_ERROR), 0, total)
        return replace(grade, usage=result.usage) if result.ended is Ended.EXITED else after_end(result, 0, total)
    return run


async def grade_calls(session: Session, code: str, tests: CallTests, limits: Limits | None, all_cases: bool) -> Grade:
    """Ask case after case; every case needs its own right answer, and the program a clean end."""
    if not tests.fresh_process_per_case:
        return await grade_cases(session, code, tests, tests.cases, limits, all_cases)
    passed, worst, took = 0, Grade(Status.PASSED), 0.0
    most = wall_for_all(session, limits)
    for case in tests.cases:
        grade = await grade_cases(session, code, tests, (case,), limits, all_cases)
        passed += grade.status is Status.PASSED
        worst = grade if worst.status is Status.PASSED else worst
        took += grade.usage.wall_s
        if took > most:
            worst = too_slow(worst)
        if worst.status is not Status.PASSED and (took > most or not all_cases):
            break
    return replace(worst, passed=passed, total=len(tests.cases))


async def grade_cases(
    session: Session, code: str, tests: CallTests, cases: tuple[Case, ...], limits: Limits | None, all_cases: bool
) -> Grade:
    total, passed = len(cases), 0
    run = await load(session, code, [tests.entry], limits, total)
    if isinstance(run, Grade):
        return run
    first_failure: Grade | None = None
    try:
        for case in cases:
            answer = await run.ask(
                {
                    "entry": tests.entry,
                    "args": [encode(arg) for arg in case.args],
                    "kwargs": {name: encode(arg) for name, arg in case.kwargs.items()},
                    "after": tests.argument is not None,
                }
            )
            failure = mark_answer(answer, case, tests)
            passed += failure is None
            first_failure = first_failure or failure
            if failure and not all_cases:
                break
        result = await run.finish()
    except ProgramEnded as end:
        return after_end(end.result, passed, total, first_failure.signals if first_failure else ())
    except WireError as error:
        result = await run.finish(str(error))
    if not result.ok:  # right answers do not excuse a crash on the way out
        return after_end(result, passed, total)
    outcome = first_failure or Grade(Status.PASSED)
    return replace(outcome, passed=passed, total=total, usage=result.usage)


def mark_answer(answer: dict[str, Any], case: Case, tests: CallTests) -> Grade | None:
    """None for a right answer. Raises WireError for an answer that is no answer."""
    refusal = after_refusal(answer, 0, 0)
    if refusal is not None:
        return refusal
    data = answer.get("value")
    if tests.argument is not None:
        after = answer.get("after")
        if type(after) is not list or len(after) != len(case.args):
            raise WireError("an answer without the arguments that were asked for")
        data = after[tests.argument]
    elif "value" not in answer:
        raise WireError("an answer without a value")
    if same(case.expected, data, tests.policy):
        return None
    return Grade(Status.WRONG_ANSWER, detail=f"expected {case.expected!r:.200}, got {data!r:.200}")


async def grade_stdio(session: Session, code: str, tests: StdioTests, limits: Limits | None, all_cases: bool) -> Grade:
    """Run the program once per case; the output must be right and the exit status 0."""
    passed, first_failure, usage, took, retried = 0, None, Usage(), 0.0, 0
    most = wall_for_all(session, limits)
    for given, wanted in tests.cases:
        result, stalled = await run_case(session, code, given, limits)
        took += result.usage.wall_s
        if stalled and not retried and took <= most:
            retried = 1
            session.pool.stalls += 1
            result, _ = await run_case(session, code, given, limits)
            took += result.usage.wall_s
        usage = larger(usage, result.usage)
        session.check()
        failure = mark_output(result, wanted, tests)
        passed += failure is None
        first_failure = first_failure or failure
        if took > most:
            first_failure = too_slow(first_failure or Grade(Status.PASSED))
        if first_failure and (took > most or not all_cases):
            break
    outcome = first_failure or Grade(Status.PASSED)
    return replace(outcome, passed=passed, total=len(tests.cases), usage=usage, retried=retried)


async def run_case(session: Session, code: str, given: str, limits: Limits | None) -> tuple[RunResult, bool]:
    """One run on one input, and whether it looks like a stall of the host; only this run is then tried again."""
    run = await session.start({"mode": "script", "code": code}, limits, given.encode())
    run.excused = True
    return await run.finish(), run.looks_stalled


def wall_for_all(session: Session, limits: Limits | None) -> float:
    """Wall seconds that all runs of one program may take; the marking of one completion must end some time."""
    return ALL_CASES_WALLS * (limits or session.pool.options.limits).wall_seconds


def too_slow(grade: Grade) -> Grade:
    if grade.status is not Status.PASSED:
        return grade
    return replace(grade, status=Status.WALL_LIMIT, detail="all cases together took too long")


def mark_output(result: RunResult, wanted: str, tests: StdioTests) -> Grade | None:
    if not result.ok:
        grade = after_end(result, 0, 0)
        return replace(grade, signals=tuple(x for x in grade.signals if x != "exited_before_answering"))
    text = result.stdout.decode(errors="replace")
    if same_output(wanted, text, tests.policy):
        return None
    return Grade(Status.WRONG_ANSWER, detail=f"expected {wanted!r:.200}, got {text!r:.200}")


def larger(one: Usage, other: Usage) -> Usage:
    """The usage of the costlier run, field by field."""
    return Usage(*(max(getattr(one, x), getattr(other, x)) for x in Usage.__dataclass_fields__))


async def grade_asserts(session: Session, code: str, tests: AssertTests, limits: Limits | None) -> Grade:
    """Two sandboxes: the test text in one, the program in the other, and we carry plain data between them."""
    limits = limits or session.pool.options.limits
    program = await load(session, code, tests.entries, limits, 1)
    if isinstance(program, Grade):
        return program
    patient = replace(limits, wall_seconds=limits.wall_seconds + TEST_GRACE_S)
    test = await session.start({"mode": "asserts", "code": tests.text, "entries": tests.entries}, patient)
    signals: list[str] = []
    while True:
        try:
            frame = await test.receive()
        except ProgramEnded as end:
            return replace(after_end(end.result, 0, 1), signals=tuple(signals))
        if "verdict" in frame:
            break
        try:
            request = {"entry": frame["call"], "args": frame["args"], "kwargs": frame["kwargs"], "after": True}
            answer = await program.ask(request)
            await test.send(carry(answer, len(frame["args"]), signals))
        except ProgramEnded as end:
            return after_end(end.result, 0, 1, signals)
        except WireError as error:
            return after_end(await program.finish(str(error)), 0, 1, signals)
    result = await program.finish()
    await test.finish()
    return verdict(frame, result, tests, tuple(signals))


def carry(answer: dict[str, Any], arguments: int, signals: list[str]) -> dict[str, Any]:
    """An answer of the program, made anew from checked plain data so that nothing else reaches the test."""
    if "raised" in answer:
        if answer["raised"] == "SystemExit":
            signals.append("exited_before_answering")
        return {key: str(answer.get(key, "")) for key in ("raised", "builtin", "message")}
    if "not_plain" in answer:
        signals.append("not_plain_result")
        return {"not_plain": str(answer["not_plain"])}
    after = answer.get("after")
    if "value" not in answer or type(after) is not list or len(after) != arguments:
        raise WireError("an answer that is no answer")
    return {"value": checked(answer["value"]), "after": [checked(item) for item in after]}


def checked(data: Any) -> Any:
    """The same wire data, if it is wire data. Walks it without building sets or dicts of it. Raises WireError."""
    same_shape(data)
    return data


def same_shape(data: Any) -> None:
    from assay.rewards.code_compare import unpack

    kind, body = unpack(data)
    if kind in ("list", "tuple", "set", "frozenset", "dict", "complex"):
        for item in body:
            same_shape(item)


def verdict(frame: dict[str, Any], result: RunResult, tests: AssertTests, signals: tuple[str, ...]) -> Grade:
    """The test's verdict counts only if it asked the program and got past its checks."""
    if not result.ok:
        return after_end(result, 0, 1, signals)
    if frame["verdict"] == "passed" and frame["calls"] > 0 and frame["checks"] >= max(1, getattr(tests, "checks", 1)):
        return Grade(Status.PASSED, 1, 1, signals, result.usage)
    if frame["verdict"] == "passed":
        text = f"the tests ended after {frame['calls']} calls and {frame['checks']} checks: nothing was shown"
        return Grade(Status.WRONG_ANSWER, 0, 1, signals, result.usage, detail=text)
    wrong = frame.get("builtin") == "AssertionError"
    status = Status.WRONG_ANSWER if wrong else Status.RUNTIME_ERROR
    return Grade(status, 0, 1, signals, result.usage, detail=str(frame.get("text", ""))[-DETAIL_CHARS:])
