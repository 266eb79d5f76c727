"""Work that had been launched and waited for an event of another stream: what it waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.idle.causes import COLLECTIVE, COPY, EVENT, WAIT_CALL, WAIT_RECORD
from traceana.attribute.nesting import NONE, Ints, to_rows

if TYPE_CHECKING:
    from traceana.trace import Trace

_STREAM: Final = ("rank", "process", "stream")
_THREAD: Final = ("rank", "process", "thread")


def awaited(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``number`` and ``cause`` of those ``gaps`` in which the next work waits for an event.

    ``gaps`` has ``number``, ``rank``, ``device``, ``start``, ``end``, ``before``, ``after`` and
    ``launch``, when the call began that launched ``after``. A stream waits where it was told to
    since the work before on it was launched; without CUPTI's records of waits, where the thread
    told any stream to since it launched last. What it waits for is the work of its process on
    another device that ended last in the gap, else what ended last on its own device, if that is of
    another stream. Where that is nothing, the wait explains nothing.
    """
    told = _told(trace, gaps)
    if told.is_empty():
        return _causes(trace, told.with_columns(pl.lit(None, pl.UInt32).alias("awaited")))
    own = _activities(trace, told["after"], "stream", "process")
    before = _activities(trace, told["before"], "stream")
    elsewhere = _on_other_devices(trace, told, own["process"])
    beside = pl.when(before["stream"] != own["stream"]).then(told["before"])
    awaited = pl.select(pl.coalesce(elsewhere, beside).alias("awaited"))
    return _causes(trace, told.with_columns(awaited["awaited"]))


def _activities(trace: Trace, rows: pl.Series, *columns: str) -> pl.DataFrame:
    return pl.DataFrame([trace.activities[column].gather(rows) for column in columns])


def _causes(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """Return ``number`` and ``cause`` by the work that was ``awaited``, where there was some."""
    found = found.filter(pl.col("awaited").is_not_null())
    kinds = classified(_activities(trace, found["awaited"], *SOURCE), trace)
    category = pl.col("category")
    cause = (
        pl.when(category == "memcpy")
        .then(COPY)
        .when(category == "collective")
        .then(COLLECTIVE)
        .otherwise(EVENT)
        .cast(pl.Int8)
        .alias("cause")
    )
    return found.select("number").hstack(kinds.select(cause))


def _told(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps whose next work was launched behind a wait that its stream was told."""
    records = trace.activities.filter(
        (pl.col("kind") == "sync") & pl.col("stream").is_not_null()
    ).join(
        trace.names.with_row_index("name_id").filter(pl.col("name") == WAIT_RECORD),
        on="name_id",
        how="semi",
    )
    if records.height:
        called = trace.calls["start"].gather(records["call"])
        waits = records.select(*_STREAM, pl.coalesce(called, "start").alias("time"))
        asked = gaps.with_columns(_activities(trace, gaps["after"], "process", "stream"))
        return _behind(asked, waits, _launches(trace, waits), _STREAM).drop("process", "stream")
    names = trace.calls.select(pl.col("name").unique()).filter(
        pl.col("name").cast(pl.String).str.contains(WAIT_CALL)
    )
    calls = trace.calls.join(names, on="name", how="semi")
    waits = calls.select(*_THREAD, pl.col("start").alias("time"))
    if waits.is_empty():
        return gaps.clear()
    of_launch = trace.activities["call"].gather(gaps["after"])
    asked = gaps.with_columns(
        trace.calls[column].gather(of_launch).alias(column) for column in ("process", "thread")
    )
    launching = trace.calls[trace.activities["call"].drop_nulls().unique()]
    launches = launching.select(*_THREAD, pl.col("start").alias("time"))
    return _behind(asked, waits, launches, _THREAD).drop("process", "thread")


def _launches(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame:
    """Return when work was launched on the streams of ``waits``."""
    work = trace.activities.filter((pl.col("kind") != "sync") & pl.col("call").is_not_null()).join(
        waits.select(_STREAM).unique(), on=_STREAM, how="semi", nulls_equal=True
    )
    return work.select(*_STREAM, trace.calls["start"].gather(work["call"]).alias("time"))


def _behind(
    gaps: pl.DataFrame, waits: pl.DataFrame, launches: pl.DataFrame, place: tuple[str, ...]
) -> pl.DataFrame:
    """Return the gaps whose launch has a wait before it with no launch in between."""
    numbered = pl.concat([part.select(place) for part in (gaps, waits, launches)])
    key = numbered.select(
        pl.struct(pl.all().cast(pl.Int64).fill_null(NONE)).rank("dense").cast(pl.Int64)
    ).to_series()
    of_gaps, of_waits, of_launches = np.split(
        key.to_numpy(), np.cumsum([gaps.height, waits.height])
    )
    moment = gaps["launch"].to_numpy()
    wait = _last(of_gaps, moment, of_waits, waits["time"].to_numpy())
    launch = _last(of_gaps, moment, of_launches, launches["time"].to_numpy())
    return gaps.filter(pl.Series(wait > launch))


_NEVER: Final = np.iinfo(np.int64).min


def _last(key: Ints, moment: Ints, of: Ints, time: Ints) -> Ints:
    """Return the last ``time`` before each moment of the same key."""
    if not len(time):
        return np.full(len(moment), _NEVER)
    distinct, rank = np.unique(np.concatenate((time, moment)), return_inverse=True)
    merged = of * (len(distinct) + 1) + rank[: len(time)]
    order = np.argsort(merged)
    at = (
        np.searchsorted(merged[order], key * (len(distinct) + 1) + rank[len(time) :], side="left")
        - 1
    )
    found = order[np.maximum(at, 0)]
    there = (at >= 0) & (of[found] == key)
    return np.where(there, time[found], _NEVER)


def _on_other_devices(trace: Trace, gaps: pl.DataFrame, process: pl.Series) -> pl.Series:
    """Return the work of the same process that ended last in each gap, on another device."""
    found = np.full(gaps.height, NONE, dtype=np.int64)
    work = trace.activities.select(
        "rank", "process", "device", (pl.col("start") + pl.col("duration")).alias("end"), "kind"
    ).with_row_index("row")
    work = work.filter(pl.col("kind") != "sync", pl.col("device").is_not_null())
    several = (
        work.select("rank", "process", "device")
        .unique()
        .filter(pl.len().over("rank", "process") > 1)
    )
    asked = gaps.select("rank", "device", "start", "end").with_columns(process.alias("process"))
    asked = asked.with_row_index("at")
    for rank, own, device in several.iter_rows():
        here = asked.filter(
            pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)),
            pl.col("process").eq_missing(pl.lit(own, pl.Int64)),
            pl.col("device") == device,
        )
        others = work.filter(
            pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)),
            pl.col("process").eq_missing(pl.lit(own, pl.Int64)),
            pl.col("device") != device,
        ).sort("end")
        if here.is_empty():
            continue
        ends = others["end"].to_numpy()
        at = np.searchsorted(ends, here["end"].to_numpy(), side="right") - 1
        inside = (at >= 0) & (ends[at] > here["start"].to_numpy())
        rows = others["row"].cast(pl.Int64).to_numpy()
        found[here["at"].to_numpy()[inside]] = rows[at[inside]]
    return to_rows(found)
