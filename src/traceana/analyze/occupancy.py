"""How much of each device the kernels fill: blocks beside multiprocessors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.work import kernels_of
from traceana.result import Result, sums, with_share

if TYPE_CHECKING:
    from traceana.trace import Trace


def occupancy(trace: Trace) -> Result:
    """Return one row a distinct kernel and class.

    Columns: ``name``, ``category``, ``part``, ``calls``, ``time_ns``, ``share``, ``blocks`` (median
    of its launches), ``multiprocessors``, ``short_calls`` and ``short_ns`` (launches of fewer
    blocks than the device has multiprocessors, and their time), ``unused_ns`` (of that time, the
    part of the multiprocessors that had no block: duration x (1 - blocks / multiprocessors)). Null
    where grid or device are not known. Most time without a block first.
    """
    sms = trace.devices.select("rank", "device", "multiprocessors").unique(
        ["rank", "device"], keep="first"
    )
    blocks = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    count, time = pl.col("multiprocessors").cast(pl.Int64), pl.col("duration")
    short = pl.col("blocks") < count
    frame = (
        kernels_of(trace)
        .with_columns(blocks.alias("blocks"))
        .join(sms, on=["rank", "device"], how="left", nulls_equal=True)
        .group_by(SOURCE)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            time.sum().alias("time_ns"),
            pl.col("blocks").median(),
            count.max(),
            short.sum().cast(pl.Int64).alias("short_calls"),
            time.filter(short).sum().alias("short_ns"),
            (time * (count - pl.col("blocks")) // count).filter(short).sum().alias("unused_ns"),
        )
        .join(trace.names.select("name").with_row_index("name_id"), on="name_id", how="left")
    )
    known = pl.when(pl.col("blocks").is_not_null() & pl.col("multiprocessors").is_not_null())
    frame = classified(frame, trace).with_columns(
        known.then(column).alias(column) for column in ("short_calls", "short_ns", "unused_ns")
    )
    frame = with_share(frame).sort(
        ["unused_ns", "time_ns", "name", "part"],
        descending=[True, True, False, False],
        nulls_last=True,
    )
    columns = ("name", "category", "part", "calls", "time_ns", "share", "blocks")
    frame = frame.select(*columns, "multiprocessors", "short_calls", "short_ns", "unused_ns")
    return Result(frame, sums(frame, "calls", "time_ns"), _notes(frame))


def _notes(frame: pl.DataFrame) -> tuple[str, ...]:
    if frame.is_empty():
        return ("no kernels in the trace or in what was selected of it",)
    lacking = int(frame.filter(pl.col("short_ns").is_null())["calls"].sum())
    return (f"of {lacking:,} kernels grid or device are not known",) if lacking else ()
