"""How probable each pair is: the sum over all alignments, by the forward-backward algorithm."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceana.compare.align.evidence import Matrix
from traceana.compare.align.gotoh import Gaps

_NEVER: Final = -1e18


def posterior(scores: Matrix, gaps: Gaps, unit: float) -> Matrix:
    """Return the probability of each pair, rows by columns.

    Every alignment that :func:`traceana.compare.align.gotoh.best_alignment` chooses from is weighed
    by the exponential of its score; ``scores`` are nats, ``gaps`` multiples of ``unit`` nats.
    """
    rows, columns = scores.shape
    opens, extends, changes = (-cost * unit for cost in (gaps.open, gaps.extend, gaps.change))
    slope = np.arange(columns + 1) * -extends
    forward = np.full((rows + 1, columns + 1), _NEVER)
    forward[0, 0] = 0.0
    down = np.full(columns + 1, _NEVER)
    along = _along(forward[0], down, slope, opens, extends, changes)
    for row in range(rows):
        before = np.logaddexp(np.logaddexp(forward[row], down), along)[:-1]
        down = np.logaddexp(forward[row] + opens, down + extends)
        forward[row + 1, 1:] = before + scores[row]
        along = _along(forward[row + 1], down, slope, opens, extends, changes)
    total = np.logaddexp(np.logaddexp(forward[rows, -1], down[-1]), along[-1])

    found = np.zeros_like(scores)
    # What follows when a pair, a gap of rows, or a gap of columns ends here.
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
        after_columns = _before(ahead, slope)
        along_next = np.append(after_columns[1:], _NEVER)
        after_match = np.logaddexp(ahead, np.logaddexp(rows_next + opens, along_next + opens))
        after_rows = np.logaddexp(ahead, np.logaddexp(rows_next + extends, along_next + changes))
        if row:
            found[row - 1] = np.exp(forward[row, 1:] + after_match[1:] - total)
    return np.minimum(found, 1.0)


def _along(
    match: Matrix, down: Matrix, slope: Matrix, opens: float, extends: float, changes: float
) -> Matrix:
    opened = np.logaddexp(match + opens, down + changes)
    reached = np.full_like(match, _NEVER)
    reached[1:] = np.logaddexp.accumulate(opened + slope)[:-1] - slope[1:] - extends
    return reached


def _before(ahead: Matrix, slope: Matrix) -> Matrix:
    """Return what may follow a gap of columns that ends at each column."""
    return np.logaddexp.accumulate((ahead - slope)[::-1])[::-1] + slope
