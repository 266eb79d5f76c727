"""What the threads of the host were in, by the cause of idle time that it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.idle.causes import (
    BLOCKING_COLLECTIVE,
    CALLS,
    COLLECTIVE,
    DATA_LOADER,
    DRIVER,
    DRIVER_OVERHEAD,
    LOADING,
    OPERATOR,
    PROFILER,
)
from traceana.attribute.nesting import Ints

if TYPE_CHECKING:
    from traceana.trace import Trace

THREAD = ("rank", "process", "thread")


@dataclass(frozen=True, slots=True)
class Spent:
    """When one thread was in something: intervals by their start, with what each is.

    ``row`` is a row of ``calls``, or of ``ranges``, or ``NONE`` for operators; ``reach`` the latest
    end so far.
    """

    start: Ints
    end: Ints
    row: Ints
    reach: Ints

    def first(self, moments: Ints) -> Ints:
        """Return the place of the first interval that ends after each moment; one too far: none."""
        return np.searchsorted(self.reach, moments, side="right")


def spent(trace: Trace, threads: pl.DataFrame) -> Mapping[int, Mapping[int, Spent]]:
    """Return by key of ``threads`` (columns ``key`` and :data:`THREAD`) and cause what each was in.

    Loading is waited for by the process, whichever of its threads does. Overhead whose process made
    no calls, as Kineto writes it, is every thread's.
    """
    found: dict[int, dict[int, Spent]] = {key: {} for key in threads["key"]}
    for cause, frame in _kinds(trace, threads):
        for (key,), rows in frame.sort("start").partition_by("key", as_dict=True).items():
            end = rows["end"].to_numpy()
            found[key][cause] = Spent(
                rows["start"].to_numpy(),
                end,
                rows["row"].cast(pl.Int64).to_numpy(),
                np.maximum.accumulate(end),
            )
    return found


def _kinds(trace: Trace, threads: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield each cause with ``key``, ``start``, ``end``, ``row`` of what the threads did of it."""
    overhead = trace.ranges.with_row_index("row").filter(pl.col("kind") == "overhead")
    drivers = _matching(overhead, "text", DRIVER_OVERHEAD)
    yield PROFILER, _of_anyone(overhead.join(drivers, on="row", how="anti"), threads)
    yield DRIVER, _of_anyone(drivers, threads)
    calls = trace.calls.select(*THREAD, "name", "start", "duration").with_row_index("row")
    for cause, pattern in CALLS.items():
        yield cause, _on(THREAD, _matching(calls, "name", pattern), threads)
    named = _named(trace)
    yield COLLECTIVE, _on(THREAD, _matching(named, "text", BLOCKING_COLLECTIVE), threads)
    yield DATA_LOADER, _on(THREAD[:2], _matching(named, "text", LOADING), threads)
    outermost = trace.ops.filter(pl.col("depth") == 0).with_columns(_NO_ROW)
    yield OPERATOR, _on(THREAD, outermost, threads)


def loading(trace: Trace) -> pl.DataFrame:
    """Return when a batch was waited for: ``row`` in ranges, :data:`THREAD`, start, duration."""
    return _matching(_named(trace), "text", LOADING)


_NO_ROW: Final = pl.lit(None, pl.UInt32).alias("row")
_HOSTS: Final = ("module", "annotation", "step", "nvtx", "nvtx_start", "runtime")
"""Kinds of ranges that may tell what the host waited for."""


def _named(trace: Trace) -> pl.DataFrame:
    """Return ranges and operators alike; operators have no ``row``."""
    columns = ("row", *THREAD, "text", "start", "duration")
    ranges = trace.ranges.with_row_index("row").filter(pl.col("kind").is_in(_HOSTS))
    ops = trace.ops.rename({"name": "text"}).with_columns(_NO_ROW)
    return pl.concat([ranges.select(columns), ops.select(columns)])


def _matching(frame: pl.DataFrame, column: str, pattern: str) -> pl.DataFrame:
    texts = frame.select(pl.col(column).unique()).filter(
        pl.col(column).cast(pl.String).str.contains(pattern)
    )
    return frame.join(texts, on=column, how="semi")


def _on(keys: tuple[str, ...], frame: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    return frame.join(threads.select("key", *keys), on=keys, nulls_equal=True).select(
        "key",
        "start",
        (pl.col("start") + pl.col("duration")).alias("end"),
        pl.col("row").cast(pl.Int64).fill_null(-1),
    )


def _of_anyone(frame: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    processes = threads.select("rank", "process").unique()
    stray = frame.join(processes, on=["rank", "process"], how="anti", nulls_equal=True)
    own = frame.join(processes, on=["rank", "process"], how="semi", nulls_equal=True)
    return pl.concat([_on(THREAD, own, threads), _on(("rank",), stray, threads)])
