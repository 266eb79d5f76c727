"""Time 0 is the earliest event of all tables, exactly."""

from __future__ import annotations

import polars as pl
import pytest

from traceana.readers.integrity import FARTHEST_NS, LONGEST_TRACE_NS, rebase
from traceana.trace import Ledger
from traceana.trace.schema import TABLES, TIME_COLUMNS


def test_the_earliest_event_of_any_table_becomes_zero_and_lengths_stay() -> None:
    epoch = 1_696_392_839_587_175_551  # beyond what a float64 holds exactly
    frames = {
        "activities": pl.DataFrame({"start": [epoch + 7, epoch + 3], "duration": [1, 2]}),
        "links": pl.DataFrame({"from_time": [epoch], "to_time": [epoch + 9]}),
        "memory": pl.DataFrame({"time": [epoch + 1], "bytes": [64]}),
        "names": pl.DataFrame({"name": ["k"]}),
    }

    shifted, origin = rebase(frames, Ledger())

    assert origin == epoch
    assert shifted["activities"].to_dict(as_series=False) == {"start": [7, 3], "duration": [1, 2]}
    assert shifted["links"].to_dict(as_series=False) == {"from_time": [0], "to_time": [9]}
    assert shifted["memory"].to_dict(as_series=False) == {"time": [1], "bytes": [64]}
    assert shifted["names"].equals(frames["names"])


@pytest.mark.parametrize("far", [-(1 << 63), -FARTHEST_NS, 1, FARTHEST_NS, (1 << 63) - 1])
def test_events_a_year_from_the_others_are_refused_in_every_table(far: int) -> None:
    day = LONGEST_TRACE_NS // 366
    epoch = 1_696_392_839_587_175_551
    frames = {
        "calls": pl.DataFrame({"start": [epoch, epoch + day, far], "duration": [1, 1, 1]}),
        "memory": pl.DataFrame({"time": [far, epoch + 1, None], "bytes": [64, 65, 66]}),
        "links": pl.DataFrame({"from_time": [epoch], "to_time": [far]}),
    }
    ledger = Ledger()

    shifted, origin = rebase(frames, ledger)

    assert origin == epoch
    assert shifted["calls"]["start"].to_list() == [0, day]
    assert shifted["memory"]["bytes"].to_list() == [65, 66]
    assert shifted["links"].is_empty()
    counted = ledger.frame().select("reason", "severity", "table", "kept", "count").rows()
    assert counted == [
        ("impossible_time", "problem", table, False, 1) for table in ("calls", "memory", "links")
    ]


def test_durations_that_would_wrap_a_sum_are_refused_longest_first() -> None:
    frames = {
        "activities": pl.DataFrame(
            {"start": range(300), "duration": [LONGEST_TRACE_NS] * 299 + [7]}
        )
    }
    ledger = Ledger()
    kept = rebase(frames, ledger)[0]["activities"]
    assert kept.rows() == [(299, 7)]
    assert ledger.frame().select("reason", "count").rows() == [("impossible_time", 299)]


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1, (1 << 63) - 1])
def test_numbers_beyond_their_column_are_lost_alone(number: int) -> None:
    activities = pl.DataFrame({"start": [5, 6], "duration": [1, 1], "grid_x": [number, 8]})
    ledger = Ledger()
    kept = rebase({"activities": activities}, ledger)[0]["activities"]
    assert kept["grid_x"].to_list() == [None, 8]
    assert ledger.frame().select("reason", "kept", "count", "detail").rows() == [
        ("lost_field", True, 1, "grid_x")
    ]


def test_numbers_that_fit_a_wide_column_are_kept_whatever_type_they_were_read_as() -> None:
    correlation = pl.Series([1 << 40], dtype=pl.UInt64)
    calls = pl.DataFrame({"start": [5], "duration": [1], "correlation": correlation})
    ledger = Ledger()
    assert rebase({"calls": calls}, ledger)[0]["calls"]["correlation"].to_list() == [1 << 40]
    assert ledger.frame().is_empty()


def test_sums_of_bytes_do_not_wrap() -> None:
    many = 10_000
    memory = pl.DataFrame({"time": range(many), "bytes": [(1 << 50) - 1] * (many - 1) + [64]})
    far = pl.DataFrame({"time": [0, 1], "allocated": [(1 << 63) - 1, 64]})
    ledger = Ledger()
    assert rebase({"memory": memory}, ledger)[0]["memory"]["bytes"].sum() == 64
    assert rebase({"memory": far}, ledger)[0]["memory"]["allocated"].to_list() == [None, 64]
    assert ledger.frame()["count"].to_list() == [many - 1, 1]


def test_nothing_at_all_is_rebased_to_nothing() -> None:
    shifted, origin = rebase({"calls": pl.DataFrame(schema={"start": pl.Int64})}, Ledger())
    assert origin == 0
    assert shifted["calls"].is_empty()


def test_every_time_column_of_the_schema_is_known() -> None:
    points = ("start", "time", "from_time", "to_time")
    for table, columns in TABLES.items():
        assert tuple(c for c in points if c in columns) == tuple(
            c for c in points if c in TIME_COLUMNS.get(table, ())
        )


def test_names_of_any_size_are_cut_and_counted() -> None:
    calls = pl.DataFrame(
        {"start": [5, 6, 7], "name": ["é" * 40_000, "f", None]},
        schema={"start": pl.Int64, "name": pl.Categorical},
    )
    ledger = Ledger()
    kept = rebase({"calls": calls}, ledger)[0]["calls"]
    assert kept["name"].to_list() == ["é" * (1 << 14), "f", None]
    assert ledger.frame().select("reason", "severity", "kept", "count", "detail").rows() == [
        ("oversized", "problem", True, 1, "name")
    ]
