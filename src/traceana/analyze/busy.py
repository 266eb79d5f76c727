"""Busy and idle time of each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.intervals import Busy
from traceana.analyze.result import Result, sums
from traceana.analyze.transfers.exposed import computing
from traceana.analyze.work import why_no_work, work

if TYPE_CHECKING:
    from traceana.trace import Trace


def busy(trace: Trace) -> Result:
    """Return one row a device that worked.

    Columns: ``rank``, ``device``, ``calls``, ``start_ns`` (its first activity), ``span_ns`` (from
    there to the end of its last), ``busy_ns`` (union of all activities), ``kernel_ns`` (union of
    the kernels, and of CUDA graphs recorded whole), ``copy_only_ns`` (busy without a kernel),
    ``idle_ns`` (``span_ns - busy_ns``), ``sum_ns`` (sum of the durations: more than ``busy_ns``
    where streams overlap).
    """
    activities = work(trace, "rank", "device", "kind", "start", "duration").drop_nulls("device")
    end = pl.col("start") + pl.col("duration")
    frame = (
        activities.group_by("rank", "device")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("start").min().alias("start_ns"),
            (end.max() - pl.col("start").min()).alias("span_ns"),
            pl.col("duration").sum().alias("sum_ns"),
        )
        .sort("rank", "device")
    )
    everything = Busy.of(activities)
    kernels = computing(activities)
    places = list(frame.select("rank", "device").iter_rows())
    frame = frame.with_columns(
        pl.Series("busy_ns", [everything.total(at) for at in places], dtype=pl.Int64),
        pl.Series("kernel_ns", [kernels.total(at) for at in places], dtype=pl.Int64),
    ).select(
        "rank",
        "device",
        "calls",
        "start_ns",
        "span_ns",
        "busy_ns",
        "kernel_ns",
        (pl.col("busy_ns") - pl.col("kernel_ns")).alias("copy_only_ns"),
        (pl.col("span_ns") - pl.col("busy_ns")).alias("idle_ns"),
        "sum_ns",
    )
    notes = (why_no_work(trace),) if frame.is_empty() else ()
    return Result(frame, sums(frame, "span_ns", "busy_ns", "idle_ns", "sum_ns"), notes)
