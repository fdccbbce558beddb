"""What runs inside the child beside the program: loads it, feeds it, sends plain answers out.

Nothing here decides anything. The program shares this process and may patch all of it; the worst it can achieve is a
wrong answer, because what counts as right stays outside. Modes: `script` runs the text as a program; `calls` answers
one request after another; `asserts` runs a test text whose function under test is only a stub that asks another
sandbox.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import collections
import io
import linecache
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

from assay.sandbox import wire

FILE = "program.py"
TRACEBACK_CHARS = 2000


class Link:
    """Our end of the wire: frames out, frames in, blocking."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = bytearray()

    def send(self, frame: dict[str, Any]) -> None:
        data = memoryview(wire.pack(frame))
        while data:
            data = data[os.write(self.fd, data) :]

    def receive(self) -> dict[str, Any] | None:
        """The next frame; None when the other side has no more."""
        while True:
            if len(self.buffer) >= 4:
                (length,) = wire.HEADER.unpack_from(self.buffer)
                if len(self.buffer) >= 4 + length:
                    return wire.take(self.buffer, length)
            data = os.read(self.fd, 65536)
            if not data:
                return None
            self.buffer += data


def main(fd: int) -> int:
    """Say that the confinement stands, take the job, do it; returns the exit status."""
    link = Link(fd)
    link.send({"ready": True})
    job = link.receive()
    if job is None:
        return 0
    fresh_streams()
    os.environ.clear()
    os.environ.update(HOME=os.getcwd(), TMPDIR=os.getcwd(), PATH="/usr/bin:/bin", LANG="C.UTF-8")
    sys.argv = [FILE, *job.get("argv", ())]
    sys.set_int_max_str_digits(0)
    modes: dict[str, Callable[[Link, dict[str, Any]], int]] = {
        "script": run_script,
        "calls": run_calls,
        "asserts": run_asserts,
    }
    status = modes[job["mode"]](link, job)
    flush()
    return status


