"""Rows of the usual code datasets as tests: one small function each, from a row to `Tests`."""

from __future__ import annotations

import ast
import base64
import json
import pickle
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from assay.errors import InputError
from assay.rewards.code_compare import JSON_POLICY
from assay.rewards.code_tests import AssertTests, CallTests, Case, StdioTests, Tests

LIVECODEBENCH_TOLERANCE = 1e-9


def humaneval(row: Mapping[str, Any]) -> Tests:
    """openai/openai_humaneval and evalplus: `prompt`, `test` (defines check), `entry_point`."""
    text = f"{row['test']}\n\ncheck({row['entry_point']})\n"
    return AssertTests(text, row["entry_point"], prelude=row.get("prompt", ""))


def mbpp(row: Mapping[str, Any]) -> Tests:
    """google-research-datasets/mbpp: `test_list`, `test_setup_code` (full) or `test_imports` (sanitized)."""
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or ())
    text = "\n".join([setup, *row["test_list"], *(row.get("challenge_test_list") or ())])
    return AssertTests(text, ",".join(called_names(text)))


def called_names(text: str) -> list[str]:
    """Functions that the asserts call and nothing in the text or the language defines: those under test."""
    tree = ast.parse(text)
    known = set(dir(__builtins__)) | set(__builtins__ if isinstance(__builtins__, dict) else ())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return list(dict.fromkeys(name for name in calls if name not in known))


def apps(row: Mapping[str, Any]) -> Tests:
    """codeparrot/apps and TACO: `input_output` JSON with inputs, outputs and, for functions, fn_name."""
    data = row["input_output"]
    data = json.loads(data) if isinstance(data, str) else data
    name = data.get("fn_name")
    if not name:
        return StdioTests(
            tuple((as_text(given), as_text(wanted)) for given, wanted in zip(data["inputs"], data["outputs"]))
        )
    # Outputs of functions are wrapped in a list of one; arguments are a list.
    cases = tuple(
        Case(tuple(given), wanted[0] if isinstance(wanted, list) and len(wanted) == 1 else wanted)
        for given, wanted in zip(data["inputs"], data["outputs"])
    )
    entry = f"Solution.{name}" if "class Solution" in (row.get("starter_code") or "") else name
    return CallTests(entry, cases, JSON_POLICY)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value))


def livecodebench(row: Mapping[str, Any]) -> Tests:
    """livecodebench/code_generation_lite: public and private test cases, `metadata.func_name`, `starter_code`."""
    cases = [*read_cases(row.get("public_test_cases")), *read_cases(row.get("private_test_cases"))]
    if not cases:
        raise InputError("livecodebench row: neither public_test_cases nor private_test_cases holds a case")
    if cases[0]["testtype"] == "stdin":
        return StdioTests(tuple((case["input"], case["output"]) for case in cases))
    metadata = row.get("metadata") or {}
    metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
    name = metadata["func_name"]
    entry = f"Solution.{name}" if "class Solution" in (row.get("starter_code") or "") else name
    calls = tuple(
        Case(tuple(json.loads(line) for line in case["input"].split("\n") if line), json.loads(case["output"]))
        for case in cases
    )
    return CallTests(entry, calls, JSON_POLICY)


class PlainUnpickler(pickle.Unpickler):
    """LiveCodeBench packs a JSON text in a pickle; nothing but plain data may come out of it."""

    def find_class(self, module: str, name: str) -> Any:
        raise InputError(f"livecodebench row: private_test_cases names {module}.{name}; only plain data is read")


def read_cases(packed: Any) -> list[dict[str, Any]]:
    if not packed:
        return []
    if not isinstance(packed, str):
        return list(packed)
    try:
        return list(json.loads(packed))
    except ValueError:
        import io

        return list(json.loads(PlainUnpickler(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load()))


FORMATS: dict[str, Callable[[Mapping[str, Any]], Tests]] = {
    "humaneval": humaneval,
    "mbpp": mbpp,
    "apps": apps,
    "livecodebench": livecodebench,
}


def read_row(row: Mapping[str, Any], form: str) -> Tests:
    """The tests of a dataset row in a named format. Raises InputError where the row does not have it."""
    if form not in FORMATS:
        raise InputError(f"code format {form!r} is unknown; the formats are {', '.join(FORMATS)}")
    try:
        return FORMATS[form](row)
    except KeyError as error:
        raise InputError(f"a row in {form} format has no {error.args[0]!r}") from error
