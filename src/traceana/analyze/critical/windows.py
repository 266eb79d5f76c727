"""From when to when the path of each step is followed, and where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.trace.schema import DEVICE_WORK

if TYPE_CHECKING:
    from traceana.trace import Trace

KEYS: Final = ("rank", "process")
_SAME: Final = ("number", "start", "duration", *KEYS)


def windows(trace: Trace) -> pl.DataFrame:
    """Return one row a step of ``trace``, in their order; one a rank where no step is marked.

    A step is complete when the host has left it and the last work that it launched has ended, on
    whatever device. Its window is from its mark, or where the step before it was not complete by
    then from that one's completion, to its own: no moment is in two windows of a process, and where
    the host runs ahead the windows are as long as the device takes. Columns: ``number``, ``rank``,
    ``process``, ``thread`` (that marked it), ``begin``, ``end``, ``host_end`` (when the host left
    it). Without steps the window spans all work, calls and operators.
    """
    if trace.steps.is_empty():
        return _spans(trace)
    whole = trace.whole
    end = pl.col("start") + pl.col("duration")
    ended = (
        whole.activities.filter(pl.col("kind").is_in(DEVICE_WORK) & pl.col("step").is_not_null())
        .group_by("step")
        .agg(end.max().alias("device_end"))
    )
    complete = pl.max_horizontal("host_end", "device_end")
    earlier = pl.col("complete").cum_max().shift(1).over(KEYS)
    every = (
        whole.steps.with_row_index("step")
        .join(ended, on="step", how="left", maintain_order="left")
        .with_columns(end.alias("host_end"))
        .sort("start", maintain_order=True)
        .with_columns(complete.alias("complete"))
        .with_columns(pl.max_horizontal("start", earlier).alias("begin"))
        .with_columns(pl.max_horizontal("begin", "complete").alias("end"))
        .join(_threads(whole), on=_MARK, how="left", nulls_equal=True, maintain_order="left")
    )
    return trace.steps.join(
        every.unique(_SAME, keep="first", maintain_order=True),
        on=_SAME,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    ).select("number", *KEYS, "thread", "begin", "end", "host_end")


_MARK: Final = ("start", "duration", *KEYS)


def _threads(trace: Trace) -> pl.DataFrame:
    """Return the thread of the outermost range of each time and process."""
    found = trace.ranges.filter(pl.col("thread").is_not_null())
    return found.select(*_MARK, "thread").unique(_MARK, keep="first", maintain_order=True)


def _spans(trace: Trace) -> pl.DataFrame:
    tables = [trace.activities, trace.whole.calls, trace.whole.ops]
    begin, end = pl.col("start"), pl.col("start") + pl.col("duration")
    spans = pl.concat(
        table.select("rank", begin.alias("begin"), end.alias("end")) for table in tables
    )
    if trace.activities.height:
        spans = spans.join(
            trace.activities.select("rank").unique(), on="rank", how="semi", nulls_equal=True
        )
    host = pl.concat(table.select("rank", end.alias("host_end")) for table in tables[1:])
    return (
        spans.group_by("rank")
        .agg(pl.col("begin").min(), pl.col("end").max())
        .join(
            host.group_by("rank").agg(pl.col("host_end").max()),
            on="rank",
            how="left",
            nulls_equal=True,
        )
        .sort("rank")
        .select(
            pl.lit(None, pl.Int64).alias("number"),
            "rank",
            pl.lit(None, pl.Int64).alias("process"),
            pl.lit(None, pl.Int64).alias("thread"),
            "begin",
            "end",
            pl.col("host_end").fill_null(pl.col("begin")),
        )
    )
