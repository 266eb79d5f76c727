"""Busy and idle time of each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.idle.gaps import recording
from traceana.analyze.idle.windows import step_windows, windows
from traceana.analyze.intervals import Busy
from traceana.analyze.transfers.exposed import computing
from traceana.analyze.work import why_no_work, work
from traceana.result import Result, sums

if TYPE_CHECKING:
    from traceana.trace import Trace


def busy(trace: Trace) -> Result:
    """Return one row a device that worked.

    Columns: ``rank``, ``device``, ``calls``, ``start_ns`` (its first activity), ``work_span_ns``
    (from there to the end of its last), ``span_ns`` (of the capture, or of the selected steps: what
    ``idle`` looks at), ``busy_ns`` (union of all activities in it), ``kernel_ns`` (union of the
    kernels, and of CUDA graphs recorded whole), ``memops_only_ns`` (busy without a kernel: copies
    and memsets), ``idle_ns`` (``span_ns - busy_ns``), ``sum_ns`` (sum of the durations: more than
    ``busy_ns`` where streams overlap).
    """
    place = ("rank", "device")
    activities = work(trace, *place, "start", "duration").drop_nulls("device")
    end = pl.col("start") + pl.col("duration")
    worked = activities.group_by(place).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("start").min().alias("start_ns"),
        (end.max() - pl.col("start").min()).alias("work_span_ns"),
        pl.col("duration").sum().alias("sum_ns"),
    )
    whole = trace.whole
    looked_at = windows(trace, recording(whole), step_windows(trace))
    ran = work(whole, *place, "kind", "start", "duration").drop_nulls("device")
    inside = looked_at.select(
        *place,
        (pl.col("end") - pl.col("start")).alias("span_ns"),
        Busy.of(ran).within(looked_at).alias("busy_ns"),
        computing(ran).within(looked_at).alias("kernel_ns"),
    )
    frame = (
        worked.join(inside.group_by(place).agg(pl.all().sum()), on=place, nulls_equal=True)
        .sort(place)
        .select(
            *place,
            "calls",
            "start_ns",
            "work_span_ns",
            "span_ns",
            "busy_ns",
            "kernel_ns",
            (pl.col("busy_ns") - pl.col("kernel_ns")).alias("memops_only_ns"),
            (pl.col("span_ns") - pl.col("busy_ns")).alias("idle_ns"),
            "sum_ns",
        )
    )
    notes = (why_no_work(trace),) if frame.is_empty() else ()
    return Result(frame, sums(frame, "span_ns", "busy_ns", "idle_ns", "sum_ns"), notes)
