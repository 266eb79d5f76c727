"""All recorded traces: exact counts, and every event of the file accounted for."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import polars as pl

from tests.support.manifest import Expected, each
from tests.support.opened import opened
from traceana.readers import read
from traceana.trace import Trace
from traceana.trace.schema import TIME_COLUMNS

EVENT_TABLES = ("activities", "calls", "ops", "ranges", "links", "memory", "samples")


@lru_cache(maxsize=2)
def raw(path: Path) -> Trace:
    """Return the trace of a file as it is read, without attribution and classes."""
    return read(path)


@each("kineto", "nsys-sqlite", "nvprof-sqlite", "xplane")
def test_counts_equal_the_manifest(want: Expected) -> None:
    activities = raw(want.path).tables.activities
    kernels = activities.filter(pl.col("kind") == "kernel")
    copies = activities.filter(pl.col("kind") == "memcpy")
    assert kernels.height == want.kernels
    assert kernels["name_id"].n_unique() == want.distinct_names
    assert kernels["duration"].sum() == want.kernel_ns
    assert dict(copies["copy_kind"].cast(pl.String).value_counts().iter_rows()) == want.memcpy
    assert (activities["kind"] == "memset").sum() == want.memset


@each("kineto", "nsys-sqlite", "nvprof-sqlite", "xplane")
def test_every_event_is_in_a_table_or_in_the_ledger(want: Expected) -> None:
    trace = raw(want.path)
    kept = sum(trace.tables[name].height for name in EVENT_TABLES)
    left_out = trace.tables.ledger.filter(~pl.col("kept"))["count"].sum()
    assert kept + left_out == trace.meta.events
    assert not trace.meta.truncated
    assert trace.tables.ledger.filter(pl.col("severity") == "problem").is_empty()


@each("kineto", "nsys-sqlite", "nvprof-sqlite", "xplane")
def test_attribution_neither_adds_nor_loses_time(want: Expected) -> None:
    before, trace = raw(want.path), opened(want.path)
    same = ["start", "duration", "kind", "device", "stream", "correlation", "name_id"]
    assert trace.tables.activities.select(same).equals(before.tables.activities.select(same))
    assert trace.tables.activities["layer"].null_count() == 0
    by_layer = trace.tables.activities.group_by("layer").agg(pl.col("duration").sum())
    assert by_layer["duration"].sum() == before.tables.activities["duration"].sum()
    assert trace.tables.activities.filter(pl.col("layer") >= trace.tables.layers.height).is_empty()


@each("kineto", "nsys-sqlite", "nvprof-sqlite", "xplane")
def test_times_are_counted_from_the_first_event(want: Expected) -> None:
    trace = raw(want.path)
    times = pl.concat(
        [
            trace.tables[table][column].rename("time")
            for table, columns in TIME_COLUMNS.items()
            for column in columns
        ]
    )
    assert times.min() == 0
