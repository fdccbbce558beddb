"""Rooms import only rooms that the design lists above them; leaves import none."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "assay"
ORDER = [
    "errors", "records", "ranks", "objectives", "sandbox", "rewards", "prompts", "policy",
    "rollouts", "training", "monitoring", "evaluation", "config", "api", "cli",
]  # fmt: skip
LEAVES = {"errors", "records", "ranks", "objectives", "sandbox"}
ALLOWED_THIRD_PARTY = {
    "objectives": {"torch"},
    "sandbox": set(),
    "records": {"numpy"},
    "errors": set(),
    "ranks": {"torch", "accelerate"},
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            found.add(node.module or "")
            if node.module == "assay":
                found |= {f"assay.{alias.name}" for alias in node.names}
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or not path.stem.startswith("__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_upwards(path):
    room = room_of(path)
    own = ORDER.index(room)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "assay" and len(parts) > 1 and parts[1] in ORDER and parts[1] != room:
            assert room not in LEAVES or parts[1] == "errors", f"{room} is a leaf but imports {name}"
            assert ORDER.index(parts[1]) < own, f"{room} imports {name}, which lies below it"


@pytest.mark.parametrize("room", sorted(ALLOWED_THIRD_PARTY))
def test_leaves_stay_leaves(room):
    import sys

    for path in (path for path in FILES if room_of(path) == room):
        for name in imports(path):
            top = name.split(".")[0]
            allowed = top in sys.stdlib_module_names or top == "assay" or top in ALLOWED_THIRD_PARTY[room]
            assert allowed, f"{path}: {room} may not import {name}"
