"""Pairs regardless of order: the assignment of most worth (Kuhn 1955, by shortest paths)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceana.compare.align.evidence import Matrix


def best_assignment(worth: Matrix) -> list[tuple[int, int]]:
    """Return pairs (row, column), each in one at most, of the greatest summed worth.

    A pair of no positive worth is never made. O(n^3) of the larger number n, n^2 steps of numpy.
    """
    rows, columns = worth.shape
    size = max(rows, columns)
    if not size:
        return []
    cost = np.zeros((size, size))
    cost[:rows, :columns] = -np.maximum(worth, 0.0)
    column_of = _assigned(cost)
    return [
        (row, int(column_of[row]))
        for row in range(rows)
        if column_of[row] < columns and worth[row, column_of[row]] > 0
    ]


def _assigned(cost: Matrix) -> npt.NDArray[np.int64]:
    """Return the column of each row of a square matrix so that the summed cost is least.

    Rows are added one by one along the shortest augmenting path; the duals keep all reduced costs
    nonnegative. Column ``size`` stands for the row that is being added.
    """
    size = len(cost)
    of_row, of_column = np.zeros(size), np.zeros(size + 1)
    row_of = np.full(size + 1, -1, dtype=np.int64)
    for added in range(size):
        row_of[size] = added
        column = size
        least = np.full(size, np.inf)
        came = np.full(size, size, dtype=np.int64)
        done = np.zeros(size + 1, dtype=bool)
        while row_of[column] >= 0:
            done[column] = True
            row = row_of[column]
            reduced = cost[row] - of_row[row] - of_column[:size]
            closer = ~done[:size] & (reduced < least)
            least[closer], came[closer] = reduced[closer], column
            following = int(np.argmin(np.where(done[:size], np.inf, least)))
            delta = least[following]
            of_row[row_of[done]] += delta
            of_column[done] -= delta
            least[~done[:size]] -= delta
            column = following
        while column != size:
            previous = int(came[column])
            row_of[column] = row_of[previous]
            column = previous
    found = np.empty(size, dtype=np.int64)
    found[row_of[:size]] = np.arange(size)
    return found