def fresh_streams() -> None:
    """New stream objects on descriptors 0 to 2, as an interpreter that was just started would have."""
    raw = [open(fd, mode, closefd=False) for fd, mode in ((0, "rb"), (1, "wb"), (2, "wb"))]  # noqa: SIM115
    sys.stdin = io.TextIOWrapper(raw[0], encoding="utf-8")
    sys.stdout = io.TextIOWrapper(raw[1], encoding="utf-8")
    sys.stderr = io.TextIOWrapper(raw[2], encoding="utf-8", errors="backslashreplace", line_buffering=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 - the untrusted program's own object, closed or replaced: nothing of ours
            continue


def load(code: str, name: str) -> dict[str, Any]:
    """Run the text as module `name` and return its namespace."""
    module = types.ModuleType(name)
    module.__file__ = FILE
    sys.modules[name] = module
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    exec(compile(code, FILE, "exec"), module.__dict__)
    return module.__dict__


def run_script(link: Link, job: dict[str, Any]) -> int:
    """The text as `__main__`; exit status, threads and exit handlers as the interpreter has them."""
    status = 0
    try:
        load(job["code"], "__main__")
    except SystemExit as stop:
        status = exit_status(stop)
    except BaseException:  # noqa: BLE001 - whatever it raised goes to its own stderr
        show(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except Exception:  # noqa: BLE001 - an interpreter says the same: what was printed is lost
        status = status or 120
    return status


def show(kind: Any, error: Any, trace: Any) -> None:
    """The program's excepthook; by default a traceback with its source, without our own frames."""
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(kind, error, trace)
        return
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename != FILE:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


def exit_status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as a frame: its name, the built-in exception it is, the end of its traceback."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    try:
        text = "".join(traceback.format_exception(error))[-TRACEBACK_CHARS:]
    except Exception:  # noqa: BLE001 - a hostile __str__
        text = "(no traceback)"
    message = error.args[0] if error.args and type(error.args[0]) is str else ""
    return {
        "raised": type(error).__name__,
        "builtin": kinds[0] if kinds else "",
        "message": message[:500],
        "text": text,
    }


def resolve(namespace: dict[str, Any], entry: str) -> Callable[..., Any]:
    """The function that `f`, `Class.method` or `Class().method` names; a new instance for each call of a method."""
    owner, _, method = entry.replace("()", "").rpartition(".")
    if not owner:
        return namespace[entry]
    kind = namespace[owner]
    getattr(kind, method)
    return lambda *args, **kwargs: getattr(kind(), method)(*args, **kwargs)


def run_calls(link: Link, job: dict[str, Any]) -> int:
    """Load the program, then answer requests until there are no more."""
    try:
        namespace = load(job["code"], "solution")
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt too are answers here
        link.send({"load_error": describe(error)})
        return 1
    functions = {}
    for entry in job["entries"]:
        try:
            functions[entry] = resolve(namespace, entry)
        except (KeyError, AttributeError):
            link.send({"no_entry": entry})
            return 1
    link.send({"loaded": True})
    while (request := link.receive()) is not None:
        link.send({**answer(functions[request["entry"]], request), "id": request["id"]})
    return 0


def answer(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    args = [wire.decode(arg) for arg in request["args"]]
    kwargs = {name: wire.decode(arg) for name, arg in request["kwargs"].items()}
    try:
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: it is the program's answer
        return describe(error)
    try:
        frame = {"value": wire.encode(value, convert=plainer)}
        if request["after"]:
            frame["after"] = [wire.encode(arg, convert=plainer) for arg in args]
        return frame
    except wire.NotPlain as error:
        return {"not_plain": error.kind}


def plainer(value: Any) -> Any:
    """Well-known library types as the plain type that they equal; the value itself where there is none."""
    if type(value) in (collections.Counter, collections.defaultdict, collections.OrderedDict):
        return dict(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return value


class ProgramError(Exception):
    """The program under test raised something that tests must not mistake for a failed assertion or an exit."""


class Stub:
    """Stands in the test text for a function of the program; asks the other sandbox and mirrors changed arguments."""

    def __init__(self, link: Link, entry: str, counts: dict[str, int]) -> None:
        self.link, self.entry, self.counts = link, entry, counts
        self.__name__ = entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        encoded = [wire.encode(arg) for arg in args]
        named = {name: wire.encode(arg) for name, arg in kwargs.items()}
        self.link.send({"call": self.entry, "args": encoded, "kwargs": named})
        reply = self.link.receive()
        if reply is None:
            os._exit(1)
        self.counts["calls"] += 1
        if "raised" in reply:
            kind = getattr(builtins, reply["builtin"], None)
            if isinstance(kind, type) and issubclass(kind, Exception) and kind is not AssertionError:
                raise kind(reply["message"])
            raise ProgramError(f"{reply['raised']}: {reply['message']}")
        if "not_plain" in reply:
            raise ProgramError(f"returned {reply['not_plain']}, which is not plain data")
        for arg, after in zip(args, reply["after"], strict=True):
            mirror(arg, wire.decode(after))
        return wire.decode(reply["value"])


def mirror(arg: Any, after: Any) -> None:
    """Make a mutable argument what the program left it as."""
    if type(arg) is not type(after):
        raise ProgramError("an argument changed its type")
    if type(arg) is list:
        arg[:] = after
    elif type(arg) in (dict, set):
        arg.clear()
        arg.update(after)


class CountChecks(ast.NodeTransformer):
    """Adds a count after every assert statement, so that a test text which never got there shows."""

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        count = ast.parse("__assay_counts__['checks'] += 1").body[0]
        for part in ast.walk(count):
            ast.copy_location(part, node)
        return [node, count]


def run_asserts(link: Link, job: dict[str, Any]) -> int:
    """Run the test text against stubs and say how it went; no program text comes into this process."""
    counts = {"calls": 0, "checks": 0}
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    space = module.__dict__
    space["__assay_counts__"] = counts
    for entry in job["entries"]:
        owner, _, method = entry.replace("()", "").rpartition(".")
        stub = Stub(link, entry, counts)
        if owner:
            kind = space.setdefault(owner, type(owner, (), {}))
            setattr(kind, method, staticmethod(stub))
        else:
            space[entry] = stub
        space.setdefault("candidate", stub)
    text = job["code"]
    linecache.cache["tests.py"] = (len(text), None, text.splitlines(keepends=True), "tests.py")
    verdict: dict[str, Any] = {"verdict": "passed"}
    try:
        tree = ast.fix_missing_locations(CountChecks().visit(ast.parse(text, "tests.py")))
        exec(compile(tree, "tests.py", "exec"), space)
        run_unittests(space, counts)
    except BaseException as error:  # noqa: BLE001 - the verdict frame says what it was
        verdict = {"verdict": "failed", **describe(error)}
    link.send({**verdict, **counts})
    return 0


def run_unittests(space: dict[str, Any], counts: dict[str, int]) -> None:
    """Run the TestCase classes that the test text defines."""
    if "unittest" not in sys.modules:
        return
    import unittest

    cases = [x for x in space.values() if isinstance(x, type) and issubclass(x, unittest.TestCase)]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    outcome = unittest.TestResult()
    suite.run(outcome)
    counts["checks"] += outcome.testsRun - len(outcome.skipped)
    bad = outcome.failures + outcome.errors
    if bad:
        raise AssertionError(bad[0][1][-TRACEBACK_CHARS:])
