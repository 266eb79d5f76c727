"""The last steps of every reader: impossible events are dropped, times become relative.

Every dropped event and every lost number is counted in the ledger with its reason, so that the
conservation law holds. What is kept fits the tables' types, and its sums fit int64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from traceana.trace.ledger import Ledger
from traceana.trace.schema import DEVICE_WORK, SCHEMA, TIME_COLUMNS

FARTHEST_NS: Final = 1 << 62
"""Times this far from 0 (146 years) are impossible; below it differences fit int64."""
LONGEST_TRACE_NS: Final = 366 * 24 * 3600 * 10**9
"""A year: events farther apart are not of one trace, and longer ones did not happen. Times of 290
devices of such a trace can be added up in int64."""
LARGEST_SUM: Final = 1 << 62
"""Largest sum of a table's durations or bytes: those of two tables together fit int64."""
_MOST_BYTES: Final = 1 << 50
"""No device has a pebibyte of memory."""

_LONGEST_NAME: Final = 1 << 16
"""Bytes of a name that are kept; C++ templates have a few thousand."""
_MANY: Final = 1 << 13
"""Categories whose lengths are counted within 0.1 ms."""


def screen(
    frame: pl.DataFrame,
    table: str,
    ledger: Ledger,
    *,
    repeats: pl.Expr | bool = False,
    zero_is_lost: bool = True,
) -> pl.DataFrame:
    """Return the valid rows of ``frame``, in order; count the others in ``ledger``.

    ``frame`` needs ``start`` and ``duration`` (int64 nanoseconds on the file's own clock, before
    :func:`rebase`). Rows are dropped for the first of these reasons:

    - ``zero_timestamp``: start is 0, which CUPTI writes where the timestamp was lost, unless
      ``zero_is_lost`` is false: in formats whose clock starts with the recording.
    - ``missing_time``: start or duration is null.
    - ``impossible_time``: start lies :data:`FARTHEST_NS` or farther from 0, or duration exceeds
      :data:`LONGEST_TRACE_NS`.
    - ``negative_duration``: the event ends before it starts.
    - ``duplicate``: equal to an earlier row in every column, ids included, except rows that
      ``repeats``: those that sound files have several times.

    ``table`` is the canonical table that the rows are meant for.
    """
    first, last = _ends(frame["start"])
    if zero_is_lost and first <= 0 <= last:
        lost = pl.when(pl.col("start") == 0).then(pl.lit("zero_timestamp"))
        frame = _without(frame, lost, table, ledger)
    near = possible(frame, table, ledger)
    return near if repeats is True else _without_duplicates(near, table, ledger, repeats)


def possible(frame: pl.DataFrame, table: str, ledger: Ledger) -> pl.DataFrame:
    """Return the rows of ``frame`` with a possible time: :func:`screen` without its first and last
    reason."""
    if not (frame["start"].null_count() or frame["duration"].null_count()):
        first, last = _ends(frame["start"])
        shortest, longest = _ends(frame["duration"])
        near = first > -FARTHEST_NS and last < FARTHEST_NS
        if near and shortest >= 0 and longest <= LONGEST_TRACE_NS:
            return frame
    start, duration = pl.col("start"), pl.col("duration")
    reason = (
        pl.when(start.is_null() | duration.is_null())
        .then(pl.lit("missing_time"))
        .when(
            (start <= -FARTHEST_NS)
            | (start >= FARTHEST_NS)
            | (duration > LONGEST_TRACE_NS)
            | (duration < -LONGEST_TRACE_NS)
        )
        .then(pl.lit("impossible_time"))
        .when(duration < 0)
        .then(pl.lit("negative_duration"))
    )
    return _without(frame, reason, table, ledger)


def _ends(values: pl.Series) -> tuple[int, int]:
    """Return the least and the greatest number of ``values``, 0 and 0 where there is none."""
    least, greatest = values.min(), values.max()
    return (least, greatest) if isinstance(least, int) and isinstance(greatest, int) else (0, 0)


