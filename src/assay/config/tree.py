"""Plain-dictionary work on configuration trees: merge, dotted keys, unknown keys with the nearest name."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from assay.errors import InputError

Tree = dict[str, Any]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """`over` on top of `base`, section by section; lists and scalars are replaced whole."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def set_dotted(tree: Tree, dotted: str, value: Any) -> None:
    """Set `section.key` in place, creating sections on the way."""
    *sections, last = dotted.split(".")
    for section in sections:
        child = tree.setdefault(section, {})
        if not isinstance(child, dict):
            raise InputError(f"override {dotted!r}: {section!r} is a value, not a section")
        tree = child
    tree[last] = value


def parse_overrides(items: typing.Iterable[str]) -> Tree:
    """`section.key=value` words as a tree; values are YAML.

    >>> parse_overrides(["train.steps=30", "rollout.temperature=0.9"])
    {'train': {'steps': 30}, 'rollout': {'temperature': 0.9}}
    """
    tree: Tree = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise InputError(f"override {item!r} is not of the form section.key=value, for example train.steps=100")
        try:
            value = yaml.safe_load(text) if text else None
        except yaml.YAMLError as error:
            raise InputError(f"override {item!r}: the value is not valid YAML; put it in quotes") from error
        set_dotted(tree, key.strip(), value)
    return tree


def read_yaml(path: str) -> Tree:
    """A YAML file as a tree, with errors that name the file and line."""
    try:
        with open(path, encoding="utf-8") as file:
            loaded = yaml.safe_load(file)
    except FileNotFoundError as error:
        raise InputError(f"recipe {path!r} does not exist; give a YAML file such as recipes/quickstart.yaml") from error
    except IsADirectoryError as error:
        raise InputError(f"recipe {path!r} is a folder; give the YAML file in it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {path!r} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"recipe {path!r} is not valid YAML: {' '.join(str(error).split())}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise InputError(f"recipe {path!r} holds a {type(loaded).__name__}; it must be sections with keys")
    return loaded


def dataclass_of(annotation: Any) -> type | None:
    """The dataclass inside an annotation such as `Section`, `Section | None` or `Annotated[Section, ...]`."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        found = [dataclass_of(part) for part in typing.get_args(annotation)]
        return next((part for part in found if part is not None), None)
    return annotation if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else None


def fields_of(section: type) -> dict[str, Any]:
    """Field names and resolved annotations of an options dataclass."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(section) if field.init}


class Leaf(typing.NamedTuple):
    """A key of the tree: dotted name, default, the sentence that says why one would change it, and what it may be."""

    key: str
    default: Any
    sentence: str
    choices: tuple[Any, ...] = ()


def leaves(section: type, prefix: str = "") -> Iterator[Leaf]:
    """Every key of a tree."""
    for field in dataclasses.fields(section):
        annotation = fields_of(section)[field.name]
        child = dataclass_of(annotation)
        if child is not None:
            yield from leaves(child, f"{prefix}{field.name}.")
            continue
        sentence = next((note for note in getattr(annotation, "__metadata__", ()) if isinstance(note, str)), "")
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield Leaf(f"{prefix}{field.name}", default, sentence, choices(annotation))


def choices(annotation: Any) -> tuple[Any, ...]:
    """The values of the Literal in an annotation such as `Annotated[Literal["a", "b"] | None, ...]`.

    >>> choices(typing.Literal["a", "b"] | None)
    ('a', 'b')
    """
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    return tuple(value for part in typing.get_args(annotation) for value in choices(part))


def item_dataclass(annotation: Any) -> type | None:
    """The dataclass that a list or tuple annotation holds, if it holds one."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) not in (list, tuple):
        return None
    return next((found for part in typing.get_args(annotation) if (found := dataclass_of(part))), None)


def refuse_unknown(tree: Mapping[str, Any], root: type, source: str) -> None:
    """Raise InputError for the first key that no options dataclass has, naming the nearest one."""

    def walk(tree: Mapping[str, Any], section: type, prefix: str) -> None:
        known = fields_of(section)
        for key, value in tree.items():
            if key not in known:
                hint = suggestion(str(key), prefix, root) if "[" not in prefix else nearest(str(key), list(known))
                raise InputError(f"{source}: unknown key {prefix}{key}; {hint}")
            item = item_dataclass(known[key])
            for number, entry in enumerate(value if item is not None and isinstance(value, list | tuple) else ()):
                if item is not None and isinstance(entry, Mapping):
                    walk(entry, item, f"{prefix}{key}[{number}].")
            child = dataclass_of(known[key])
            if child is None or value is None or dataclasses.is_dataclass(value):
                continue
            if not isinstance(value, Mapping):
                raise InputError(f"{source}: {prefix}{key} is a section with keys, not the value {value!r}")
            walk(value, child, f"{prefix}{key}.")

    walk(tree, root, "")


def nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def suggestion(key: str, prefix: str, root: type) -> str:
    """What an unknown key was probably meant to be: the same name elsewhere, else a close name, else the sections."""
    every = [leaf.key for leaf in leaves(root)]
    exact = [dotted for dotted in every if dotted.rpartition(".")[2] == key]
    if exact:
        return f"it is {' or '.join(exact)}"
    here = [dotted for dotted in every if dotted.startswith(prefix)] if prefix else list(fields_of(root))
    for candidates in (here, every):
        by_name = {dotted.rpartition(".")[2]: dotted for dotted in candidates}
        close = difflib.get_close_matches(key, by_name, n=1, cutoff=0.6)
        if close:
            return f"did you mean {by_name[close[0]]}?"
    return f"known here: {', '.join(here)}"
