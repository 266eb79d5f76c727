"""The inputs that the benchmarks of attribution and classification make."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.attribute import by_joins
from benchmarks.kernel_names import varied
from benchmarks.nested_ranges import Timeline, Unit, chain, timeline, tree
from traceana.columns.nesting import Nesting


def _innermost_by_looking(line: Timeline) -> list[int]:
    """The latest to begin of all that run: with nested ranges, the innermost."""
    found = []
    for key, time in zip(line.launch_key, line.launch_time, strict=True):
        ends = line.range_start + line.range_duration
        runs = (line.range_key == key) & (line.range_start <= time) & (time < ends)
        rows = np.flatnonzero(runs)
        found.append(int(rows[np.argmax(line.range_start[rows])]) if len(rows) else -1)
    return found


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("unit", "each"), [(tree(), 40), (chain(5), 5)])
def test_the_expected_ranges_are_those_found_by_looking(
    unit: Unit, each: int, shuffled: bool
) -> None:
    line = timeline(unit, ranges=6 * each, launches=200, threads=3, shuffled=shuffled)
    assert len(line.range_key) == 6 * each
    assert set(line.launch_key) == {0, 1, 2}
    in_order = all(np.all(np.diff(times) >= 0) for times in (line.range_start, line.launch_time))
    assert in_order is not shuffled
    assert line.expected.tolist() == _innermost_by_looking(line)
    assert len(set(line.expected)) > each  # launches are spread over ranges of every depth


def test_joins_a_depth_find_the_expected_ranges() -> None:
    line = timeline(tree(), ranges=240, launches=500, threads=3)
    nesting = Nesting.of(line.range_key, line.range_start, line.range_duration)
    assert by_joins(nesting, line).tolist() == line.expected.tolist()


def test_varied_names_are_distinct_and_begin_with_the_real_ones() -> None:
    real = ["void gemm<64, 32>(float*)", "relu", "void gemm<64, 32>(float*)"]
    names = varied(7, real)
    assert names[:2] == ["void gemm<64, 32>(float*)", "relu"]
    assert names[2:4] == ["void gemm<64, 1000>(float*)", "relu_1000"]
    assert len(set(names)) == len(names) == 7


def test_fewer_names_than_there_are_real_ones_are_the_first_of_them() -> None:
    assert varied(1, ["a", "b"]) == ["a"]