def _without(frame: pl.DataFrame, reason: pl.Expr, table: str, ledger: Ledger) -> pl.DataFrame:
    """Return the rows for which ``reason`` is null; count the others."""
    # Nearly every trace is valid, and is not copied.
    if not frame.select(reason.is_not_null().any()).item():
        return frame
    reasoned = frame.with_columns(reason.alias("_reason"))
    for why, dropped in reasoned.filter(pl.col("_reason").is_not_null()).group_by(
        "_reason", maintain_order=True
    ):
        _count(str(why[0]), dropped, table, ledger)
    return reasoned.filter(pl.col("_reason").is_null()).drop("_reason")


def _without_duplicates(
    frame: pl.DataFrame, table: str, ledger: Ledger, repeats: pl.Expr | bool
) -> pl.DataFrame:
    # Sorting one column finds the starts that rows share several times faster than hashing it; it
    # is stable because that is fast where the starts of each thread or stream are in order.
    start = frame["start"].to_numpy()
    ordered = np.sort(start, kind="stable")
    shared = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(shared):
        return frame
    # Only rows that share start and duration are compared in full.
    suspects = np.flatnonzero(
        shared[np.searchsorted(shared, start).clip(max=len(shared) - 1)] == start
    )
    duration = frame["duration"].to_numpy()[suspects]
    order = np.lexsort((duration, start[suspects]))
    same = (np.diff(start[suspects][order]) == 0) & (np.diff(duration[order]) == 0)
    if not same.any():
        return frame
    twin = np.zeros(len(order), np.bool_)
    twin[1:] |= same
    twin[:-1] |= same
    suspects = np.sort(suspects[order[twin]])
    rows = frame[suspects]
    sound = repeats if isinstance(repeats, pl.Expr) else pl.lit(repeats)
    repeated = rows.select(~(pl.struct(pl.all()).is_first_distinct() | sound)).to_series()
    if not repeated.any():
        return frame
    _count("duplicate", rows.filter(repeated), table, ledger)
    kept = np.ones(frame.height, np.bool_)
    kept[suspects[repeated.to_numpy()]] = False
    return frame.filter(kept)


def _count(reason: str, dropped: pl.DataFrame, table: str, ledger: Ledger) -> None:
    # Lost or impossible times have no sum; that of many negative ones could exceed int64.
    has_time = reason in ("duplicate", "negative_duration")
    time_ns = sum(dropped["duration"].to_list()) if has_time else None
    fits = time_ns is not None and abs(time_ns) < LARGEST_SUM
    ledger.add(reason, dropped.height, table=table, time_ns=time_ns if fits else None)


def rebase(
    frames: Mapping[str, pl.DataFrame], ledger: Ledger
) -> tuple[dict[str, pl.DataFrame], int]:
    """Return ``frames`` (canonical tables by name) with times since the first event, and its time.

    The first event's time is in nanoseconds on the file's own clock, 0 where no frame has a row.
    Rows and numbers that :func:`without_far_times`, :func:`in_order_of_streams` and
    :func:`bounded` find impossible are left out.
    """
    near = without_far_times(frames, ledger)
    if "activities" in near:
        near["activities"] = in_order_of_streams(near["activities"], ledger)
    origin, _ = _extent(near)
    shifted = {
        name: frame.with_columns(pl.col(column) - origin for column in TIME_COLUMNS.get(name, ()))
        if frame.height
        else frame
        for name, frame in bounded(near, ledger).items()
    }
    return shifted, origin


def bounded(frames: Mapping[str, pl.DataFrame], ledger: Ledger) -> dict[str, pl.DataFrame]:
    """Return ``frames`` (canonical tables by name) without impossible sums, numbers and names.

    The longest rows of a table whose durations add up to more than int64 holds are dropped as
    ``impossible_time``. Numbers that do not fit their column become null, as ``lost_field``; names
    of more than 64 KiB are cut, as ``oversized``. Device work without a device, direction or size
    is counted as ``no_device``, ``no_direction`` and ``no_size``: a new version of a format may
    have the fact in another place.
    """
    fitting = dict(frames)
    for table, frame in frames.items():
        longest = _most(frame, "duration")
        if longest is not None:
            fitting[table] = frame.filter(pl.col("duration") <= longest)
            lost = frame.height - fitting[table].height
            ledger.add("impossible_time", lost, table=table)
    fitting = {table: _fitting(frame, table, ledger) for table, frame in fitting.items()}
    if (activities := fitting.get("activities")) is not None:
        _count_missing_facts(activities, ledger)
    return _short_names(fitting, ledger)


