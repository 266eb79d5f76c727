"""Unions of intervals against brute force."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from traceana.columns.intervals import Busy, length, union

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=25)


def covered(pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for start, size in pairs for moment in range(start, start + size)}


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    return starts, starts + np.array([size for _, size in pairs], dtype=np.int64)


@settings(deadline=None)
@given(spans)
def test_a_union_covers_what_its_intervals_cover(pairs: list[tuple[int, int]]) -> None:
    starts, ends = union(*arrays(pairs))
    assert covered(list(zip(starts, ends - starts, strict=True))) == covered(pairs)
    assert length((starts, ends)) == len(covered(pairs))
    assert (starts[1:] > ends[:-1]).all(), "disjoint, ordered, and none touching the next"


@settings(deadline=None)
@given(
    spans, spans, st.lists(st.tuples(st.sampled_from([0, 1, 7]), st.integers(0, 80)), max_size=9)
)
def test_busy_time_within_windows(
    first: list[tuple[int, int]], second: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    # The same device number in two ranks is two devices.
    rows = [(None, 0, *pair) for pair in first] + [(1, 0, *pair) for pair in second]
    places = {"rank": pl.Int32, "device": pl.Int32}
    activities = pl.DataFrame(
        rows, schema={**places, "start": pl.Int64, "duration": pl.Int64}, orient="row"
    )
    windows = [(rank, start, start + 11) for rank, start in asked]
    frame = pl.DataFrame(
        [(None if rank == 0 else rank, 0, start, end) for rank, start, end in windows],
        schema={**places, "start": pl.Int64, "end": pl.Int64},
        orient="row",
    )
    busy = Busy.of(activities)
    moments = {0: covered(first), 1: covered(second), 7: set[int]()}
    assert busy.within(frame).to_list() == [
        len(moments[rank] & set(range(start, end))) for rank, start, end in windows
    ]
    assert busy.total((None, 0)) == len(moments[0])
    assert busy.total((7, 0)) == 0


def test_activities_without_a_device_or_time_are_left_out() -> None:
    rows = pl.DataFrame(
        {"rank": [0, 0], "device": [None, 0], "start": [5, None], "duration": [3, 4]}
    )
    assert Busy.of(rows).by_device == {}
