"""Minimal filtering F(m, r), derived: the oracle of the operation counts in `flops/executed.py`.

m outputs of an r-tap filter take t = m + r - 1 multiplications: Y = Aᵀ[(G·g) ⊙ (Bᵀ·d)], where d
are t inputs. Winograd, Arithmetic Complexity of Computations (1980); Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks (2015).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final, TypeAlias

from traceana.flops.executed import Operations

Row: TypeAlias = tuple[Fraction, ...]
Matrix: TypeAlias = tuple[Row, ...]

# Small, of both signs, and their reciprocals: the points of Lavin and Gray, and what follows them.
_POINTS: Final = tuple(
    Fraction(text) for text in "0 1 -1 2 -2 1/2 -1/2 4 -4 1/4 -1/4 3 -3 1/3 -1/3".split()
)


@dataclass(frozen=True, slots=True)
class Filtering:
    """F(m, r): the three matrices, Aᵀ of m x t, G of t x r, Bᵀ of t x t."""

    outputs: int
    taps: int
    output_matrix: Matrix
    filter_matrix: Matrix
    data_matrix: Matrix

    @property
    def tile(self) -> int:
        """t = m + r - 1."""
        return self.outputs + self.taps - 1

    @property
    def data_operations(self) -> Operations:
        """Of Bᵀ·d for one vector d of t."""
        return _by_rows(self.data_matrix)

    @property
    def filter_operations(self) -> Operations:
        """Of G·g for one vector g of r."""
        return _by_rows(self.filter_matrix)

    @property
    def output_operations(self) -> Operations:
        """Of Aᵀ·m for one vector m of t."""
        return _by_columns(self.output_matrix)


@cache
def filtering(outputs: int, taps: int) -> Filtering:
    """Derive F(outputs, taps) from t - 1 points and infinity (Toom-Cook, transposed).

    With points p: row i of Aᵀ is pⁱ, row j of G is (1, p, p², …)/Π(pⱼ - pₗ), row j of Bᵀ holds
    the coefficients of Π(x - pₗ) over the other points. The point at infinity adds the last
    column, row and the coefficients of the product over all. F(2, 3) and F(4, 3) are the matrices
    of Lavin and Gray up to signs.
    """
    tile = outputs + taps - 1
    points = _POINTS[: tile - 1]
    one, zero = Fraction(1), Fraction(0)
    output = tuple(
        (*(point**power for point in points), one if power == outputs - 1 else zero)
        for power in range(outputs)
    )
    filters = [
        tuple(point**power / _difference(point, points) for power in range(taps))
        for point in points
    ]
    filters.append((*(zero for _ in range(taps - 1)), one))
    data = [(*_coefficients(other for other in points if other != point), zero) for point in points]
    data.append(_coefficients(points))
    return Filtering(outputs, taps, output, tuple(filters), tuple(data))


def _difference(point: Fraction, points: tuple[Fraction, ...]) -> Fraction:
    product = Fraction(1)
    for other in points:
        if other != point:
            product *= point - other
    return product


def _coefficients(roots: Iterable[Fraction]) -> Row:
    """Return the coefficients of Π(x - root), the constant one first."""
    polynomial = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *polynomial]
        scaled = [-root * coefficient for coefficient in polynomial] + [Fraction(0)]
        polynomial = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(polynomial)


def _by_rows(matrix: Matrix) -> Operations:
    """Count matrix · vector, where two rows that differ in signs only share their halves.

    The rows of p and -p are E + O and E - O: E and O are computed once, and two additions follow.
    """
    total = Operations()
    rest = list(matrix)
    while rest:
        row = rest.pop(0)
        partner = next((other for other in rest if _mirrored(row, other)), None)
        if partner is None:
            total += _dot(row)
            continue
        rest.remove(partner)
        even = tuple(a if a == b else Fraction(0) for a, b in zip(row, partner, strict=True))
        odd = tuple(a - e for a, e in zip(row, even, strict=True))
        total += _dot(even) + _dot(odd) + Operations(0, 2)
    return total


def _by_columns(matrix: Matrix) -> Operations:
    """Count matrix · vector, where two columns that differ in signs only are summed beforehand.

    The columns of p and -p meet the rows as (a + b) or (a - b): two additions, once.
    """
    columns: list[Row] = list(zip(*matrix, strict=True))
    summed: list[Row] = []
    total = Operations()
    while columns:
        column = columns.pop(0)
        partner = next((other for other in columns if _mirrored(column, other)), None)
        if partner is None:
            summed.append(column)
            continue
        columns.remove(partner)
        pairs = list(zip(column, partner, strict=True))
        summed.append(tuple(a if a == b else Fraction(0) for a, b in pairs))
        summed.append(tuple(a if a != b else Fraction(0) for a, b in pairs))
        total += Operations(0, 2)
    for row in zip(*summed, strict=True):
        total += _dot(row)
    return total


def _mirrored(one: Row, other: Row) -> bool:
    same = any(a and a == b for a, b in zip(one, other, strict=True))
    opposite = any(a and a == -b for a, b in zip(one, other, strict=True))
    return same and opposite and all(abs(a) == abs(b) for a, b in zip(one, other, strict=True))


def _dot(row: Row) -> Operations:
    """Count one row: a term less one additions, and the multiplications by what is not ±1.

    A factor common to the row may be taken out if that is less.
    """
    terms = [abs(coefficient) for coefficient in row if coefficient]
    if not terms:
        return Operations()
    plain = sum(1 for term in terms if term != 1)
    taken_out = min(1 + sum(1 for term in terms if term != factor) for factor in set(terms))
    return Operations(min(plain, taken_out), len(terms) - 1)