_MISSING_FACTS: Final = (
    # reason, column, value besides null, kinds of activities that have the fact
    ("no_device", "device", None, DEVICE_WORK),
    ("no_direction", "copy_kind", "unknown", ("memcpy",)),
    # XPlane and ROCm have memsets without a size.
    ("no_size", "bytes", None, ("memcpy",)),
)


def _count_missing_facts(activities: pl.DataFrame, ledger: Ledger) -> None:
    """Count device work that lacks a fact which its kind always has; it is kept."""
    for reason, column, unknown, kinds in _MISSING_FACTS:
        if column not in activities:
            continue
        is_missing = activities[column].is_null()
        if unknown is not None:
            is_missing |= (activities[column] == unknown).fill_null(value=False)
        elif not activities[column].null_count():
            continue
        lost = activities.filter(is_missing & activities["kind"].is_in(kinds))
        ledger.add(
            reason,
            lost.height,
            table="activities",
            kept=True,
            time_ns=int(lost["duration"].sum()),
        )


def _extent(frames: Mapping[str, pl.DataFrame]) -> tuple[int, int]:
    """Return the first and the last time of ``frames``, 0 and 0 where there is none."""
    ends = [
        end
        for name, frame in frames.items()
        for column in TIME_COLUMNS.get(name, ())
        for end in (frame[column].min(), frame[column].max())
        if isinstance(end, int)
    ]
    return min(ends, default=0), max(ends, default=0)


