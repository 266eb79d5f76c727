"""Global alignment of two sequences with affine gaps (Gotoh 1982): the best one, and probabilities.

Scores and penalties are integers, so that ties are exact. A gap of one sequence may directly follow
one of the other in one order only: the other order has the same pairs.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.float64]

_IMPOSSIBLE: Final = -(1 << 60)
_MATCH, _ROWS, _COLUMNS = 0, 1, 2

_NEVER: Final = -1e18


class Gaps(msgspec.Struct, frozen=True):
    """The costs of gaps, in the unit of the scores (positive numbers)."""

    open: int
    extend: int
    change: int
    """The cost of a gap of columns directly after one of rows."""


def best_alignment(scores: Scores, gaps: Gaps) -> tuple[list[tuple[int, int]], int]:
    """Return the pairs (row, column) of the alignment with the highest score, and that score.

    ``scores`` has the score of each pair of row and column; rows and columns keep their order, and
    each is in at most one pair. Time and memory are O(rows * columns); numpy computes a row at a
    time, the gap within the row by a running maximum.
    """
    rows, columns = scores.shape
    from_match = np.zeros((rows + 1, columns + 1), dtype=np.int8)
    from_rows = np.zeros_like(from_match)
    from_columns = np.zeros_like(from_match)
    slope = np.arange(columns + 1, dtype=np.int64) * gaps.extend
    match = np.full(columns + 1, _IMPOSSIBLE, dtype=np.int64)
    match[0] = 0
    down = np.full(columns + 1, _IMPOSSIBLE, dtype=np.int64)
    along, from_columns[0] = _column_gaps(match, down, slope, gaps)
    for row in range(rows):
        before = np.maximum(np.maximum(match, down), along)[:-1]
        at = row + 1
        from_match[at, 1:] = np.where(
            match[:-1] == before, _MATCH, np.where(down[:-1] == before, _ROWS, _COLUMNS)
        )
        opened, extended = match - gaps.open, down - gaps.extend
        down = np.maximum(opened, extended)
        from_rows[at] = np.where(opened == down, _MATCH, _ROWS)
        match = np.concatenate([[_IMPOSSIBLE], np.maximum(before + scores[row], _IMPOSSIBLE)])
        along, from_columns[at] = _column_gaps(match, down, slope, gaps)
    ends = [int(match[-1]), int(down[-1]), int(along[-1])]
    state = ends.index(max(ends))
    return _trace_back(state, (from_match, from_rows, from_columns)), max(ends)


def _column_gaps(
    match: Scores, down: Scores, slope: Scores, gaps: Gaps
) -> tuple[Scores, npt.NDArray[np.int8]]:
    """Return the best score of each column that ends in a gap of columns, and the state before."""
    opened = np.maximum(match - gaps.open, down - gaps.change)
    reached = np.full_like(match, _IMPOSSIBLE)
    # Opening at column k and extending to j costs extend * (j - k - 1) more.
    reached[1:] = np.maximum.accumulate(opened + slope)[:-1] - slope[1:] + gaps.extend
    np.maximum(reached, _IMPOSSIBLE, out=reached)
    before = np.full(len(match), _COLUMNS, dtype=np.int8)
    before[1:][down[:-1] - gaps.change == reached[1:]] = _ROWS
    before[1:][match[:-1] - gaps.open == reached[1:]] = _MATCH
    return reached, before


def _trace_back(state: int, tables: tuple[npt.NDArray[np.int8], ...]) -> list[tuple[int, int]]:
    row, column = tables[0].shape[0] - 1, tables[0].shape[1] - 1
    pairs: list[tuple[int, int]] = []
    while row or column:
        before = int(tables[state][row, column])
        if state != _COLUMNS:
            row -= 1
        if state != _ROWS:
            column -= 1
        if state == _MATCH:
            pairs.append((row, column))
        state = before
    return pairs[::-1]


def posterior(scores: Matrix, gaps: Gaps, unit: float) -> Matrix:
    """Return the probability of each pair, rows by columns.

    Every candidate of :func:`best_alignment` is weighted by the exponential of
    its score; ``scores`` are nats, ``gaps`` multiples of ``unit`` nats.
    """
    rows, columns = scores.shape
    opens, extends, changes = (-cost * unit for cost in (gaps.open, gaps.extend, gaps.change))
    slope = np.arange(columns + 1) * -extends
    forward = np.full((rows + 1, columns + 1), _NEVER)
    forward[0, 0] = 0.0
    down = np.full(columns + 1, _NEVER)
    along = _summed_column_gaps(forward[0], down, slope, opens, extends, changes)
    for row in range(rows):
        before = np.logaddexp(np.logaddexp(forward[row], down), along)[:-1]
        down = np.logaddexp(forward[row] + opens, down + extends)
        forward[row + 1, 1:] = before + scores[row]
        along = _summed_column_gaps(forward[row + 1], down, slope, opens, extends, changes)
    total = np.logaddexp(np.logaddexp(forward[rows, -1], down[-1]), along[-1])

    found = np.zeros_like(scores)
    # The log weight after a pair, a gap of rows, or a gap of columns that ends here.
    after_match = np.full(columns + 1, _NEVER)
    after_match[-1] = 0.0
    after_rows = after_match.copy()
    after_columns = after_match
    for row in range(rows, -1, -1):
        if row < rows:
            taken = np.full(columns + 1, _NEVER)
            taken[:-1] = scores[row] + after_match[1:]
            ahead = taken
            rows_next = after_rows
        else:
            ahead = after_match
            rows_next = np.full(columns + 1, _NEVER)
        after_columns = _after_column_gaps(ahead, slope)
        along_next = np.append(after_columns[1:], _NEVER)
        after_match = np.logaddexp(ahead, np.logaddexp(rows_next + opens, along_next + opens))
        after_rows = np.logaddexp(ahead, np.logaddexp(rows_next + extends, along_next + changes))
        if row:
            found[row - 1] = np.exp(forward[row, 1:] + after_match[1:] - total)
    return np.minimum(found, 1.0)


def _summed_column_gaps(
    match: Matrix, down: Matrix, slope: Matrix, opens: float, extends: float, changes: float
) -> Matrix:
    opened = np.logaddexp(match + opens, down + changes)
    reached = np.full_like(match, _NEVER)
    reached[1:] = np.logaddexp.accumulate(opened + slope)[:-1] - slope[1:] - extends
    return reached


def _after_column_gaps(ahead: Matrix, slope: Matrix) -> Matrix:
    """Return the log weight of everything after a gap of columns that ends at each column."""
    return np.logaddexp.accumulate((ahead - slope)[::-1])[::-1] + slope
