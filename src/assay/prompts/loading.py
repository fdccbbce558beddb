"""Functions that a user names in a recipe."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.errors import InputError


def load_function(spec: str, key: str) -> Callable[..., Any]:
    """The function that `file.py:name` or `package.module:name` names."""
    place, colon, name = spec.rpartition(":")
    if not colon:
        raise InputError(f"{key} {spec!r} is not of the form file.py:function or package.module:function")
    try:
        if place.endswith(".py"):
            module_spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert module_spec is not None
            assert module_spec.loader is not None
            module = importlib.util.module_from_spec(module_spec)
            module_spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise InputError(f"{key} {spec!r}: {error}; the file or module must exist") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{key} {spec!r}: {place} has no function {name!r}")
    return function
