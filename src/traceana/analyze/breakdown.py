"""Time by class: the rows add up to the work of the trace, to the nanosecond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.measured import measured_notes
from traceana.analyze.steps import measured_steps
from traceana.analyze.work import why_no_work, work
from traceana.result import Result, sums, with_share

if TYPE_CHECKING:
    from traceana.trace import Trace


def breakdown(trace: Trace) -> Result:
    """Return one row a category and part of it.

    Columns: ``category``, ``part``, ``calls``, ``time_ns`` (sum of durations), ``step_ns`` (mean
    over the measured steps, rounded down; null without steps), ``share`` of all work. Rows are
    ordered by the time of their category, then by their own.
    """
    measured = measured_steps(trace)
    in_measured = pl.col("step").is_in(measured.rows)
    by_source = (
        work(trace)
        .group_by(SOURCE)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration").sum().alias("time_ns"),
            pl.col("duration").filter(in_measured).sum().alias("in_steps"),
        )
    )
    frame = (
        classified(by_source, trace)
        .group_by("category", "part")
        .agg(pl.col("calls", "time_ns", "in_steps").sum())
        .with_columns(pl.col("time_ns").sum().over("category").alias("of_category"))
        .sort(
            ["of_category", "category", "time_ns", "part"],
            descending=[True, False, True, False],
            nulls_last=True,
        )
    )
    steps = len(measured.rows)
    step_ns = pl.col("in_steps") // steps if steps else pl.lit(None, pl.Int64)
    frame = with_share(frame.with_columns(step_ns.alias("step_ns")))
    notes = list(measured.notes)
    if frame.is_empty():
        notes.append(why_no_work(trace))
    waits = trace.activities.filter(pl.col("kind") == "sync")
    if waits.height:
        notes.append(f"waiting is no work: synchronization records not counted: {waits.height:,}")
    notes += measured_notes(trace)
    return Result(
        frame.select("category", "part", "calls", "time_ns", "step_ns", "share"),
        sums(frame, "calls", "time_ns"),
        tuple(notes),
    )
