"""Whether what a program returned is what was expected: walks the expected value, trusts nothing of the other.

The other side is still the JSON of `assay.sandbox.wire`, whose tags name exact types. No set or dict is ever built
from it: a program could choose members whose hashes collide and stall us. Members of sets and keys of dicts are
looked up, by their canonical text, in an index made of the expected value.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from assay.sandbox.wire import WireError, encode, scalar, untag

PAIRWISE_MOST = 500


@dataclass(frozen=True)
class Policy:
    """What counts as equal beside equal. The default asks for the exact type and value, as `==` between plain data
    mostly does.
    """

    float_tolerance: Annotated[float, "Largest relative (below 1: absolute) difference between floats."] = 0.0
    unordered: Annotated[bool, "Accept the members of the outermost list in any order."] = False
    list_equals_tuple: Annotated[bool, "Accept a tuple for a list and the reverse; JSON cannot tell them apart."] = (
        False
    )
    int_equals_float: Annotated[bool, "Accept 2.0 for 2 and the reverse; bool never equals a number."] = False

    def __post_init__(self) -> None:
        if not 0 <= self.float_tolerance < 1:
            raise ValueError(f"float_tolerance is {self.float_tolerance}; it must lie in [0, 1)")


EXACT = Policy()
JSON_POLICY = Policy(float_tolerance=1e-9, list_equals_tuple=True, int_equals_float=True)


def same(expected: Any, data: Any, policy: Policy = EXACT) -> bool:
    """Whether wire data `data` is the plain value `expected`. Raises WireError where `data` is not wire data.

    >>> same((1, [2.5]), {"$": "tuple", "v": [1, [2.5]]})
    True
    >>> same(1, True), same([1, 2], [2, 1], Policy(unordered=True))
    (False, True)
    """
    kind, body = unpack(data)
    if type(expected) is list and policy.unordered:
        plain = Policy(policy.float_tolerance, False, policy.list_equals_tuple, policy.int_equals_float)
        return is_sequence(expected, kind, policy) and same_members(expected, body, plain)
    return walk(expected, data, policy)


def walk(expected: Any, data: Any, policy: Policy) -> bool:
    kind, body = unpack(data)
    if type(expected) in (int, float):
        return same_number(expected, kind, body, policy)
    if type(expected) in (list, tuple):
        return (
            is_sequence(expected, kind, policy)
            and len(expected) == len(body)
            and all(walk(want, got, policy) for want, got in zip(expected, body))
        )
    if type(expected).__name__ != kind:
        return False
    if type(expected) in (set, frozenset):
        return same_members(expected, body, policy)
    if type(expected) is dict:
        return same_dict(expected, body, policy)
    if type(expected) is complex:
        return same_complex(expected, body, policy)
    return bool(expected == body)


def unpack(data: Any) -> tuple[str, Any]:
    """The type name and the body of wire data; scalars are decoded, containers are checked to hold a list."""
    if type(data) is not dict:
        return type(data).__name__, data
    kind, body = untag(data)
    if kind in ("int", "float", "bytes"):
        return kind, scalar(kind, body)
    if kind not in ("tuple", "set", "frozenset", "dict", "complex"):
        raise WireError(f"unknown type {kind!r}")
    if type(body) is not list:
        raise WireError(f"the members of a {kind} must be a list")
    return kind, body


def is_sequence(expected: Any, kind: str, policy: Policy) -> bool:
    return kind == type(expected).__name__ or (policy.list_equals_tuple and kind in ("list", "tuple"))


def same_number(expected: float, kind: str, got: Any, policy: Policy) -> bool:
    if kind not in ("int", "float") or (kind != type(expected).__name__ and not policy.int_equals_float):
        return False
    if expected == got:
        return True
    if type(expected) is int and kind == "int":
        return False
    try:
        wanted, found = float(expected), float(got)
    except OverflowError:
        return False
    if math.isnan(wanted):
        return math.isnan(found)
    tolerance = policy.float_tolerance
    return tolerance > 0 and math.isclose(wanted, found, rel_tol=tolerance, abs_tol=tolerance)


def same_complex(expected: complex, body: list[Any], policy: Policy) -> bool:
    if len(body) != 2:
        raise WireError("a complex number has two parts")
    return walk(expected.real, body[0], policy) and walk(expected.imag, body[1], policy)


def same_members(expected: Iterable[Any], body: list[Any], policy: Policy) -> bool:
    """Equal as multisets."""
    wanted = list(expected)
    if len(wanted) != len(body):
        return False
    if policy.float_tolerance and len(wanted) <= PAIRWISE_MOST and any(map(holds_float, wanted)):
        return same_pairwise(wanted, body, policy)
    counts = Counter(canonical(encode(item), policy) for item in wanted)
    for item in body:
        text = canonical(item, policy)
        if counts.get(text, 0) == 0:
            return False
        counts[text] -= 1
    return True


def same_pairwise(wanted: list[Any], body: list[Any], policy: Policy) -> bool:
    """Match members one by one where a tolerance forbids looking them up; quadratic, so only for short lists."""
    left = list(body)
    for item in wanted:
        for index, got in enumerate(left):
            if walk(item, got, policy):
                del left[index]
                break
        else:
            return False
    return True


def holds_float(value: Any) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return any(map(holds_float, value))
    if type(value) is dict:
        return any(map(holds_float, (*value, *value.values())))
    return type(value) in (float, complex)


def same_dict(expected: dict[Any, Any], body: list[Any], policy: Policy) -> bool:
    if len(expected) != len(body):
        return False
    left = {canonical(encode(key), policy): value for key, value in expected.items()}
    for item in body:
        if type(item) is not list or len(item) != 2:
            raise WireError("a dict travels as pairs")
        key = canonical(item[0], policy)
        if key not in left or not walk(left.pop(key), item[1], policy):
            return False
    return True


def canonical(data: Any, policy: Policy) -> str:
    """One text for all wire data that `policy` calls equal (tolerance aside): members of sets and dicts sorted."""
    kind, body = unpack(data)
    if kind == "float" and (body == 0 or (policy.int_equals_float and math.isfinite(body) and body == int(body))):
        kind, body = ("int", int(body)) if policy.int_equals_float else ("float", 0.0)
    if kind == "int":
        return f"i{body:x}"
    if kind == "float":
        return f"f{body!r}"
    if kind in ("str", "bytes", "bool", "NoneType"):
        return f"{kind}{json.dumps(body) if kind == 'str' else body!r}"
    if kind == "dict":
        return f"dict[{','.join(sorted(canonical(k, policy) + ':' + canonical(v, policy) for k, v in pairs(body)))}]"
    members = [canonical(item, policy) for item in body]
    if kind in ("set", "frozenset"):
        members.sort()
    elif kind == "tuple" and policy.list_equals_tuple:
        kind = "list"
    return f"{kind}[{','.join(members)}]"


def pairs(body: list[Any]) -> Iterable[tuple[Any, Any]]:
    for item in body:
        if type(item) is not list or len(item) != 2:
            raise WireError("a dict travels as pairs")
        yield item[0], item[1]


def same_output(expected: str, got: str, policy: Policy = EXACT) -> bool:
    """Whether printed text is as expected: the number of lines first, then each line up to white space at its end.

    With a float tolerance, or where lines differ only in spacing, words are compared one by one.

    >>> same_output("1\\n2\\n", "1 \\n2"), same_output("1\\n2\\n", "1\\n")
    (True, False)
    """
    wanted, found = expected.rstrip().split("\n"), got.rstrip().split("\n")
    if len(wanted) != len(found):
        return False
    if policy.unordered:
        return sorted(line.split() for line in wanted) == sorted(line.split() for line in found)
    return all(want.rstrip() == have.rstrip() or same_words(want, have, policy) for want, have in zip(wanted, found))


def same_words(wanted: str, found: str, policy: Policy) -> bool:
    want, have = wanted.split(), found.split()
    return len(want) == len(have) and all(
        a == b or (policy.float_tolerance > 0 and close_words(a, b, policy.float_tolerance)) for a, b in zip(want, have)
    )


def close_words(wanted: str, found: str, tolerance: float) -> bool:
    try:
        want, have = float(wanted), float(found)
    except ValueError:
        return False
    return math.isclose(want, have, rel_tol=tolerance, abs_tol=tolerance)
