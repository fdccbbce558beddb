"""Answers from a table of known inputs: told from honest tables by keys that no rule would produce."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def is_literal(node: ast.AST | None) -> bool:
    if isinstance(node, ast.UnaryOp):
        return is_literal(node.operand)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return all(map(is_literal, node.elts))
    if isinstance(node, ast.Dict):
        return all(key is not None and is_literal(key) for key in node.keys) and all(map(is_literal, node.values))
    return isinstance(node, ast.Constant)


def answer_tables(tree: ast.Module, interactive: bool) -> Iterator[ast.AST]:
    """Where the program answers from a table; `interactive` says that it reads its input."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (table := function_table(node)):
            yield table
        elif interactive and isinstance(node, ast.Dict) and len(node.keys) >= 2 and is_literal(node):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            if len(keys) == len(node.keys) and all(map(looks_like_input, keys)):
                yield node
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If) and whole_input(node)]
    if len(branches) >= 2:
        yield branches[0]


def looks_like_input(text: str) -> bool:
    return bool(re.search(r"\d", text) and re.search(r"\d\s+\S|\n", text))


def whole_input(node: ast.If) -> bool:
    """`if data == "3 4\\n": print(7)`: the whole of a test's input on one side, a literal answer in the body."""
    test = node.test
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [test.left, test.comparators[0]]
    texts = [x.value for x in sides if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    prints = [
        x for part in node.body for x in ast.walk(part)
        if isinstance(x, ast.Call) and getattr(x.func, "id", "") == "print" and all(map(is_literal, x.args))
    ]  # fmt: skip
    return bool(texts) and looks_like_input(texts[0]) and bool(prints)


def function_table(function: ast.FunctionDef) -> ast.AST | None:
    """A function that only maps literal arguments to literal results; None for honest tables over a small domain."""
    params = [arg.arg for arg in function.args.args if arg.arg not in ("self", "cls")]
    if not params:
        return None
    table = list(known_answers(function, params))
    if not table or computes(function, params):
        return None
    keys = [key for _, key, _ in table]
    rich = [key for key in keys if isinstance(key, tuple | list | dict) or (isinstance(key, str) and len(key) >= 20)]
    numbers = sorted(key for key in keys if type(key) is int)
    scattered = len(numbers) >= 3 and numbers != list(range(numbers[0], numbers[0] + len(numbers)))
    numeric = all(isinstance(ast.literal_eval(value), int | float) for _, _, value in table if value is not None)
    return table[0][0] if len(rich) >= 2 or (scattered and numeric) else None


def known_answers(function: ast.FunctionDef, params: list[str]) -> Iterator[tuple[ast.AST, object, ast.expr | None]]:
    """(where, literal input, literal answer) for every branch and every entry of a looked-up dict."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Return):
            key = matched(node.test, params)
            if key is not None and is_literal(node.body[0].value):
                yield node, key, node.body[0].value
        elif isinstance(node, ast.Dict) and is_literal(node) and looked_up(node, function, params):
            yield from ((key, ast.literal_eval(key), value) for key, value in zip(node.keys, node.values) if key)


def matched(test: ast.expr, params: list[str]) -> object | None:
    """The literal that a test compares all parameters with: `a == 3 and b == 4`, `(a, b) == (3, 4)`, `xs == [1, 2]`."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        parts = [matched(value, params) for value in test.values]
        return tuple(parts) if len(parts) >= 2 and None not in parts else None
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return None
    left, right = test.left, test.comparators[0]
    used = {x.id for x in ast.walk(left) if isinstance(x, ast.Name)}
    if not used or not used <= {*params, "tuple", "list", "str", "repr"} or not is_literal(right):
        return None
    try:
        value: object = ast.literal_eval(right)
    except ValueError:
        return None
    return value


def looked_up(table: ast.Dict, function: ast.FunctionDef, params: list[str]) -> bool:
    """Whether the function returns a look-up of its bare parameters (`{...}[n]`, `table.get((a, b), 0)`)."""
    names = {"tuple", "str", "repr", "table", *params}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and node.value is table:
            names |= {x.id for x in node.targets if isinstance(x, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Subscript | ast.Call):
            used = {x.id for x in ast.walk(node.value) if isinstance(x, ast.Name)}
            if used and used <= names and used & set(params):
                return True
    return False


def computes(function: ast.FunctionDef, params: list[str]) -> bool:
    """Whether any result is worked out rather than looked up."""
    for node in ast.walk(function):
        if isinstance(
            node, ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp | ast.BinOp
        ):
            return True
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            owner = node.value.func
            if not (isinstance(owner, ast.Attribute) and owner.attr == "get"):
                return True
    return False
