"""Matrices as cells, and numeric determinants, in exact fractions."""

from __future__ import annotations

from fractions import Fraction

from assay.rewards.answers.normalise import normalise
from assay.rewards.answers.numbers import Number, read_number
from assay.rewards.answers.structure import read_matrix


def determinant(text: str) -> Fraction | None:
    """The value of a numeric determinant of at most six rows, by exact elimination."""
    found = read_matrix(text)
    if found is None or found[1] != "vmatrix" or found[0] or not 0 < len(found[2]) <= 6:
        return None
    cells = [[read_number(normalise(cell)) for cell in row] for row in found[2]]
    if any(len(row) != len(cells) for row in cells) or any(cell is None for row in cells for cell in row):
        return None
    rows = [[cell.value for cell in row if cell] for row in cells]
    value = Fraction(1)
    for column in range(len(rows)):
        pivot = next((i for i in range(column, len(rows)) if rows[i][column]), None)
        if pivot is None:
            return Fraction(0)
        if pivot != column:
            rows[column], rows[pivot], value = rows[pivot], rows[column], -value
        value *= rows[column][column]
        for lower in range(column + 1, len(rows)):
            factor = rows[lower][column] / rows[column][column]
            rows[lower] = [a - factor * b for a, b in zip(rows[lower], rows[column])]
    return value


def grid(text: str) -> list[list[str]] | None:
    """Matrix cells, with a scalar in front multiplied in; a determinant is no grid."""
    found = read_matrix(text)
    if found is None or found[1] in ("vmatrix", "Vmatrix"):
        return None
    factor, _, rows = found
    if not factor:
        return rows
    scale = read_number(factor.rstrip("\\cdot ").strip()) if factor != "-" else Number(Fraction(-1))
    cells = [[read_number(normalise(cell)) for cell in row] for row in rows]
    if scale is None or any(cell is None for row in cells for cell in row):
        return None
    return [[str(scale.value * cell.value) for cell in row if cell] for row in cells]
