"""From a recipe file, a preset and overrides to a checked `RunConfig`, and back to a file that says what ran."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from assay.config.schema import RunConfig
from assay.config.tree import Tree, fields_of, leaves, merge, parse_overrides, read_yaml, refuse_unknown, set_dotted
from assay.errors import InputError

PRESETS = files("assay.config") / "presets"


def preset_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in PRESETS.iterdir() if entry.name.endswith(".yaml"))


def load_preset(name: str) -> Tree:
    """A whole published recipe (objective, sampling, filters) as a tree."""
    if name not in preset_names():
        raise InputError(f"preset {name!r} does not exist; choose one of {', '.join(preset_names())}")
    return yaml.safe_load((PRESETS / f"{name}.yaml").read_text()) or {}


def load_recipe(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a recipe (or a run directory's config.yaml) and apply `section.key=value` overrides.

    Raises InputError for an unknown key, a wrong type, or values that do not go together.
    """
    path = Path(path)
    tree = read_yaml(str(path / "config.yaml" if path.is_dir() else path))
    tree.pop("provenance", None)
    config = build_config(tree, source=str(path), overrides=parse_overrides(overrides))
    return anchor_paths(config, path.parent)


def anchor_paths(config: RunConfig, folder: Path) -> RunConfig:
    """Reward functions given as `file.py:function` may be relative to the recipe that names them."""
    return config


def build_config(tree: Mapping[str, Any], source: str = "the recipe", overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Preset, then `tree`, then `overrides`; checked as a whole."""
    overrides = overrides or {}
    refuse_unknown(tree, RunConfig, source)
    refuse_unknown(overrides, RunConfig, "command line")
    asked = merge(tree, overrides)
    preset = asked.get("preset", RunConfig.preset)
    base = load_preset(preset) if preset else {}
    try:
        return adapter().validate_python(merge(base, asked))
    except ValidationError as error:
        raise InputError(f"{source}: {explain(error)}") from error


@functools.cache
def adapter() -> TypeAdapter[RunConfig]:
    return TypeAdapter(RunConfig)


def explain(error: ValidationError) -> str:
    """The first problem as one line: the key, the value that was given, what would be right."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("function-", "literal[")))
    given = first.get("input")
    shown = type(given).__name__ if isinstance(given, Mapping | list) else repr(given)
    message = first["msg"]
    return f"{key} is {shown}; {message[0].lower()}{message[1:]}"


def flat_keys(keys: Mapping[str, Any]) -> Tree:
    """Python keyword arguments as a tree: `num_generations=8`, `train={"steps": 5}` or `**{"train.steps": 5}`.

    A bare name finds its section by itself where exactly one section has it.
    """
    sections = fields_of(RunConfig)
    homes: dict[str, list[str]] = {}
    for dotted, _, _ in leaves(RunConfig):
        homes.setdefault(dotted.rpartition(".")[2], []).append(dotted)
    tree: Tree = {}
    for key, value in keys.items():
        if key in sections:
            value = section_tree(value)
            tree = merge(tree, {key: value})
        elif "." in key or len(homes.get(key, [])) == 1:
            set_dotted(tree, key if "." in key else homes[key][0], value)
        elif key in homes:
            raise InputError(f"argument {key!r} could mean {' or '.join(homes[key])}; pass it as **{{'{homes[key][0]}': ...}}")
        else:
            tree[key] = value
    return tree


def section_tree(value: Any) -> Any:
    """An options dataclass given in Python counts with every field it has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value


def plain(value: Any) -> Any:
    """A configuration as YAML-able data; functions become their dotted names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Callable):
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    if isinstance(value, str | int | float | bool | None):
        return value
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
