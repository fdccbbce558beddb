"""Whether two expressions are equal, by computer algebra; runs in a worker process that may be killed at any moment.

The LaTeX parser of math-verify (latex2sympy2) builds SymPy trees; nothing is `eval`ed, `sympify`ed or simplified. Two
constants are equal as exact rationals or to 100 of 120 digits; two expressions with variables are equal where they
agree to that precision at fixed points of both signs, which a false identity fails with probability 1.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

DIGITS, TOLERANCE = 120, sympy.Float("1e-100", 120)
POINTS = ("0.731", "-0.617", "1.893", "-1.371", "2.513", "0.193", "-0.059", "3.307")
NEEDED_POINTS = 3
MIN_SIGNIFICANT = 6
# What sympy raises for an expression that has no value: a pole, a function outside of its domain, a comparison of what
# has no order. "No value" is a finding and not a failure; it never counts as equal, not to another "no value" either.
NO_VALUE = (TypeError, ValueError, NotImplementedError, ArithmeticError)
CONVERSION = ConversionConfig(interpret_as_mixed_fractions=True, lowercase_symbols=False)
NORMALISATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=False, nits=False, boxed="none", equations=False
)


def handle(message: dict[str, Any]) -> dict[str, Any]:
    """One comparison: {answer, gold, mode, answer_places, gold_places} -> {same} or {unparsed: answer | gold}."""
    sides = {}
    for side in ("gold", "answer"):
        parsed = parse(message[side], message["mode"])
        if parsed is None:
            return {"unparsed": side}
        sides[side] = parsed
    same = compare(sides["answer"], sides["gold"], message)
    if not same and any(re.search(r"\\log(?!\s*_)", message[side]) for side in sides):
        natural = {side: parse(re.sub(r"\\log(?!\s*_)", r"\\ln ", message[side]), message["mode"]) for side in sides}
        same = None not in natural.values() and compare(natural["answer"], natural["gold"], message)
    return {"same": bool(same)}


@functools.lru_cache(maxsize=4096)
def parse(latex: str, mode: str) -> Any:
    """The expression; in mode `equation` the left side minus the right side. None where it cannot be read."""
    if mode == "equation":
        left, _, right = latex.partition("=")
        sides = parse(left, "value"), parse(right, "value")
        return None if None in sides else sides[0] - sides[1]
    try:
        tree = latex2sympy(latex, normalization_config=NORMALISATION, conversion_config=CONVERSION)
    except RecursionError:
        return None
    except Exception:  # noqa: BLE001 - the parser signals malformed input with bare Exception
        return None
    if not isinstance(tree, sympy.Expr) or isinstance(tree, sympy.MatrixBase):
        return None
    tree = tree.xreplace({decimal: sympy.Rational(str(decimal)) for decimal in tree.atoms(sympy.Float)})
    tree = tree.xreplace({symbol: sympy.I for symbol in tree.free_symbols if symbol.name == "i"})
    functions = tree.atoms(sympy.core.function.AppliedUndef)
    return tree.xreplace({function: sympy.Symbol(f"value of {function}") for function in functions})


def compare(answer: Any, gold: Any, message: dict[str, Any]) -> bool:
    names = sorted({symbol.name for symbol in answer.free_symbols | gold.free_symbols})
    if message["mode"] == "equation":
        return proportional(answer, gold, names)
    if answer.free_symbols != gold.free_symbols and not names:
        return False
    if not names:
        return same_constant(answer, gold, message)
    agreed = 0
    for values in points(names):
        one, other = value_at(answer, values), value_at(gold, values)
        if one is None and other is None:
            continue
        if one is None or other is None or not close(one, other):
            return False
        agreed += 1
    return agreed >= NEEDED_POINTS


def points(names: list[str]) -> Any:
    """Assignments of rational values to the variables; each variable walks the list from another start."""
    for shift in range(len(POINTS)):
        cycle = itertools.cycle(POINTS[shift:] + POINTS[:shift])
        scale = 1 + sympy.Rational(shift, 97)
        yield {sympy.Symbol(name): sympy.Rational(next(cycle)) * scale for name in names}


def value_at(tree: Any, values: dict[Any, Any]) -> Any:
    """The complex value at a point to DIGITS digits, None where it is not finite."""
    by_name = {symbol: values[sympy.Symbol(symbol.name)] for symbol in tree.free_symbols}
    try:
        value = tree.xreplace(by_name).evalf(DIGITS)
        if not value.is_number:
            value = value.doit().evalf(DIGITS)
        real, imaginary = value.as_real_imag()
        finite = real.is_finite and imaginary.is_finite and real.is_comparable is not False
    except (*NO_VALUE, AttributeError):  # a truth value is no number and has no real part
        return None
    return (real, imaginary) if finite else None


def close(one: Any, other: Any) -> bool:
    size = max(abs(one[0]), abs(one[1]), abs(other[0]), abs(other[1]))
    if size == 0:
        return True
    return bool(max(abs(one[0] - other[0]), abs(one[1] - other[1])) <= TOLERANCE * size)


def exact(tree: Any) -> Any:
    """The tree as an exact rational, None where it is none."""
    try:
        value = tree.doit()
    except NO_VALUE:
        return None
    return value if value.is_Rational else None


def same_constant(answer: Any, gold: Any, message: dict[str, Any]) -> bool:
    if sympy.oo in (answer, gold) or -sympy.oo in (answer, gold):
        return bool(answer == gold)
    rationals = exact(answer), exact(gold)
    if None not in rationals:
        return bool(rationals[0] == rationals[1])
    one, other = value_at(answer, {}), value_at(gold, {})
    if one is None or other is None:
        return False
    return close(one, other) or rounded(one, other, message)


def rounded(answer: Any, gold: Any, message: dict[str, Any]) -> bool:
    """A decimal on one side that is the other side correctly rounded or cut, with enough significant digits."""
    for places, decimal, needed in (
        (message.get("answer_places"), answer, MIN_SIGNIFICANT),
        (message.get("gold_places"), gold, 3),
    ):
        if places is None or answer[1] != 0 or gold[1] != 0:
            continue
        unit = sympy.Rational(1, 10**places)
        significant = len(str(int(abs(decimal[0] / unit))))
        if significant >= needed and abs(answer[0] - gold[0]) <= unit * (
            1 if needed == MIN_SIGNIFICANT else sympy.Rational(1, 2)
        ):
            return True
    return False


def proportional(answer: Any, gold: Any, names: list[str]) -> bool:
    """Whether `answer = 0` and `gold = 0` are the same equation up to a constant factor."""
    ratio = None
    agreed = 0
    for values in points(names):
        one, other = value_at(answer, values), value_at(gold, values)
        if one is None or other is None:
            if (one is None) != (other is None):
                return False
            continue
        if (one == (0, 0)) != (other == (0, 0)):
            return False
        if other == (0, 0):
            continue
        quotient = ((one[0] + sympy.I * one[1]) / (other[0] + sympy.I * other[1])).evalf(DIGITS).as_real_imag()
        if ratio is not None and not close(quotient, ratio):
            return False
        ratio = quotient
        agreed += 1
    return agreed >= NEEDED_POINTS and ratio is not None
