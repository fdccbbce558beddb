"""Frames and plain data: what goes in comes out, and nothing that a program sends can do more than be refused."""

import json
import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sandbox import wire

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=20), st.complex_numbers()
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=15,
)


def shape(value):
    """A text that is the same only for the same types and values; members of sets in any order, NaN is itself."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{','.join(map(shape, value))}]"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}[{','.join(sorted(map(shape, value)))}]"
    if isinstance(value, dict):
        return f"dict[{','.join(shape(k) + ':' + shape(v) for k, v in value.items())}]"
    return f"{type(value).__name__} {value!r}"


@given(PLAIN)
def test_plain_data_survives_the_wire(value):
    buffer = bytearray(wire.pack({"value": wire.encode(value)}))
    frame = wire.take(buffer, 1 << 20)
    assert not buffer
    assert shape(wire.decode(frame["value"])) == shape(value)


@given(st.binary(max_size=300), st.integers(1, 200))
def test_any_bytes_give_a_frame_nothing_or_wire_error(data, most):
    buffer = bytearray(data)
    try:
        while (frame := wire.take(buffer, most)) is not None:
            assert type(frame) is dict
    except wire.WireError:
        return
    assert len(buffer) <= len(data)


WORDS = st.sampled_from(["$", "v", "int", "set", "0x1"])
TAGS = st.sampled_from(["int", "float", "dict", "set", "tuple", "bytes", "complex"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$", "v", "x"]), inner, max_size=3)
        | st.builds(lambda tag, body: {"$": tag, "v": body}, TAGS, inner)
    ),
    max_leaves=10,
)


@given(JSON)
@settings(max_examples=300)
def test_any_json_decodes_to_plain_data_or_wire_error(data):
    try:
        value = wire.decode(data)
    except wire.WireError:
        return
    wire.encode(value)  # nothing but plain data came out


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5), st.data())
def test_frames_come_out_whatever_the_pieces_they_arrive_in(bodies, data):
    stream = b"".join(wire.pack({"n": i, "text": body.hex()}) for i, body in enumerate(bodies))
    buffer, got = bytearray(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        buffer += stream[:size]
        stream = stream[size:]
        while (frame := wire.take(buffer, 1 << 16)) is not None:
            got.append(frame)
    assert [frame["text"] for frame in got] == [body.hex() for body in bodies]


def test_a_length_beyond_the_limit_is_refused_before_the_bytes_come():
    with pytest.raises(wire.WireError, match="1000000 bytes; 100 are allowed"):
        wire.take(bytearray(struct.pack("=I", 1_000_000)), 100)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_json_is_refused_even_where_the_recursion_limit_is_lifted(opening, closing):
    body = f'{{"value":{opening * 300_000}1{closing * 300_000}}}'.encode()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10**8)  # as a careless training script might
    try:
        with pytest.raises(wire.WireError, match="nested deeper"):
            wire.parse(body)
    finally:
        sys.setrecursionlimit(before)


def test_brackets_inside_strings_do_not_count_as_depth():
    text = '["\\"[{' * 400
    assert wire.parse(json.dumps({"value": text, "list": [[], {}] * 400}).encode())["value"] == text


@pytest.mark.parametrize(
    "body", [b'{"v":NaN}', b'{"v":-Infinity}', b"[]", b"1", b"", b"{", b'{"v":12345678901234567890}', b"\xff"]
)
def test_what_is_not_our_json_is_refused(body):
    with pytest.raises(wire.WireError):
        wire.parse(body)


@pytest.mark.parametrize(
    "value", [object(), type("I", (int,), {})(1), type("S", (str,), {})("x"), range(3), lambda: 1, {1: object()}]
)
def test_only_exact_built_in_types_are_plain(value):
    with pytest.raises(wire.NotPlain):
        wire.encode(value)


def test_cycles_are_not_plain():
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(wire.NotPlain):
        wire.encode(cycle)
