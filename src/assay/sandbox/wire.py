"""What travels between a program and us: length-prefixed JSON frames, and plain Python data inside them.

Read by both sides, so nothing here may be trusted by the program's side; on our side everything that comes in is
capped in size and depth before it is parsed, and becomes plain data of exact built-in types or a WireError. Numbers
wider than 53 bits travel in base 16, which is linear to read; sets travel as lists and are not built here, because a
program could choose colliding members.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from typing import Any

HEADER = struct.Struct("=I")
MAX_DEPTH = 150
STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
TAG = "$"


class WireError(ValueError):
    """Bytes or data that do not follow the protocol."""


class NotPlain(TypeError):
    """A value that is not made of plain built-in types; `kind` names its type."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"{kind} is not plain data")
        self.kind = kind


def pack(frame: dict[str, Any]) -> bytes:
    body = json.dumps(frame, separators=(",", ":"), allow_nan=False).encode()
    return HEADER.pack(len(body)) + body


def take(buffer: bytearray, most: int) -> dict[str, Any] | None:
    """Remove the first whole frame from `buffer`, or None where it has not all come. Raises WireError."""
    if len(buffer) < HEADER.size:
        return None
    (length,) = HEADER.unpack_from(buffer)
    if length > most:
        raise WireError(f"a frame of {length} bytes; {most} are allowed")
    if len(buffer) < HEADER.size + length:
        return None
    body = bytes(buffer[HEADER.size : HEADER.size + length])
    del buffer[: HEADER.size + length]
    return parse(body)


def parse(body: bytes) -> dict[str, Any]:
    """A frame's JSON object, checked for depth before the recursive parser sees it. Raises WireError."""
    check_depth(body)
    try:
        frame = json.loads(body, parse_constant=refuse_constant, parse_int=small_int)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if type(frame) is not dict:
        raise WireError("a frame must be a JSON object")
    return frame


def refuse_constant(name: str) -> Any:
    raise WireError(f"{name} is not JSON")


def small_int(digits: str) -> int:
    """An integer of at most 53 bits: wider ones travel tagged, and reading many decimal digits is quadratic."""
    if len(digits) > 17:
        raise WireError(f"a number of {len(digits)} digits")
    return int(digits)


def check_depth(body: bytes) -> None:
    """Refuse nesting deeper than MAX_DEPTH in linear passes, whatever recursion limit the host program has set."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    rest = STRINGS.sub(b"", body).translate(None, NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        shorter = rest.replace(b"[]", b"").replace(b"{}", b"")
        if not shorter:
            return
        if len(shorter) == len(rest):
            break
        rest = shorter
    raise WireError(f"nested deeper than {MAX_DEPTH} levels, or unbalanced")


def encode(value: Any, depth: int = 0, convert: Callable[[Any], Any] | None = None) -> Any:
    """JSON for a plain value; the type must be exactly a built-in one. Raises NotPlain.

    `convert` may turn a value of another type into a plain one.

    >>> encode((1, {"a": 2.5}))
    {'$': 'tuple', 'v': [1, {'$': 'dict', 'v': [['a', 2.5]]}]}
    """
    kind = type(value)
    if depth > MAX_DEPTH:
        raise NotPlain("data nested too deep")
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -(1 << 53) < value < (1 << 53) else {TAG: "int", "v": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
    if kind is list:
        return [encode(item, depth + 1, convert) for item in value]
    if kind is tuple or kind is set or kind is frozenset:
        return {TAG: kind.__name__, "v": [encode(item, depth + 1, convert) for item in value]}
    if kind is dict:
        return {
            TAG: "dict",
            "v": [[encode(k, depth + 1, convert), encode(v, depth + 1, convert)] for k, v in value.items()],
        }
    if kind is bytes:
        return {TAG: "bytes", "v": base64.b64encode(value).decode()}
    if kind is complex:
        return {TAG: "complex", "v": [encode(value.real), encode(value.imag)]}
    if convert is not None and type(simpler := convert(value)) is not kind:
        return encode(simpler, depth + 1, convert)
    raise NotPlain(f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind.__qualname__, str) else "an object")


def decode(data: Any) -> Any:
    """The plain value of `encode`'s JSON. Only for data from our own side: it builds sets and dicts. Raises
    WireError.
    """
    if type(data) is list:
        return [decode(item) for item in data]
    if type(data) is not dict:
        return data
    tag, body = untag(data)
    if tag == "int" or tag == "float" or tag == "bytes":
        return scalar(tag, body)
    items = members(body)
    try:
        if tag == "tuple":
            return tuple(decode(item) for item in items)
        if tag == "set":
            return {decode(item) for item in items}
        if tag == "frozenset":
            return frozenset(decode(item) for item in items)
        if tag == "dict":
            return {decode(k): decode(v) for k, v in map(pair, items)}
    except TypeError as error:
        raise WireError(f"bad {tag}: {error}") from error
    if tag == "complex":
        real, imaginary = pair(items)
        return complex(as_float(decode(real)), as_float(decode(imaginary)))
    raise WireError(f"unknown type {tag!r}")


def untag(data: dict[str, Any]) -> tuple[str, Any]:
    """The type and body of a tagged value. Raises WireError."""
    if data.keys() != {TAG, "v"} or type(data[TAG]) is not str:
        raise WireError("an object that is no tagged value")
    return data[TAG], data["v"]


def scalar(tag: str, body: Any) -> int | float | bytes:
    """A tagged scalar. Raises WireError."""
    try:
        if tag == "int" and type(body) is str and re.fullmatch(r"-?0x[0-9a-f]+", body):
            return int(body, 16)
        if tag == "float" and body in ("nan", "inf", "-inf"):
            return float(body)
        if tag == "bytes" and type(body) is str:
            return base64.b64decode(body, validate=True)
    except ValueError as error:
        raise WireError(f"bad {tag}: {error}") from error
    raise WireError(f"bad {tag}")


def members(body: Any) -> list[Any]:
    if type(body) is not list:
        raise WireError("the members of a container must be a list")
    return body


def pair(item: Any) -> tuple[Any, Any]:
    if type(item) is not list or len(item) != 2:
        raise WireError("expected a pair")
    return item[0], item[1]


def as_float(value: Any) -> float:
    if type(value) is int or type(value) is float:
        return float(value)
    raise WireError("expected a number")
