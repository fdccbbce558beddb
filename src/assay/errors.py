"""The one error a user is meant to read. A leaf."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave is wrong: says which value, where it came from, and what would be right.

    The command line prints it as one line and exits with status 2.
    """
