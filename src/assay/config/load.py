"""From a recipe file, a preset and overrides to a checked `RunConfig`, and back to a file that says what ran."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Mapping
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from assay.config.schema import RunConfig
from assay.config.tree import Tree, fields_of, leaves, merge, parse_overrides, read_yaml, refuse_unknown, set_dotted
from assay.errors import InputError
from assay.objectives import PRESETS as PRESET_TABLES
from assay.objectives import preset
from assay.rewards.options import RewardSpec

PRESETS = files("assay.config") / "presets"


def preset_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in PRESETS.iterdir() if entry.name.endswith(".yaml"))


def load_preset(name: str) -> Tree:
    """A whole published recipe (sampling, refill, number of generations) as a tree; it names an objective preset."""
    if name not in preset_names():
        close = difflib.get_close_matches(name, preset_names(), n=1)
        raise InputError(
            f"preset is {name!r}; {f'did you mean {close[0]}? ' if close else ''}known are {', '.join(preset_names())}"
        )
    return yaml.safe_load((PRESETS / f"{name}.yaml").read_text())


def load_recipe(path: str | Path, overrides: Iterable[str] | Mapping[str, Any] = ()) -> RunConfig:
    """Read a recipe (or a run directory's config.yaml) and apply overrides: `section.key=value` words, or a tree.

    Raises InputError for an unknown key, a wrong type, or values that do not go together.
    """
    path = Path(path)
    tree = read_yaml(str(path / "config.yaml" if path.is_dir() else path))
    over = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides)
    return build_config(tree, source=str(path), overrides=over)


def build_config(
    tree: Mapping[str, Any], source: str = "the recipe", overrides: Mapping[str, Any] | None = None
) -> RunConfig:
    """Preset, then `tree`, then `overrides`; checked as a whole. A run's config.yaml has the preset in it already."""
    stored = "provenance" in tree
    tree, overrides = normalised(tree, source), normalised(overrides or {}, "command line")
    refuse_unknown(tree, RunConfig, source)
    refuse_unknown(overrides, RunConfig, "command line")
    asked = merge(tree, overrides)
    try:
        return adapter().validate_python(asked if stored else over_preset(asked))
    except ValidationError as error:
        raise InputError(f"{source}: {explain(error)}") from error


def over_preset(asked: Tree) -> Tree:
    """What was asked for, on top of what the preset and the dialect fill in."""
    name = asked.get("preset", RunConfig.preset)
    if name is None:
        return asked
    base = load_preset(name)
    objective_preset = base.pop("objective_preset")
    try:
        spec = preset(objective_preset, dialect=asked.get("dialect"), **asked.get("objective", {}))
    except ValueError as error:
        raise InputError(f"objective: {error}") from error
    # The dialect has read the asked values in its framework's way, so its reading of them is what counts.
    fields = (
        plain(spec)
        if asked.get("dialect")
        else {**PRESET_TABLES[objective_preset].fields, **asked.get("objective", {})}
    )
    return {**merge(base, asked), "objective": fields}


def normalised(tree: Mapping[str, Any], source: str) -> Tree:
    """Shorthands spelled out: `rewards` may be a plain list, and a reward may be just its name or function."""
    tree = {key: value for key, value in tree.items() if key not in ("measured", "provenance")}
    rewards, evaluation = tree.get("rewards"), tree.get("eval")
    if isinstance(rewards, str | list | tuple) or callable(rewards):
        rewards = {"functions": rewards}
    if isinstance(rewards, Mapping) and "functions" in rewards:
        tree["rewards"] = {**rewards, "functions": spelled(rewards["functions"])}
    if isinstance(evaluation, Mapping) and evaluation.get("rewards"):
        tree["eval"] = {**evaluation, "rewards": spelled(evaluation["rewards"])}
    return tree


def spelled(functions: Any) -> Any:
    """A list of rewards with each one as a mapping; anything else as it is, for the check that names it."""
    if isinstance(functions, str) or callable(functions):
        functions = [functions]
    if not isinstance(functions, list | tuple):
        return functions
    return [item if isinstance(item, Mapping | RewardSpec) else {"fn": item} for item in functions]


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

    A bare name finds its section by itself where exactly one section has it, or one of those that say how to train.
    """
    sections = fields_of(RunConfig)
    tree: Tree = {}
    for key, value in keys.items():
        homes = homes_of(key)
        if key in sections:
            tree = merge(tree, {key: section_tree(value)})
        elif "." in key:
            set_dotted(tree, key, value)
        elif len(homes) == 1:
            set_dotted(tree, homes[0], value)
        elif homes:
            raise InputError(f"argument {key!r} could mean {' or '.join(homes)}; pass it as **{{'{homes[0]}': ...}}")
        else:
            tree[key] = value
    return tree


def homes_of(name: str) -> list[str]:
    """The dotted keys that a bare name may stand for; sections that say how to train come before the others."""
    homes = [leaf.key for leaf in leaves(RunConfig) if leaf.key.rpartition(".")[2] == name]
    first = [dotted for dotted in homes if dotted.partition(".")[0] in ("model", "rollout", "objective", "train")]
    return first if len(first) == 1 else homes


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
    if callable(value):
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
