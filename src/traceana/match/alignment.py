"""Global alignment of two sequences with affine gaps (Gotoh 1982).

The best alignment, the probability of each pair over all alignments, and the pairs on which all
best alignments agree are one recurrence: alignments are taken together by their maximum, or by the
logarithm of their sum. Scores that are whole numbers stay exact, so ties are ties. A gap of one
sequence may directly follow one of the other in one order only: the other order has the same pairs.

Tables have a row for each row of the alignment, and a band of columns around the diagonal: from
``first`` to ``first + width`` beside the row's number. Time and memory are O(rows * width). The
band of rows that are sought within the columns is narrow, of others it is all columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from traceana.columns.nesting import NONE, Ints

Matrix = npt.NDArray[np.float64]
Score = Callable[[int, Ints], npt.NDArray[np.float64 | np.int64]]
"""The score of a pair of one row with each of some columns."""

_NEVER: Final = -np.inf
_SPARE: Final = 16
"""Width of a band beside the difference in length: gaps on both sides may follow each other."""


class Gaps(msgspec.Struct, frozen=True):
    """The costs of gaps, in the unit of the scores (positive numbers)."""

    open: float
    extend: float
    change: float
    """The cost of a gap of columns directly after one of rows."""


class _Tables(NamedTuple):
    """The score of the first i rows and the first i + first + c columns, at row i and column c, by
    what ends there: a pair, a gap of rows, a gap of columns."""

    pair: Matrix
    rows: Matrix
    columns: Matrix


def band(size: tuple[int, int], *, within: bool) -> tuple[int, int]:
    """Return ``first`` and ``width`` of the band for so many rows and columns."""
    n, m = size
    if within:
        return min(m - n, 0) - _SPARE, abs(n - m) + 2 * _SPARE + 1
    return -n, n + m + 1


def _tables(
    score: Score, size: tuple[int, int], gaps: Gaps, together: np.ufunc, *, within: bool
) -> _Tables:
    """Return the tables; ``within``, columns before the first pair cost nothing."""
    n, m = size
    first, width = band(size, within=within)
    tables = _Tables(*(np.full((n + 1, width), _NEVER) for _ in _Tables._fields))
    pair, rows, columns = tables
    slope = np.arange(width) * gaps.extend
    for i in range(n + 1):
        j = i + first + np.arange(width)
        outside = (j < 0) | (j > m)
        if i == 0:
            pair[0, ~outside if within else j == 0] = 0
        else:
            paired = (j >= 1) & (j <= m)
            before = together(together(pair[i - 1], rows[i - 1]), columns[i - 1])
            pair[i, paired] = before[paired] + score(i - 1, j[paired] - 1)
            # The row alone: from the row before, one column to the right.
            rows[i, :-1] = together(pair[i - 1, 1:] - gaps.open, rows[i - 1, 1:] - gaps.extend)
            rows[i, outside] = _NEVER
        # Opening at column k and extending to j costs extend * (j - k - 1) more.
        opened = together(pair[i] - gaps.open, rows[i] - gaps.change)
        columns[i, 1:] = together.accumulate(opened + slope)[:-1] - slope[1:] + gaps.extend
        columns[i, outside] = _NEVER
    return tables


def best_alignment(
    scores: npt.NDArray[np.int64], gaps: Gaps
) -> tuple[list[tuple[int, int]], float]:
    """Return the pairs (row, column) of the alignment with the highest score, and that score.

    ``scores`` has the score of each pair of row and column, in whole numbers as ``gaps``; rows and
    columns keep their order, and each is in at most one pair.
    """
    n, m = scores.shape
    tables = _tables(lambda i, j: scores[i, j], (n, m), gaps, np.maximum, within=False)
    pair, rows, columns = tables
    ends = [float(table[n, m]) for table in tables]
    best = max(ends)
    ending = tables[ends.index(best)]
    pairs: list[tuple[int, int]] = []
    row, column = n, m
    while row or column:
        # Column c of row i stands for the first i - n + c columns.
        at = (row, column - row + n)
        if ending is pair:
            row, column = row - 1, column - 1
            pairs.append((row, column))
            before = [table[row, at[1]] for table in tables]
            ending = tables[before.index(max(before))]
        elif ending is rows:
            opened = pair[row - 1, at[1] + 1] - gaps.open == rows[at]
            row, ending = row - 1, pair if opened else rows
        else:
            left = (row, at[1] - 1)
            if pair[left] - gaps.open == columns[at]:
                ending = pair
            elif rows[left] - gaps.change == columns[at]:
                ending = rows
            column -= 1
    return pairs[::-1], best


def posterior(scores: Matrix, gaps: Gaps, unit: float) -> Matrix:
    """Return the probability of each pair, rows by columns.

    Every candidate of :func:`best_alignment` is weighted by the exponential of its score;
    ``scores`` are nats, ``gaps`` multiples of ``unit`` nats.
    """
    n, m = scores.shape
    costs = Gaps(gaps.open * unit, gaps.extend * unit, gaps.change * unit)
    probability = np.zeros(scores.shape)
    through = _Through(lambda i, j: scores[i, j], (n, m), costs, np.logaddexp, within=False)
    for i in range(n):
        j, log_weight = through.row(i)
        probability[i, j] = np.exp(log_weight - through.all)
    return np.minimum(probability, 1.0)


def agreed(score: Score, size: tuple[int, int], gap: float, meaning: Ints) -> Ints:
    """Return the column of each row, NONE where it has none or the best alignments differ.

    The rows are sought within the columns: those before the first pair and after the last cost
    nothing, others and each row alone cost ``gap``. ``size`` are the numbers of rows and columns. A
    row has a column if all alignments of the highest score that pair it do so with columns of one
    ``meaning``: its number is the same for columns between which nothing depends on the choice.
    """
    n, _ = size
    through = _Through(score, size, Gaps(gap, gap, gap), np.maximum, within=True)
    column = np.full(n, NONE, dtype=np.int64)
    for i in range(n):
        j, reached = through.row(i)
        best = j[reached == through.all]
        if len(best) and (meaning[best] == meaning[best[0]]).all():
            column[i] = best[0]
    return column


class _Through:
    """The alignments through each pair, taken together, and all alignments."""

    def __init__(
        self, score: Score, size: tuple[int, int], gaps: Gaps, together: np.ufunc, *, within: bool
    ) -> None:
        n, m = self._size = size
        self._first, self._width = band(size, within=within)
        forward = _tables(score, size, gaps, together, within=within)
        self._pair = forward.pair
        last = m - n - self._first
        ends = slice(None) if within else slice(last, last + 1)
        self.all = together.reduce(np.concatenate([table[n, ends] for table in forward]))
        backward = _tables(
            lambda i, j: score(n - 1 - i, m - 1 - j), size, gaps, together, within=within
        )
        self._after = together(together(backward.pair, backward.rows), backward.columns)

    def row(self, i: int) -> tuple[Ints, Matrix]:
        """Return the columns of the band at row ``i``, and the alignments through each pair."""
        n, m = self._size
        j = i + self._first + np.arange(self._width)
        # Beyond the pair are m - 1 - j columns: those of row n - 1 - i from the other end.
        place = (m - 1 - j) - (n - 1 - i) - self._first
        # The pair ends at the first i + 1 rows and j + 1 columns.
        inside = (j >= 0) & (j < m) & (place >= 0) & (place < self._width)
        return j[inside], self._pair[i + 1, inside] + self._after[n - 1 - i, place[inside]]
