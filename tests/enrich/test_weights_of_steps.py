"""The weight of the work that marks launch, against a sum over all work."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from traceana.enrich.steps import Work

_THREADS = st.one_of(st.none(), st.integers(1, 3))
_WORK = st.tuples(st.integers(1, 2), _THREADS, st.integers(0, 20), st.integers(1, 5), st.booleans())


@given(
    st.lists(_WORK, max_size=12),
    st.lists(st.tuples(_THREADS, st.integers(0, 2)), min_size=1, max_size=5),
    st.integers(1, 2),
)
def test_launched_is_the_sum_over_the_work(
    work: list[tuple[int, int | None, int, int, bool]],
    marks: list[tuple[int | None, int]],
    process: int,
) -> None:
    columns = {"process": pl.Int64, "thread": pl.Int64, "time": pl.Int64, "weight": pl.Int64}
    rows = pl.DataFrame(work, schema={**columns, "kernel": pl.Boolean}, orient="row").sort("time")
    windows = pl.DataFrame(
        [(process, thread, 4 * at, length) for at, (thread, length) in enumerate(marks)],
        schema={"process": pl.Int64, "thread": pl.Int64, "start": pl.Int64, "duration": pl.Int64},
        orient="row",
    )
    threads = {thread for thread, _ in marks} - {None}
    inside = between = own = 0
    for owner, thread, time, weight, kernel in work:
        if owner != process:
            continue
        within = any(4 * at <= time < 4 * at + length for at, (_, length) in enumerate(marks))
        last = max(4 * at + length for at, (_, length) in enumerate(marks))
        inside += weight * within
        between += weight * (0 <= time < last)
        own += weight * (within and kernel and thread in threads)
    found = Work(rows)
    for _ in range(2):
        assert found.launched(windows) == (inside, between, own)
