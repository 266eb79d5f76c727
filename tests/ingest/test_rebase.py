"""Time 0 is the earliest event of all tables, exactly."""

from __future__ import annotations

import polars as pl

from traceana.ingest.integrity import FARTHEST_NS, rebase
from traceana.trace.schema import TABLES, TIME_COLUMNS


def test_the_earliest_event_of_any_table_becomes_zero_and_lengths_stay() -> None:
    epoch = 1_696_392_839_587_175_551  # beyond what a float64 holds exactly
    frames = {
        "activities": pl.DataFrame({"start": [epoch + 7, epoch + 3], "duration": [1, 2]}),
        "links": pl.DataFrame({"from_time": [epoch], "to_time": [epoch + 9]}),
        "memory": pl.DataFrame({"time": [epoch + 1], "bytes": [64]}),
        "names": pl.DataFrame({"name": ["k"]}),
    }

    shifted, origin = rebase(frames)

    assert origin == epoch
    assert shifted["activities"].to_dict(as_series=False) == {"start": [7, 3], "duration": [1, 2]}
    assert shifted["links"].to_dict(as_series=False) == {"from_time": [0], "to_time": [9]}
    assert shifted["memory"].to_dict(as_series=False) == {"time": [1], "bytes": [64]}
    assert shifted["names"].equals(frames["names"])


def test_the_farthest_times_do_not_overflow() -> None:
    frames = {"calls": pl.DataFrame({"start": [1 - FARTHEST_NS, FARTHEST_NS - 1]})}
    shifted, origin = rebase(frames)
    assert origin == 1 - FARTHEST_NS
    assert shifted["calls"]["start"].to_list() == [0, 2 * FARTHEST_NS - 2]


def test_nothing_at_all_is_rebased_to_nothing() -> None:
    shifted, origin = rebase({"calls": pl.DataFrame(schema={"start": pl.Int64})})
    assert origin == 0
    assert shifted["calls"].is_empty()


def test_every_time_column_of_the_schema_is_known() -> None:
    points = ("start", "time", "from_time", "to_time")
    for table, columns in TABLES.items():
        assert tuple(c for c in points if c in columns) == tuple(
            c for c in points if c in TIME_COLUMNS.get(table, ())
        )
