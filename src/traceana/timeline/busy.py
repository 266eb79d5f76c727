"""When each device was busy, and when the program waited for its next batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, Threads
from traceana.columns.intervals import PER_DEVICE, Busy, Intervals, times, union, until
from traceana.columns.nesting import NONE, Flags, Ints
from traceana.enrich.ranges import ROLE_OF_TEXT
from traceana.timeline.work import work
from traceana.trace import per_trace
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

LOADING: Final = rf"{ROLE_OF_TEXT['data']}|^(?:EagerLocalExecute: )?IteratorGetNext"
"""Ranges and operators that wait for the next batch. The ranges of TensorFlow's background threads
that produce it (``Iterator::Prefetch``) do not count."""

HOST_RANGES: Final = ("module", "annotation", "step", "nvtx", "nvtx_start", "runtime")
"""Kinds of ranges whose text can be the cause of a wait of the host."""

_TRAINING: Final = ("layer", "optimizer", "collective", "hooks")
"""Roles of operators that count as compute even during a wait for a batch."""


@per_trace
def busy_time(trace: Trace) -> Busy:
    """Return when each device of ``trace`` ran its work.

    A CPU is busy while an operator of a layer, of the optimizer or of a collective runs on any
    thread. Other operators count outside waits for a batch only, because TensorFlow's input
    pipelines and PyTorch's data sets also run operators.
    """
    busy = Busy.of(work(trace, *PER_DEVICE, "start", "duration"))
    by_device = {
        (rank, device): difference(intervals, waits_for_batches(trace.whole, rank).exposed)
        if device == CPU_DEVICE
        else intervals
        for (rank, device), intervals in busy.by_device.items()
    }
    return Busy(by_device)


class BatchWaits(msgspec.Struct, frozen=True):
    """The waits for a batch of one rank: as :func:`thread_intervals`, their union ``waiting``, and
    the part of it that is ``exposed``: without an operator of a layer, the optimizer or a
    collective."""

    waits: pl.DataFrame
    waiting: Intervals
    exposed: Intervals


def waits_for_batches(trace: Trace, rank: int | None) -> BatchWaits:
    """Return the waits for a batch of ``rank``."""
    of_rank = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    threads = Threads.of(trace.tables.ops, trace.tables.calls, trace.tables.ranges)
    thread_of_rank = threads.known.select(of_rank).to_series().to_numpy()
    waits = named_intervals(trace, threads, LOADING)
    waits = waits.filter(thread_of_rank[waits["number"].to_numpy()])
    waiting = union(waits["start"].to_numpy(), waits["end"].to_numpy())
    role = trace.tables.layers["role"].cast(pl.String).gather(trace.tables.activities["layer"])
    in_training = role.is_in(_TRAINING).fill_null(value=False)
    on_cpu = pl.col("device") == CPU_DEVICE
    training = times(trace.tables.activities.filter(of_rank, on_cpu, in_training))
    return BatchWaits(waits, waiting, difference(waiting, union(*training)))


def thread_intervals(
    table: pl.DataFrame, thread: Ints, wanted: Flags, *, with_rows: bool = True
) -> pl.DataFrame:
    """Return ``number`` (of the thread), ``start``, ``end`` and ``row`` of rows of ``table``."""
    rows = np.flatnonzero(wanted)
    start, duration = (table[column].gather(rows) for column in ("start", "duration"))
    row = rows if with_rows else np.full(len(rows), NONE)
    return pl.DataFrame(
        {"number": thread[rows], "start": start, "end": start + duration, "row": row}
    )


def named_rows(trace: Trace, pattern: str) -> tuple[Flags, Flags]:
    """Return which operators and which ranges of the host have a name that matches ``pattern``."""
    ranges = trace.tables.ranges
    of_host = ranges["kind"].is_in(HOST_RANGES).fill_null(value=False).to_numpy()
    ops = Texts.of(trace.tables.ops["name"]).matching(pattern)
    return ops, Texts.of(ranges["text"]).matching(pattern) & of_host


def named_intervals(trace: Trace, threads: Threads, pattern: str) -> pl.DataFrame:
    """Return the :func:`thread_intervals` of :func:`named_rows`."""
    ops, ranges = named_rows(trace, pattern)
    return pl.concat(
        [
            thread_intervals(trace.tables.ranges, threads.ranges, ranges),
            thread_intervals(trace.tables.ops, threads.ops, ops, with_rows=False),
        ]
    )


def difference(intervals: Intervals, others: Intervals) -> Intervals:
    """Return the parts of ``intervals`` outside ``others``; both are disjoint and ordered."""
    bounds = np.unique(np.concatenate((*intervals, *others)))
    inside, hidden = np.diff(until(intervals, bounds)) > 0, np.diff(until(others, bounds)) > 0
    kept = inside & ~hidden
    return union(bounds[:-1][kept], bounds[1:][kept])
