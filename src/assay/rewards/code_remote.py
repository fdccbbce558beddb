"""An `Executor` that marks programs on a SandboxFusion service over HTTP, for fleets and machines that must run no
code.
"""

from __future__ import annotations

import concurrent.futures
import json
import secrets
import urllib.request
from typing import Any

from assay.errors import InputError
from assay.rewards.code_compare import same_output
from assay.rewards.code_grade import Grade, Status, mark_answer, with_prelude
from assay.rewards.code_tests import AssertTests, CallTests, StdioTests, Tests
from assay.sandbox import Limits
from assay.sandbox.wire import WireError, encode

# Runs there beside the program: reads all calls from standard input, writes one line of plain data per call. The
# expected values stay here.
CALLER = """
import base64, json, os, sys, types
exec(compile(WIRE, "wire.py", "exec"), (wire := types.ModuleType("wire")).__dict__)
job = json.loads(sys.stdin.read())
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def put(frame): out.write(job["mark"] + json.dumps(frame) + "\\n"); out.flush()
space = {"__name__": "solution"}
try:
    exec(compile(job["code"], "program.py", "exec"), space)
    owner, _, method = job["entry"].replace("()", "").rpartition(".")
    entry = getattr(space[owner](), method) if owner else space[job["entry"]]
except BaseException as error:
    put({"load_error": {"raised": type(error).__name__, "text": str(error)}})
    sys.exit(1)
for call in job["calls"]:
    args = [wire.decode(x) for x in call["args"]]
    try:
        value = entry(*args, **{k: wire.decode(x) for k, x in call["kwargs"].items()})
    except BaseException as error:
        put({"raised": type(error).__name__, "text": str(error)})
        continue
    try:
        put({"value": wire.encode(value), "after": [wire.encode(x) for x in args]})
    except wire.NotPlain as error:
        put({"not_plain": error.kind})
"""


class SandboxFusion:
    """Marks calls and stdio tests on a SandboxFusion server (github.com/bytedance/SandboxFusion, POST /run_code).

    `integrity` is `unverified`: expected values stay here, but what isolates programs from one another and from the
    network there is the server's business and was not witnessed. A server that fails or cannot be reached gives
    `infra_error` after one retry.
    """

    integrity = "unverified"

    def __init__(self, url: str, limits: Limits | None = None, connections: int = 16) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"sandbox service url is {url!r}; give the server's address, as http://host:8080")
        self.url = url.rstrip("/") + "/run_code"
        self.limits = limits or Limits()
        self.pool = concurrent.futures.ThreadPoolExecutor(connections, thread_name_prefix="sandbox-fusion")

    def submit(
        self, code: str, tests: Tests, limits: Limits | None = None, all_cases: bool = False
    ) -> concurrent.futures.Future[Grade]:
        """See `Executor`. Raises InputError for asserts, which need two sandboxes that talk to each other."""
        if isinstance(tests, AssertTests):
            raise InputError("tests of kind asserts need the local sandbox; give calls or stdio to a remote service")
        return self.pool.submit(self.mark, with_prelude(code, tests), tests, limits or self.limits, all_cases)

    def mark(self, code: str, tests: CallTests | StdioTests, limits: Limits, all_cases: bool) -> Grade:
        if isinstance(tests, CallTests):
            return self.mark_calls(code, tests, limits)
        passed, first = 0, None
        for given, wanted in tests.cases:
            reply = self.run(code, given, limits)
            failure = failed_run(reply)
            if failure is None and not same_output(wanted, reply["stdout"] or "", tests.policy):
                failure = Grade(Status.WRONG_ANSWER, detail=f"expected {wanted!r:.200}, got {reply['stdout']!r:.200}")
            if failure is not None and failure.status is Status.INFRA_ERROR:
                return failure
            passed += failure is None
            first = first or failure
            if failure is not None and not all_cases:
                break
        status = first.status if first else Status.PASSED
        return Grade(status, passed, len(tests.cases), level="remote", detail=first.detail if first else "")

    def mark_calls(self, code: str, tests: CallTests, limits: Limits) -> Grade:
        from assay.sandbox import wire

        with open(wire.__file__) as file:
            program = f"WIRE = {file.read()!r}\n{CALLER}"
        mark = secrets.token_hex(8)
        calls = [
            {"args": [encode(x) for x in case.args], "kwargs": {k: encode(x) for k, x in case.kwargs.items()}}
            for case in tests.cases
        ]
        reply = self.run(
            program, json.dumps({"mark": mark, "code": code, "entry": tests.entry, "calls": calls}), limits
        )
        failure = failed_run(reply)
        lines = [line[len(mark) :] for line in (reply["stdout"] or "").splitlines() if line.startswith(mark)]
        if failure is None and len(lines) != len(calls):
            failure = Grade(Status.PROTOCOL_ERROR, detail=f"{len(lines)} answers to {len(calls)} calls")
        if failure is not None:
            return Grade(failure.status, 0, len(calls), level="remote", detail=failure.detail)
        passed, first = 0, None
        for line, case in zip(lines, tests.cases):
            try:
                wrong = mark_answer(wire.parse(line.encode()), case, tests)
            except WireError as error:
                wrong = Grade(Status.PROTOCOL_ERROR, detail=str(error))
            passed += wrong is None
            first = first or wrong
        status = first.status if first else Status.PASSED
        signals = first.signals if first else ()
        return Grade(status, passed, len(calls), signals, level="remote", detail=first.detail if first else "")

    def run(self, code: str, stdin: str, limits: Limits) -> dict[str, Any]:
        """One run there: keys status, return_code, stdout, stderr; status SandboxError where the service failed
        twice.
        """
        body = json.dumps(
            {
                "code": code,
                "language": "python",
                "stdin": stdin,
                "run_timeout": limits.wall_seconds,
                "memory_limit_MB": limits.memory_mb,
            }
        ).encode()
        problem = ""
        for _ in range(2):
            request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=limits.wall_seconds + 30) as response:
                    reply = json.load(response)
                if reply.get("status") != "SandboxError" and reply.get("run_result"):
                    return dict(reply["run_result"])
                problem = str(reply.get("message") or reply)
            except (OSError, ValueError) as error:
                problem = str(error)
        return {"status": "SandboxError", "return_code": None, "stdout": "", "stderr": problem}

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def failed_run(reply: dict[str, Any]) -> Grade | None:
    """A failed grade for a run that did not end well, or None."""
    if reply["status"] == "SandboxError":
        return Grade(Status.INFRA_ERROR, level="remote", detail=f"the sandbox service failed: {reply['stderr'][-300:]}")
    if reply["status"] == "TimeLimitExceeded":
        return Grade(Status.WALL_LIMIT, level="remote")
    if reply["status"] != "Finished" or reply["return_code"] != 0:
        return Grade(Status.RUNTIME_ERROR, level="remote", detail=str(reply.get("stderr") or "")[-300:])
    return None
