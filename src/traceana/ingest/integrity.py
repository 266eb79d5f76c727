"""The last steps of every reader: events with invalid times are dropped, times become relative.

Every dropped event is counted in the ledger with its reason, so that the conservation law holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from traceana.trace.ledger import Ledger
from traceana.trace.schema import TIME_COLUMNS

FARTHEST_NS: Final = 1 << 62
"""Times and durations this far from 0 (146 years) are invalid; below it differences fit int64."""


def screen(frame: pl.DataFrame, table: str, ledger: Ledger) -> pl.DataFrame:
    """Return the valid rows of ``frame``, in order; count the others in ``ledger``.

    ``frame`` needs ``start`` and ``duration`` (int64 nanoseconds on the file's own clock, before
    :func:`rebase`). Rows are dropped for the first of these reasons:

    - ``zero_timestamp``: start is 0, which CUPTI writes where the timestamp was lost.
    - ``missing_time``: start or duration is null.
    - ``malformed``: start or duration lies :data:`FARTHEST_NS` or farther from 0.
    - ``negative_duration``: the event ends before it starts.
    - ``duplicate``: equal to an earlier row in every column, ids included.

    ``table`` is the canonical table that the rows are meant for.
    """
    start, duration = pl.col("start"), pl.col("duration")
    reason = (
        pl.when(start == 0)
        .then(pl.lit("zero_timestamp"))
        .when(start.is_null() | duration.is_null())
        .then(pl.lit("missing_time"))
        .when(_beyond(start) | _beyond(duration))
        .then(pl.lit("malformed"))
        .when(duration < 0)
        .then(pl.lit("negative_duration"))
    )
    # Nearly every trace is valid, and is not copied.
    if frame.select(reason.is_not_null().any()).item():
        reasoned = frame.with_columns(reason.alias("_reason"))
        for why, dropped in reasoned.filter(pl.col("_reason").is_not_null()).group_by(
            "_reason", maintain_order=True
        ):
            _count(str(why[0]), dropped, table, ledger)
        frame = reasoned.filter(pl.col("_reason").is_null()).drop("_reason")
    return _without_duplicates(frame, table, ledger)


def _beyond(time: pl.Expr) -> pl.Expr:
    return (time <= -FARTHEST_NS) | (time >= FARTHEST_NS)


def _without_duplicates(frame: pl.DataFrame, table: str, ledger: Ledger) -> pl.DataFrame:
    # Equal rows start together: only rows that share a start are compared in full, and sorting
    # one column finds those several times faster than hashing it.
    starts = frame["start"].sort()
    shared = starts.filter(starts == starts.shift()).unique()
    if shared.is_empty():
        return frame
    numbered = frame.with_row_index("_row")
    suspects = numbered.filter(pl.col("start").is_in(shared.implode()))
    repeated = suspects.filter(~pl.struct(frame.columns).is_first_distinct())
    if repeated.is_empty():
        return frame
    _count("duplicate", repeated, table, ledger)
    return numbered.join(
        repeated.select("_row"), on="_row", how="anti", maintain_order="left"
    ).drop("_row")


def _count(reason: str, dropped: pl.DataFrame, table: str, ledger: Ledger) -> None:
    # Lost or invalid times have no sum.
    known = reason in ("duplicate", "negative_duration")
    ledger.add(
        reason,
        dropped.height,
        table=table,
        time_ns=int(dropped["duration"].sum()) if known else None,
    )


def rebase(frames: Mapping[str, pl.DataFrame]) -> tuple[dict[str, pl.DataFrame], int]:
    """Return ``frames`` (canonical tables by name) with times since the first event, and its time.

    The first event's time is in nanoseconds on the file's own clock, 0 where no frame has a row.
    Times must lie within :data:`FARTHEST_NS` of 0, or the shift could overflow.
    """
    columns = {name: TIME_COLUMNS.get(name, ()) for name in frames}
    earliest = [
        value
        for name, frame in frames.items()
        for column in columns[name]
        if isinstance(value := frame[column].min(), int)
    ]
    origin = min(earliest, default=0)
    shifted = {
        name: frame.with_columns(pl.col(column) - origin for column in columns[name])
        for name, frame in frames.items()
    }
    return shifted, origin