def without_far_times(
    frames: Mapping[str, pl.DataFrame], ledger: Ledger
) -> dict[str, pl.DataFrame]:
    """Return ``frames`` without the rows that lie too far from the median event of all tables:
    more than :data:`LONGEST_TRACE_NS`, counted as ``impossible_time``."""
    first, last = _extent(frames)
    if last - first <= LONGEST_TRACE_NS:
        return dict(frames)
    times = pl.concat(
        [
            frame[column].cast(pl.Int64).drop_nulls().alias("time")
            for name, frame in frames.items()
            for column in TIME_COLUMNS.get(name, ())
        ]
    ).sort()
    middle = int(times[len(times) // 2])
    # Python's integers do not wrap, and the bounds must be int64 themselves.
    earliest = max(middle - LONGEST_TRACE_NS, -(1 << 63))
    latest = min(middle + LONGEST_TRACE_NS, (1 << 63) - 1)
    kept = {}
    for name, frame in frames.items():
        columns = TIME_COLUMNS.get(name, ())
        near = [pl.col(column).is_between(earliest, latest).fill_null(True) for column in columns]
        kept[name] = frame.filter(pl.all_horizontal(near)) if near else frame
        ledger.add("impossible_time", frame.height - kept[name].height, table=name)
    return kept


_MOST_OVERLAPPED: Final = 16
"""Later work of its stream that a kernel may outlast. A stream runs its work in order; programmatic
dependent launch lets the next kernel begin early, not a whole sequence end."""
_STREAM: Final = ("process", "device", "context", "stream")


def in_order_of_streams(activities: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return ``activities`` without device work whose recorded duration is impossible.

    Such work outlasts more than :data:`_MOST_OVERLAPPED` later pieces of its stream. It is counted
    as ``impossible_overlap``. Work of one launch (the branches of a CUDA graph) may overlap.
    """
    columns = ("stream", "correlation", "kind", "start", "duration")
    if not {*columns} <= {*activities.columns}:
        return activities
    stream = [name for name in _STREAM if name in activities.columns]
    owner = [name for name in ("process", "correlation") if name in activities.columns]
    work = (
        activities.select(*stream, *columns[1:])
        .with_row_index("row")
        .filter(
            pl.col("kind").is_in(DEVICE_WORK),
            pl.col("stream").is_not_null(),
            pl.len().over(owner) == 1,
        )
        .with_columns((pl.col("start") + pl.col("duration")).alias("end"))
        .sort("start")
    )
    impossible: list[pl.Series] = []
    while True:
        latest = pl.col("end").cum_max().shift(1).over(stream)
        within = work.filter(pl.col("end") < latest)
        if within.height <= _MOST_OVERLAPPED:
            break
        outlasted = work.with_columns(latest.alias("latest")).filter(
            pl.col("end") < pl.col("latest")
        )
        ends = outlasted.group_by(*stream, "latest").len().filter(pl.col("len") > _MOST_OVERLAPPED)
        too_long = work.join(
            ends, left_on=[*stream, "end"], right_on=[*stream, "latest"], nulls_equal=True
        )["row"]
        if too_long.is_empty():
            break
        impossible.append(too_long)
        work = work.filter(~pl.col("row").is_in(too_long.implode()))
    if not impossible:
        return activities
    rows = pl.concat(impossible).unique()
    dropped = activities[rows.sort()]
    ledger.add(
        "impossible_overlap",
        dropped.height,
        table="activities",
        time_ns=int(dropped["duration"].sum()),
    )
    return (
        activities.with_row_index("_row").filter(~pl.col("_row").is_in(rows.implode())).drop("_row")
    )


def _most(frame: pl.DataFrame, column: str) -> int | None:
    """Return the largest value of ``column`` with which the sum over all rows fits int64.

    None if the sum fits already.
    """
    if column not in frame.columns:
        return None
    least, greatest = _ends(frame[column])
    if max(-least, greatest) * frame.height < LARGEST_SUM:
        return None
    mean = frame.select(pl.col(column).cast(pl.Float64).abs().mean()).item()
    return None if mean * frame.height < LARGEST_SUM else LARGEST_SUM // frame.height


def _fitting(frame: pl.DataFrame, table: str, ledger: Ledger) -> pl.DataFrame:
    """Return ``frame`` with null for numbers beyond the type, or the possible bytes, of a column.

    The ledger counts them by column.
    """
    described = SCHEMA[table].columns if table in SCHEMA else {}
    for name, dtype in frame.schema.items():
        if name not in described or not dtype.is_integer():
            continue
        column = described[name]
        if column.unit == "bytes" and column.dtype == pl.Int64:
            possible = (_most(frame, name) if name == "bytes" else None) or _MOST_BYTES
            most = min(possible, _MOST_BYTES)
            least = -most
        elif column.dtype == pl.UInt32 and dtype != pl.UInt32:
            least, most = 0, (1 << 32) - 1
        elif column.dtype == pl.Int32 and dtype != pl.Int32:
            least, most = -(1 << 31), (1 << 31) - 1
        else:
            continue
        lowest, highest = _ends(frame[name])
        if lowest < least or highest > most:
            outside = ~pl.col(name).is_between(least, most)
            lost = int(frame.select(outside.sum()).item())
            ledger.add("lost_field", lost, table=table, kept=True, detail=name)
            frame = frame.with_columns(pl.when(~outside).then(name).alias(name))
    return frame


def _short_names(frames: Mapping[str, pl.DataFrame], ledger: Ledger) -> dict[str, pl.DataFrame]:
    """Return ``frames`` with the names that are too long cut; the ledger counts them by column."""
    labels = {
        name: [column for column, dtype in frame.schema.items() if dtype == pl.Categorical]
        for name, frame in frames.items()
        if frame.height
    }
    columns = [frames[name][column] for name, listed in labels.items() for column in listed]
    if not columns:
        return dict(frames)
    text = pl.concat([column.alias("text") for column in columns]).to_frame()
    # Categories are those of all traces of the process: where they are many more than the labels,
    # only the distinct labels are looked up.
    last_category = text.select(pl.col("text").to_physical().max()).item()
    few = last_category is not None and last_category <= _MANY + text.height
    label = pl.col("text").cat if few else pl.col("text").unique().cast(pl.String).str
    if (text.select(label.len_bytes().max()).item() or 0) <= _LONGEST_NAME:
        return dict(frames)
    distinct = text.select(pl.col("text").unique().cast(pl.String)).to_series()
    long = distinct.filter(distinct.str.len_bytes() > _LONGEST_NAME).cast(pl.Categorical)
    short = dict(frames)
    for table, listed in labels.items():
        for name in listed:
            frame = short[table]
            is_long = pl.col(name).is_in(long.implode())
            count = frame.filter(is_long).height
            ledger.add("oversized", count, table=table, kept=True, detail=name)
            # A character has four bytes at most.
            cut = pl.col(name).cast(pl.String).str.slice(0, _LONGEST_NAME // 4)
            shortened = pl.when(is_long).then(cut.cast(pl.Categorical)).otherwise(name)
            short[table] = frame.with_columns(shortened.alias(name))
    return short
