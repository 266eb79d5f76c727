"""The integrity step shared by the readers: nothing is lost without a ledger entry."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceana.readers.integrity import FARTHEST_NS, LONGEST_TRACE_NS, screen
from traceana.trace.ledger import Ledger

Row = tuple[int | None, int | None, int]


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        rows,
        schema={"start": pl.Int64, "duration": pl.Int64, "correlation": pl.Int64},
        orient="row",
    )


@pytest.mark.parametrize(
    ("row", "reason", "time_ns"),
    [
        ((0, 5, 1), "zero_timestamp", None),
        ((0, None, 1), "zero_timestamp", None),
        ((None, 5, 1), "missing_time", None),
        ((5, None, 1), "missing_time", None),
        ((FARTHEST_NS, 5, 1), "impossible_time", None),
        ((-FARTHEST_NS, 5, 1), "impossible_time", None),
        ((5, LONGEST_TRACE_NS + 1, 1), "impossible_time", None),
        ((5, -(1 << 63), 1), "impossible_time", None),
        ((5, -3, 1), "negative_duration", -3),
        ((10, 5, 1), "duplicate", 5),
    ],
)
def test_a_refused_row_is_in_the_ledger_and_nowhere_else(
    row: Row, reason: str, time_ns: int | None
) -> None:
    ledger = Ledger()
    sound = (10, 5, 1)

    kept = screen(frame([sound, row]), "calls", ledger)

    assert kept.rows() == [sound]
    entry = ledger.frame().row(0, named=True)
    assert (entry["reason"], entry["table"], entry["kept"]) == (reason, "calls", False)
    assert (entry["count"], entry["time_ns"]) == (1, time_ns)


def test_rows_that_differ_in_any_column_are_no_duplicates() -> None:
    ledger = Ledger()
    rows = [(10, 5, 1), (10, 5, 2), (10, 6, 1), (11, 5, 1), (10, 0, 1)]
    assert screen(frame(rows), "calls", ledger).rows() == rows
    assert ledger.frame().is_empty()


def test_duplicates_are_found_wherever_they_stand_and_with_nulls_and_categories() -> None:
    rows = [(30, 1, "a", None), (10, 1, "b", 2), (30, 1, "a", None), (30, 1, "a", None)]
    columns = {
        "start": pl.Int64,
        "duration": pl.Int64,
        "name": pl.Categorical,
        "correlation": pl.Int64,
    }
    ledger = Ledger()
    kept = screen(pl.DataFrame(rows, schema=columns, orient="row"), "calls", ledger)
    assert kept["start"].to_list() == [30, 10]
    assert ledger.frame()["count"].to_list() == [2]


times = st.one_of(st.none(), st.integers(-4, 4), st.sampled_from([-(1 << 63), (1 << 63) - 1]))


@given(st.lists(st.tuples(times, times, st.integers(0, 1)), max_size=30))
def test_conservation_order_and_distinctness_hold_for_any_rows(rows: list[Row]) -> None:
    ledger = Ledger()
    kept = screen(frame(rows), "calls", ledger).rows()

    assert len(kept) + ledger.frame()["count"].sum() == len(rows)
    assert len(set(kept)) == len(kept)
    assert kept == list(dict.fromkeys(row for row in rows if row in set(kept)))
    for start, duration, _ in kept:
        assert start not in (0, None)
        assert 0 <= duration <= LONGEST_TRACE_NS


def test_an_empty_frame_stays_empty() -> None:
    ledger = Ledger()
    assert screen(frame([]), "calls", ledger).is_empty()
    assert ledger.frame().is_empty()
