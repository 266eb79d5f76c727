"""The growth of allocated memory from one memory snapshot to another, by line of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.memory import NO_BLOCKS, live_blocks
from traceana.columns.intervals import PER_DEVICE
from traceana.result import Result, sums
from traceana.table import BYTES, COUNT, LINE, Column, conformed
from traceana.timeline.work import DEVICE_COLUMNS

if TYPE_CHECKING:
    from traceana.trace import Trace

_SIDES: Final = {"a": "A", "b": "B"}
COLUMNS: Final = (
    *DEVICE_COLUMNS,
    Column("line", LINE, "line of the program that allocated the memory, as in `memory`"),
    *(
        Column(
            f"allocations_{run}",
            COUNT,
            f"its allocations that are live in {title}",
            title=title,
            group="allocations",
        )
        for run, title in _SIDES.items()
    ),
    *(
        Column(
            f"bytes_{run}",
            BYTES,
            f"their requested bytes in {title}",
            title=title,
            group="bytes",
            scale="memory",
        )
        for run, title in _SIDES.items()
    ),
    Column("growth_bytes", BYTES, "from A to B", title="growth", signed=True, scale="memory"),
)


def memory_growth(a: Trace, b: Trace) -> Result:
    """Return the live memory of snapshots ``a`` and ``b`` by line, the largest change first.

    Memory is that of the blocks at the time of each snapshot, not at a peak. A line that a snapshot
    lacks has 0 bytes there.
    """
    keys = (*PER_DEVICE, "line")
    in_a, in_b = (
        live_blocks(trace)
        .group_by(keys)
        .agg(pl.len().alias(f"allocations_{run}"), pl.col("bytes").sum().alias(f"bytes_{run}"))
        for run, trace in (("a", a), ("b", b))
    )
    both = in_a.join(in_b, on=keys, how="full", coalesce=True, nulls_equal=True)
    frame = both.with_columns(
        pl.col("^(allocations|bytes)_[ab]$").fill_null(0).cast(pl.Int64)
    ).with_columns((pl.col("bytes_b") - pl.col("bytes_a")).alias("growth_bytes"))
    frame = frame.sort(
        pl.col("growth_bytes").abs(),
        "bytes_b",
        *keys,
        descending=[True, True, False, False, False],
        nulls_last=True,
    )
    frame = conformed(frame, COLUMNS)
    summed = [column.name for column in COLUMNS if column.kind in (COUNT, BYTES)]
    return Result(frame, sums(frame, *summed), () if frame.height else (NO_BLOCKS,), COLUMNS)
