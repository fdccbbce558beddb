"""A program's syntax tree, names followed through imports and strings folded, for the rules of tampering."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

READS = {"input", "sys.stdin", "fileinput.input", "os.read"}


@dataclass
class Program:
    """A parsed program with the names that its imports bind."""

    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    @classmethod
    def parse(cls, code: str) -> Program:
        """Raises what `ast.parse` raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = cls(ast.parse(code))
        for node in ast.walk(program.tree):
            for child in ast.iter_child_nodes(node):
                program.parents[child] = node
            if isinstance(node, ast.Import):
                for alias in node.names:
                    program.aliases[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    program.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        program.follow_assignments()
        return program

    def follow_assignments(self) -> None:
        """`leave = os._exit` at the top makes `leave` that name; a function of the program hides a built-in."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = self.name(node.value)
                if "." in name:
                    self.aliases[node.targets[0].id] = name
            elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in ("exit", "quit", "input"):
                self.aliases[node.name] = f"program.{node.name}"

    def name(self, node: ast.AST | None) -> str:
        """The dotted name that an expression stands for, imports and getattr followed; empty where it is none."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.name(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        if isinstance(node, ast.Call):
            called = self.name(node.func)
            if called in ("__import__", "importlib.import_module") and node.args:
                return self.text(node.args[0]) or ""
            if called == "getattr" and len(node.args) >= 2 and (attribute := self.text(node.args[1])):
                return f"{self.name(node.args[0])}.{attribute}"
        if isinstance(node, ast.Subscript) and self.name(node.value) == "sys.modules":
            return self.text(node.slice) or ""
        return ""

    def text(self, node: ast.AST) -> str | None:
        """A string that is known from the text, concatenations folded."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.text(node.left), self.text(node.right)
            return left + right if left is not None and right is not None else None
        return None

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield node, self.name(node.func)

    def inside(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The nearest enclosing node of one of these kinds."""
        while (node := self.parents.get(node)) is not None:  # type: ignore[assignment]
            if isinstance(node, kinds):
                return node
        return None

    def reads_input(self, tree: ast.AST | None = None) -> bool:
        """Whether the program, or a part of it, reads standard input."""
        for node in ast.walk(tree or self.tree):
            name = self.name(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            if name in READS or name.startswith("sys.stdin."):
                return True
            if isinstance(node, ast.Call) and self.name(node.func) == "open" and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and first.value == 0:
                    return True
        return False

    def called(self, tree: ast.AST) -> set[str]:
        """Names of everything called in a part of the program."""
        return {self.name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
