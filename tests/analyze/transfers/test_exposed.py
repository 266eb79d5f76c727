"""Exposed time against a sweep over every moment."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from traceana.columns.intervals import computing, exposed

SCHEMA = {"rank": pl.Int32, "device": pl.Int32, "start": pl.Int64, "duration": pl.Int64}
spans = st.tuples(
    st.sampled_from([None, 1]), st.integers(0, 1), st.integers(0, 40), st.integers(0, 12)
)
Span = tuple[int | None, int, int, int]
Moment = tuple[int | None, int, int]


def moments(rows: list[Span]) -> set[Moment]:
    return {
        (rank, device, moment)
        for rank, device, start, duration in rows
        for moment in range(start, start + duration)
    }


def frame(rows: list[Span], **columns: list[str | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(
        pl.Series(name, values, dtype=pl.String) for name, values in columns.items()
    )


@given(
    st.lists(st.tuples(spans, st.sampled_from(["HtoD", "DtoH", None])), max_size=15),
    st.lists(spans, max_size=10),
)
def test_exposed_time_is_what_a_sweep_counts(
    copies: list[tuple[Span, str | None]], kernels: list[Span]
) -> None:
    each = frame([span for span, _ in copies], direction=[kind for _, kind in copies])
    busy = computing(frame(kernels).with_columns(pl.lit("kernel").alias("kind")))
    hidden = moments(kernels)
    by_direction = {
        kind: len(moments([span for span, own in copies if own == kind]) - hidden)
        for kind in {kind for _, kind in copies}
    }
    found = exposed(each, busy, ["direction"])
    assert dict(found.select("direction", "exposed_ns").iter_rows()) == by_direction
    together = exposed(each, busy, [])["exposed_ns"].sum()
    assert together == len(moments([span for span, _ in copies]) - hidden)


def test_what_is_on_no_device_is_left_out() -> None:
    each = frame([(None, None, 0, 10)], direction=["HtoH"])  # type: ignore[list-item]
    busy = computing(frame([]).with_columns(pl.lit("kernel").alias("kind")))
    assert exposed(each, busy, ["direction"]).is_empty()
    assert exposed(each, busy, [])["exposed_ns"].sum() == 0


def test_kernels_and_whole_graphs_hide_and_memory_sets_do_not() -> None:
    kinds = ["kernel", "graph", "memset", "memcpy", "sync"]
    rows: list[Span] = [(None, 0, 10 * number, 10) for number in range(5)]
    busy = computing(frame(rows, kind=list(kinds)))
    each = frame([(None, 0, 0, 50)], direction=["HtoD"])
    assert exposed(each, busy, ["direction"])["exposed_ns"].to_list() == [30]
