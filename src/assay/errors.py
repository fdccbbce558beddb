"""The errors a user is meant to read: one line each, printed by the command line without a traceback. A leaf."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave is wrong: says which value, where it came from, and what would be right."""


class RunError(RuntimeError):
    """The run cannot go on: says what happened, what is kept, and how to continue."""
