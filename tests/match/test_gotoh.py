"""The alignment against all alignments there are, on small cases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceana.columns.distinct import in_turn
from traceana.match.alignment import Gaps, best_alignment, posterior

Pairs = tuple[tuple[int, int], ...]

small = st.integers(0, 4).flatmap(
    lambda rows: st.integers(0, 4).flatmap(
        lambda columns: st.lists(
            st.integers(-9, 9), min_size=rows * columns, max_size=rows * columns
        ).map(lambda cells: np.array(cells, dtype=np.int64).reshape(rows, columns))
    )
)
gaps = st.builds(Gaps, st.integers(0, 6), st.integers(0, 3), st.integers(0, 6))


def alignments(rows: int, columns: int) -> Iterator[Pairs]:
    for count in range(min(rows, columns) + 1):
        for left in combinations(range(rows), count):
            for right in combinations(range(columns), count):
                yield tuple(zip(left, right, strict=True))


def worth(pairs: Pairs, scores: np.ndarray, gaps: Gaps) -> int:
    """Score an alignment from its definition: stretches between pairs, rows before columns."""
    total = sum(int(scores[pair]) for pair in pairs)
    row = column = 0
    for i, j in (*pairs, scores.shape):
        down, along = i - row, j - column
        if down:
            total -= gaps.open + gaps.extend * (down - 1)
        if along:
            total -= (gaps.change if down else gaps.open) + gaps.extend * (along - 1)
        row, column = i + 1, j + 1
    return total


@given(small, gaps)
def test_no_alignment_is_better(scores: np.ndarray, gaps: Gaps) -> None:
    pairs, score = best_alignment(scores, gaps)
    assert worth(tuple(pairs), scores, gaps) == score
    assert score == max(worth(one, scores, gaps) for one in alignments(*scores.shape))


@given(small, gaps)
def test_probabilities_are_those_of_all_alignments(scores: np.ndarray, gaps: Gaps) -> None:
    unit = 0.3
    every = list(alignments(*scores.shape))
    weights = np.exp([unit * worth(one, scores, gaps) for one in every])
    expected = np.zeros(scores.shape)
    for pairs, weight in zip(every, weights / weights.sum(), strict=True):
        for pair in pairs:
            expected[pair] += weight
    np.testing.assert_allclose(posterior(scores * unit, gaps, unit), expected, atol=1e-9)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_nothing_can_be_paired_with_nothing(shape: tuple[int, int]) -> None:
    pairs, _ = best_alignment(np.zeros(shape, dtype=np.int64), Gaps(3, 1, 2))
    assert pairs == []


def test_equal_elements_are_paired_in_turn_where_none_is_missing() -> None:
    assert in_turn("abcab", "bbaca") == [(0, 2), (3, 4), (1, 0), (4, 1), (2, 3)]
    assert in_turn("aab", "ab") == [(2, 1)]
