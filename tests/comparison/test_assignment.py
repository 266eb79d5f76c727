"""The assignment against all there are, on small cases."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceana.comparison.layer_alignment import best_assignment

tables = st.integers(1, 5).flatmap(
    lambda rows: st.integers(1, 5).flatmap(
        lambda columns: st.lists(
            st.floats(-5, 5).map(lambda x: round(x, 2)),
            min_size=rows * columns,
            max_size=rows * columns,
        ).map(lambda cells: np.array(cells).reshape(rows, columns))
    )
)


def most(worth: np.ndarray) -> float:
    """Return the most that any assignment is worth, pairs of no worth left out."""
    size = max(worth.shape)
    square = np.zeros((size, size))
    square[: worth.shape[0], : worth.shape[1]] = np.maximum(worth, 0)
    return max(
        sum(float(square[row, column]) for row, column in enumerate(order))
        for order in permutations(range(size))
    )


@given(tables)
def test_no_assignment_is_worth_more(worth: np.ndarray) -> None:
    pairs = best_assignment(worth)
    assert len({row for row, _ in pairs}) == len({column for _, column in pairs}) == len(pairs)
    assert all(worth[pair] > 0 for pair in pairs)
    assert sum(worth[pair] for pair in pairs) == pytest.approx(most(worth))


def test_an_empty_table_has_no_pairs() -> None:
    assert best_assignment(np.zeros((0, 3))) == []
