"""compare() against a naive oracle that may use Python's own ==, and against each policy in words."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assay.rewards.code_compare import Policy, same, same_output
from assay.sandbox.wire import WireError, encode

NUMBERS = st.integers(-3, 3) | st.booleans() | st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, float("inf"), float("nan")])
SCALARS = (
    st.none() | NUMBERS | st.sampled_from(["", "a", "1"]) | st.sampled_from([b"", b"a"]) | st.sampled_from([1j, 2 + 0j])
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=2), max_leaves=3)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=8,
)


def oracle(one, other):
    """Equality of exact types by brute force: members of sets and dicts are tried against each other."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if isinstance(one, complex):
        return oracle(one.real, other.real) and oracle(one.imag, other.imag)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(oracle, one, other))
    if isinstance(one, dict):
        return match(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        return match(list(one), list(other))
    return one == other


def match(ones, others):
    if len(ones) != len(others):
        return False
    for one in ones:
        for index, other in enumerate(others):
            if oracle(one, other):
                del others[index]
                break
        else:
            return False
    return True


@given(PLAIN, PLAIN)
@settings(max_examples=400)
def test_same_agrees_with_the_oracle(one, other):
    assert same(one, encode(other)) == oracle(one, other)


@given(PLAIN)
def test_everything_equals_itself(value):
    assert same(value, encode(value))


@given(st.lists(PLAIN, max_size=4), st.randoms())
def test_unordered_accepts_every_order_and_nothing_else(values, random):
    shuffled = random.sample(values, len(values))
    policy = Policy(unordered=True)
    assert same(values, encode(shuffled), policy)
    assert not same(values, encode([*shuffled, None]), policy)
    assert not same([*values, "more"], encode([*shuffled, "other"]), policy)


@given(PLAIN)
def test_list_equals_tuple_forgets_the_kind_of_sequence_only(value):
    def swap(x):
        if isinstance(x, list | tuple):
            return (list if isinstance(x, tuple) else tuple)(swap(item) for item in x)
        if isinstance(x, dict):
            return {key: swap(item) for key, item in x.items()}
        return x

    assert same(value, encode(swap(value)), Policy(list_equals_tuple=True))
    if isinstance(value, list | tuple):
        assert not same(value, encode(swap(value)))


@pytest.mark.parametrize(
    ("expected", "got", "policy", "right"),
    [
        (1, True, Policy(int_equals_float=True), False),
        (True, 1, Policy(int_equals_float=True), False),
        (2, 2.0, Policy(), False),
        (2, 2.0, Policy(int_equals_float=True), True),
        (2.0, 2, Policy(int_equals_float=True), True),
        (2**60, float(2**60), Policy(int_equals_float=True), True),
        (2**60 + 1, float(2**60), Policy(int_equals_float=True), False),
        (10**400, 1.5, Policy(int_equals_float=True), False),
        (1.5, 10**400, Policy(int_equals_float=True, float_tolerance=0.1), False),
        ({1, 2}, {1.0, 2}, Policy(int_equals_float=True), True),
        ({1: "a"}, {1.0: "a"}, Policy(int_equals_float=True), True),
        (0.1 + 0.2, 0.3, Policy(), False),
        (0.1 + 0.2, 0.3, Policy(float_tolerance=1e-9), True),
        (1e6, 1e6 + 1, Policy(float_tolerance=1e-9), False),
        (0.0, 1e-10, Policy(float_tolerance=1e-9), True),
        ({0.1 + 0.2}, {0.3}, Policy(float_tolerance=1e-9), True),
        ([0.3, 1.0], [1.0, 0.1 + 0.2], Policy(float_tolerance=1e-9, unordered=True), True),
        ("25", 25, Policy(int_equals_float=True), False),
        (None, False, Policy(), False),
        ("", None, Policy(), False),
        ({1}, frozenset({1}), Policy(), False),
        ([[1, 2], [3]], [[3], [2, 1]], Policy(unordered=True), False),  # only the outermost list
        (float("nan"), float("nan"), Policy(), True),
        (float("inf"), 1.0, Policy(float_tolerance=0.5), False),
    ],
)
def test_policies(expected, got, policy, right):
    assert same(expected, encode(got), policy) is right


def test_numbers_too_long_to_print_are_compared():
    assert same(10**5000, encode(10**5000))
    assert not same(10**5000, encode(10**5000 + 1))


def test_a_set_with_a_member_twice_is_not_a_set():
    assert not same({1, 2}, {"$": "set", "v": [1, 1]})
    assert not same({1: 1, 2: 2}, {"$": "dict", "v": [[1, 1], [1, 1]]})


@pytest.mark.parametrize(
    "data",
    [{}, {"$": "int"}, {"$": 1, "v": 1}, {"$": "set", "v": "abc"}, {"$": "dict", "v": [1]}, {"$": "int", "v": "12"}],
)
def test_what_is_not_wire_data_is_an_error_never_equal(data):
    for expected in (1, {1}, {1: 2}, "x"):
        try:
            assert not same(expected, data)
        except WireError:
            continue


@given(
    st.lists(st.text(alphabet="ab 1", max_size=5), max_size=4),
    st.lists(st.text(alphabet="ab 1", max_size=5), max_size=4),
)
def test_printed_lines_are_equal_up_to_spacing_and_nothing_else(one, other):
    assume("\n".join(one).strip() and "\n".join(other).strip())

    def words(lines):
        return [line.split() for line in "\n".join(lines).rstrip().split("\n")]

    assert same_output("\n".join(one), "\n".join(other)) == (words(one) == words(other))


def test_a_prefix_of_the_lines_is_not_the_output():
    assert not same_output("1\n2\n3\n", "1\n2\n")
    assert not same_output("1\n", "1\n2\n")
    assert not same_output("1\n", "")
    assert same_output("0.3 1\n", "0.30000000001 1", Policy(float_tolerance=1e-6))
    assert not same_output("0.3 1\n", "0.4 1", Policy(float_tolerance=1e-6))
