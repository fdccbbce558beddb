"""The hidden tests of a program, as plain data, and how a dataset row says them."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from assay.errors import InputError
from assay.rewards.code_compare import EXACT, JSON_POLICY, Policy
from assay.sandbox.wire import NotPlain, encode


@dataclass(frozen=True)
class Case:
    """One call: arguments and the value that must come back."""

    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CallTests:
    """Call `entry` (`f`, `Solution.f` or `Solution().f`) with plain arguments and compare what it returns.

    `argument` n compares the n-th argument after the call instead, for functions that change it in place. State is kept
    between cases unless `fresh_process_per_case`.
    """

    entry: str
    cases: tuple[Case, ...]
    policy: Policy = EXACT
    argument: int | None = None
    fresh_process_per_case: bool = False
    prelude: str = ""

    def __post_init__(self) -> None:
        cases = tuple(case if isinstance(case, Case) else Case(tuple(case[0]), case[1]) for case in self.cases)
        object.__setattr__(self, "cases", cases)
        need_cases(cases)
        for index, case in enumerate(cases):
            try:
                encode([list(case.args), dict(case.kwargs), case.expected])
            except NotPlain as error:
                raise InputError(
                    f"tests: case {index} holds {error.kind}; arguments and expected must be plain data"
                ) from error
            if self.argument is not None and not 0 <= self.argument < len(case.args):
                raise InputError(f"tests: argument is {self.argument}, but case {index} has {len(case.args)} arguments")


@dataclass(frozen=True)
class StdioTests:
    """Run the program once per case with a standard input and compare what it prints."""

    cases: tuple[tuple[str, str], ...]
    policy: Policy = EXACT
    prelude: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple((str(given), str(wanted)) for given, wanted in self.cases))
        need_cases(self.cases)


@dataclass(frozen=True)
class AssertTests:
    """A test text with assert statements or unittest classes, run in a sandbox of its own that never sees the program.

    There `entry` (several names separated by commas) and `candidate` are stubs that ask the program's sandbox.
    Arguments and results must be plain data; lists, dicts and sets that the program changes are changed in the test
    too.
    """

    text: str
    entry: str
    prelude: str = ""

    def __post_init__(self) -> None:
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            raise InputError(f"tests: the assert text does not parse: {error}") from error
        if not self.entries:
            raise InputError("tests: asserts need `entry`, the name of the function under test")
        object.__setattr__(self, "checks", sum(isinstance(node, ast.Assert) for node in tree.body))

    @property
    def entries(self) -> list[str]:
        return [name.strip() for name in self.entry.split(",") if name.strip()]


Tests = CallTests | StdioTests | AssertTests


def need_cases(cases: tuple[Any, ...]) -> None:
    if not cases:
        raise InputError("tests: there is no case; a program that nothing is asked of cannot be marked")


def parse_tests(value: Any) -> Tests:
    """Tests from a dataset row: a mapping or its JSON text with `kind` calls, stdio or asserts. Raises InputError.

    calls: entry, cases of {args, kwargs, expected} or [args, expected]; stdio: cases of {stdin, stdout} or [stdin,
    stdout]; asserts: text, entry. The keys of `Policy` may stand beside them; `literal: true` says that args and
    expected are texts of Python literals, which can say tuples, sets and integer keys.

    >>> parse_tests({"kind": "calls", "entry": "f", "cases": [{"args": [3, 4], "expected": 25}]}).entry
    'f'
    """
    if isinstance(value, CallTests | StdioTests | AssertTests):
        return value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InputError(f"tests: neither a mapping nor its JSON text: {error}") from error
    if not isinstance(value, Mapping):
        raise InputError(f"tests: {type(value).__name__}; give a mapping with kind, entry and cases")
    kinds: dict[str, Callable[[Mapping[str, Any]], Tests]] = {
        "calls": parse_calls,
        "stdio": parse_stdio,
        "asserts": parse_asserts,
    }
    kind = value.get("kind")
    if kind not in kinds:
        raise InputError(f"tests: kind is {kind!r}; the kinds are {', '.join(kinds)}")
    try:
        tests = kinds[kind](value)
    except KeyError as error:
        raise InputError(f"tests of kind {kind}: {error.args[0]!r} is missing") from error
    except (TypeError, ValueError, SyntaxError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"tests of kind {kind}: {error}") from error
    return tests


def parse_policy(row: Mapping[str, Any], default: Policy) -> Policy:
    chosen = {x.name: row[x.name] for x in fields(Policy) if row.get(x.name) is not None}
    return Policy(**{**{x.name: getattr(default, x.name) for x in fields(Policy)}, **chosen})


def parse_calls(row: Mapping[str, Any]) -> CallTests:
    literal = bool(row.get("literal"))
    read = ast.literal_eval if literal else lambda value: value
    cases = []
    for case in row["cases"]:
        if not isinstance(case, Mapping):
            case = {"args": case[0], "expected": case[1]}
        cases.append(Case(tuple(read(case["args"])), read(case["expected"]), dict(case.get("kwargs") or {})))
    policy = parse_policy(row, EXACT if literal else JSON_POLICY)
    fresh = bool(row.get("fresh_process_per_case"))
    return CallTests(row["entry"], tuple(cases), policy, row.get("argument"), fresh, row.get("prelude") or "")


def parse_stdio(row: Mapping[str, Any]) -> StdioTests:
    cases = [(case["stdin"], case["stdout"]) if isinstance(case, Mapping) else tuple(case) for case in row["cases"]]
    return StdioTests(tuple(cases), parse_policy(row, EXACT), row.get("prelude") or "")


def parse_asserts(row: Mapping[str, Any]) -> AssertTests:
    text = row["text"]
    return AssertTests(text if isinstance(text, str) else "\n".join(text), row["entry"], row.get("prelude") or "")
