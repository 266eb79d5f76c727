"""The gaps of each device: from when nothing runs on it to when the next work begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.attribute.nesting import NONE, Ints, to_rows

if TYPE_CHECKING:
    from traceana.trace import Trace

_TABLES: Final = ("activities", "calls", "ops", "ranges")

RECORDING: Final = ("rank", "begin", "finish")


def recording(trace: Trace) -> pl.DataFrame:
    """Return ``rank``, ``begin``, ``finish``: the first and the last moment of anything recorded.

    One row a rank, or one whose rank is null.
    """
    end = pl.col("start") + pl.col("duration")
    parts = [
        trace.table(name)
        .group_by("rank")
        .agg(pl.col("start").min().alias("begin"), end.max().alias("finish"))
        for name in _TABLES
    ]
    return (
        pl.concat(parts)
        .group_by("rank")
        .agg(pl.col("begin").min(), pl.col("finish").max())
        .drop_nulls(["begin", "finish"])
    )


def gaps(work: pl.DataFrame, bounds: pl.DataFrame) -> pl.DataFrame:
    """Return the moments at which the devices of ``work`` do nothing, by device and time.

    ``work`` has ``row`` (in activities), ``rank``, ``device``, ``start`` and ``duration``;
    ``bounds`` is of :func:`recording`. Columns: ``rank``, ``device``, ``start``, ``end``,
    ``before`` (row of the activity that ended last) and ``after`` (row of the one that begins then;
    of several the first in the table), null where the recording begins and ends. O(n log n).
    """
    found = []
    limits = {rank: (begin, finish) for rank, begin, finish in bounds.iter_rows()}
    columns = work.select("rank", "device", "row", "start", "duration")
    for (rank, device), rows in columns.partition_by("rank", "device", as_dict=True).items():
        start, end, before, after = _of_device(rows, *limits[rank])
        found.append(
            pl.DataFrame(
                {"start": start, "end": end, "before": to_rows(before), "after": to_rows(after)}
            ).select(
                pl.lit(rank, pl.Int32).alias("rank"),
                pl.lit(device, pl.Int32).alias("device"),
                pl.all(),
            )
        )
    return pl.concat(found) if found else _EMPTY


_EMPTY: Final = pl.DataFrame(
    schema={
        "rank": pl.Int32,
        "device": pl.Int32,
        "start": pl.Int64,
        "end": pl.Int64,
        "before": pl.UInt32,
        "after": pl.UInt32,
    }
)


def _of_device(rows: pl.DataFrame, begin: int, finish: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return start, end, activity before and activity after each gap of one device."""
    starts = rows["start"].to_numpy()
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    ends = starts + rows["duration"].to_numpy()[order]
    row = rows["row"].cast(pl.Int64).to_numpy()[order]
    reached = np.maximum.accumulate(ends)
    # Where the reach grows, that piece of work is the last to end from there on.
    grows = np.concatenate(([True], ends[1:] > reached[:-1]))
    last = np.maximum.accumulate(np.where(grows, np.arange(len(ends)), 0))
    idle = np.flatnonzero(starts[1:] > reached[:-1])
    edge = np.array([NONE], dtype=np.int64)
    start = np.concatenate(([begin], reached[idle], [reached[-1]]))
    end = np.concatenate(([starts[0]], starts[idle + 1], [finish]))
    before = np.concatenate((edge, row[last[idle]], row[last[-1:]]))
    after = np.concatenate((row[:1], row[idle + 1], edge))
    there = end > start
    return start[there], end[there], before[there], after[there]
