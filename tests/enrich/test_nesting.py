"""Nesting and lookup on threads, against the definitions carried out naively."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from traceana.columns.distinct import thread_numbers
from traceana.columns.nesting import (
    NONE,
    Nesting,
    by_counting,
    by_peeling,
    from_rows,
    timeline,
    to_rows,
)


def arrays(intervals: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (key, start, duration) of (key, start, duration) tuples."""
    table = np.array(intervals, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


@st.composite
def call_trees(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw properly nested intervals on up to three threads, as a call stack makes them."""
    intervals: list[tuple[int, int, int]] = []

    def fill(key: int, begin: int, end: int, depth: int) -> None:
        at = begin
        while at < end and draw(st.booleans()):
            start = draw(st.integers(at, end))
            stop = draw(st.integers(start, end))
            intervals.append((key, start, stop - start))
            if depth < 4:
                fill(key, start, stop, depth + 1)
            at = stop

    for key in range(draw(st.integers(1, 3))):
        fill(key, 0, 40, 0)
    return draw(st.permutations(intervals))


def strictly_inside(inner: tuple[int, int, int], outer: tuple[int, int, int]) -> bool:
    """Tell whether ``outer`` was running when ``inner`` began; of equal starts the longer was."""
    running = outer[1] <= inner[1] < outer[1] + outer[2]
    return outer[0] == inner[0] and running and (outer[1], -outer[2]) < (inner[1], -inner[2])


@settings(max_examples=100)
@given(call_trees())
def test_depth_counts_the_intervals_around(intervals: list[tuple[int, int, int]]) -> None:
    distinct = list(dict.fromkeys(intervals))
    nesting = Nesting.of(*arrays(distinct))
    for i, inner in enumerate(distinct):
        around = [o for o in distinct if strictly_inside(inner, o)]
        assert nesting.depth[i] == len(around)
        if around:
            smallest = max(around, key=lambda o: (o[1], -o[2]))
            assert distinct[nesting.parent[i]] == smallest
        else:
            assert nesting.parent[i] == NONE


@settings(max_examples=100)
@given(call_trees(), st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 41)), max_size=20))
def test_innermost_is_the_last_begun_that_still_runs(
    intervals: list[tuple[int, int, int]], queries: list[tuple[int, int]]
) -> None:
    distinct = list(dict.fromkeys(intervals))
    nesting = Nesting.of(*arrays(distinct))
    key = np.array([q[0] for q in queries], dtype=np.int64)
    time = np.array([q[1] for q in queries], dtype=np.int64)
    found = nesting.innermost(key, time)
    for (k, t), row in zip(queries, found.tolist(), strict=True):
        running = [o for o in distinct if o[0] == k and o[1] <= t < o[1] + o[2]]
        if running:
            assert distinct[row] == max(running, key=lambda o: (o[1], -o[2]))
        else:
            assert row == NONE


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 15)), max_size=40))
def test_overlaps_that_do_not_nest_are_still_sound(intervals: list[tuple[int, int, int]]) -> None:
    key, start, duration = arrays(intervals)
    nesting = Nesting.of(key, start, duration)
    for i, parent in enumerate(nesting.parent.tolist()):
        if parent == NONE:
            assert nesting.depth[i] == 0
            continue
        assert key[parent] == key[i]
        assert start[parent] <= start[i] < start[parent] + duration[parent]
        assert nesting.depth[i] == nesting.depth[parent] + 1


def test_a_long_chain_of_overlaps_ends() -> None:
    start = np.arange(0, 50_000, 5, dtype=np.int64)
    nesting = Nesting.of(np.zeros_like(start), start, np.full_like(start, 8))
    assert nesting.depth.max() >= 1
    assert (nesting.parent[1::2] != NONE).all()


def test_inherit_takes_the_nearest_value_around() -> None:
    nesting = Nesting.of(*arrays([(0, 0, 100), (0, 10, 50), (0, 20, 10), (0, 80, 5)]))
    value = np.array([7, NONE, NONE, 3])
    assert nesting.inherit(value).tolist() == [7, 7, 7, 3]


def test_threads_are_numbered_alike_in_all_frames() -> None:
    a = pl.DataFrame(
        {"process": [1, 2, None], "thread": [5, 5, None]},
        schema_overrides={"process": pl.Int64, "thread": pl.Int64},
    )
    b = pl.DataFrame({"process": [2, 1, 2], "thread": [5, 5, 6]})
    first, second = thread_numbers(a, b)
    assert first[0] == second[1]
    assert first[1] == second[0]
    assert len({*first.tolist(), *second.tolist()}) == 4


def test_rows_and_nulls() -> None:
    rows = np.array([3, NONE, 0])
    assert to_rows(rows).to_list() == [3, None, 0]
    assert from_rows(to_rows(rows)).tolist() == rows.tolist()


def test_deep_nesting_is_found_as_shallow_nesting_is() -> None:
    """Random brackets, deeper than what is peeled off level by level; parents from a stack."""
    random = np.random.default_rng(0)
    count, parents = 3000, []
    stack: list[int] = []
    begins: list[int] = []
    ends: dict[int, int] = {}
    time = 0
    while len(begins) < count or stack:
        time += 1
        if len(begins) < count and (not stack or random.random() < 0.7):
            parents.append(stack[-1] if stack else NONE)
            stack.append(len(begins))
            begins.append(time)
        else:
            ends[stack.pop()] = time
    start = np.array(begins)
    end = np.array([ends[i] for i in range(count)])
    nesting = Nesting.of(np.zeros(count, dtype=np.int64), start, end - start)
    assert nesting.parent.tolist() == parents
    assert int(nesting.depth.max()) > 600


@given(call_trees(), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=20))
def test_counting_finds_what_peeling_and_climbing_find(
    intervals: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    key, start, duration = arrays(intervals)
    order = np.lexsort((-(start + duration), start, key))
    begin, end = timeline(key[order], start[order], (start + duration)[order])
    counted = by_counting(begin, end)
    assert counted is not None
    for found, peeled in zip(counted, by_peeling(begin, end), strict=True):
        assert found.tolist() == peeled.tolist()
    nesting = Nesting.of(key, start, duration)
    threads, times = (np.array([one[at] for one in asked], dtype=np.int64) for at in (0, 1))
    rows = nesting.innermost_by_counting(threads, times)
    assert rows is not None
    for thread, time, row in zip(threads, times, rows, strict=True):
        runs = (key == thread) & (start <= time) & (time < start + duration)
        assert (row != NONE) == bool(runs.any())
        if row != NONE:
            assert runs[row]
            assert nesting.depth[row] == runs.sum() - 1


def test_counting_leaves_overlaps_that_do_not_nest_to_peeling() -> None:
    assert by_counting(np.array([0, 5]), np.array([10, 15])) is None
