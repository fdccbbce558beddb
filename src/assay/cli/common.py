"""What every command prints in the same way."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_json(content: Any) -> None:
    """One machine-readable object on standard output, and nothing else there."""
    json.dump(content, sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def note(text: str) -> None:
    """A line for the person, on standard error."""
    print(text, file=sys.stderr)


def wide_console() -> Console:
    """A console whose tables are not squeezed into 80 columns where nobody's terminal asks for it."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=120)
