"""The host's threads during idle time: their calls, ranges and operators by cause.

A thread's calls, ranges and operators are assigned to causes by their names (``host_times``). Their
nesting has its innermost operator and annotation at any time (``HostNesting``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.enrich.distinct_values import Texts, first_rows, numbered, rows_of
from traceana.enrich.layers.roles import ROLE_OF_TEXT
from traceana.enrich.nesting import NONE, Flags, Ints, Nesting, from_rows
from traceana.timeline.idle_gaps import (
    ALLOCATION,
    COLLECTIVE,
    COPY,
    DATA_LOADER,
    DRIVER,
    OPERATOR,
    PROFILER,
    SYNCHRONIZATION,
)

if TYPE_CHECKING:
    from traceana.trace import Trace

_CALLS: Final[dict[int, str]] = {
    ALLOCATION: (
        r"^(?:cuda|hip)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))"
        r"|^cuMem(?:Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
    ),
    SYNCHRONIZATION: r"^(?:cuda|cu|hip)\w*Synchronize",
    COPY: r"^(?:cuda|hip)Memcpy|^cuMemcpy",
}
"""Patterns of the names of calls that delay the host."""

LOADING: Final = rf"{ROLE_OF_TEXT['data']}|^(?:EagerLocalExecute: )?IteratorGetNext"
"""Ranges and operators that wait for the next batch. The ranges of TensorFlow's background threads
that produce it (``Iterator::Prefetch``) do not count."""

_BLOCKING_COLLECTIVE: Final = r"^(?:gloo|mpi|ucc):|^MPI_|^c10d::(?:monitored_)?barrier"
"""Ranges and operators of collectives that the host performs or waits for. NCCL's collectives are
kernels, which wait on the device."""

_DRIVER_OVERHEAD: Final = r"(?i)loading|compiler|command buffer"
"""CUPTI's overhead records of CUDA: code is loaded or compiled, or the command buffer is full."""

_THREAD: Final = ("rank", "process", "thread")


class Threads(msgspec.Struct, frozen=True):
    """The number of the thread of each row of ``calls``, ``ops`` and ``ranges``.

    Rows without a thread count as one thread of their process. ``known`` has :data:`_THREAD` of
    each thread, ``process`` and ``rank`` the number of its process and of its rank.
    """

    calls: Ints
    ops: Ints
    ranges: Ints
    known: pl.DataFrame
    process: Ints
    rank: Ints

    @classmethod
    def of(cls, trace: Trace) -> Threads:
        """Return the numbers of the threads of ``trace``."""
        frames = [table.select(_THREAD) for table in (trace.calls, trace.ops, trace.ranges)]
        calls, ops, ranges = numbers = numbered(*frames)
        each = np.concatenate(numbers)
        known = pl.concat(frames)[first_rows(each)]
        (process,), (rank,) = (
            numbered(known.select(columns)) for columns in (["rank", "process"], ["rank"])
        )
        return cls(calls, ops, ranges, known, process, rank)

    def among(self, numbers: Ints) -> Flags:
        """Return for each thread whether it is one of ``numbers``; NONE does not count."""
        found = np.zeros(self.known.height, dtype=np.bool_)
        found[numbers[numbers != NONE]] = True
        return found


class HostNesting(msgspec.Struct, frozen=True):
    """The nested operators and annotations of some threads, by the number of the thread."""

    ops: Mapping[int, Nesting]
    ranges: Mapping[int, Nesting]

    @classmethod
    def of(cls, trace: Trace, threads: Threads, wanted: Flags) -> HostNesting:
        """Return the lookup for the ``wanted`` threads."""
        return cls(
            _nestings(trace.ops, threads.ops, wanted),
            _nestings(trace.ranges, threads.ranges, wanted),
        )

    def operator(self, key: Ints, time: Ints) -> Ints:
        """Return the row of the innermost operator of each thread (``key``) at each time."""
        return _innermost(self.ops, key, time)

    def annotation(self, key: Ints, time: Ints) -> Ints:
        """Return the row of the innermost range of each thread (``key``) at each time."""
        return _innermost(self.ranges, key, time)


def _innermost(nestings: Mapping[int, Nesting], key: Ints, time: Ints) -> Ints:
    """Return the innermost row; NONE without one, or where the thread is NONE."""
    found = np.full(len(key), NONE, dtype=np.int64)
    known = np.flatnonzero(key != NONE)
    for number, some in rows_of(key[known]):
        if number in nestings:
            here = known[some]
            found[here] = nestings[number].innermost(key[here], time[here])
    return found


def _nestings(frame: pl.DataFrame, key: Ints, wanted: Flags) -> Mapping[int, Nesting]:
    start = frame["start"].to_numpy()
    end = start + frame["duration"].to_numpy()
    depth = from_rows(frame["depth"])
    rows = np.flatnonzero(wanted[key] & (depth != NONE))
    parent = from_rows(frame["parent"])
    return {
        number: Nesting(key, start, end, parent, depth, _ordered(start, end, rows[some]))
        for number, some in rows_of(key[rows])
    }


def _ordered(start: Ints, end: Ints, rows: Ints) -> Ints:
    """Return ``rows`` by their start; of equal starts the longer first."""
    # Most profilers write the rows of a thread in that order already.
    begins, ends = start[rows], end[rows]
    later = (begins[1:] > begins[:-1]) | ((begins[1:] == begins[:-1]) & (ends[1:] <= ends[:-1]))
    return rows if later.all() else rows[np.lexsort((-ends, begins))]


_HOSTS: Final = ("module", "annotation", "step", "nvtx", "nvtx_start", "runtime")
"""Kinds of ranges whose text can be the cause of a wait of the host."""


class HostTime(msgspec.Struct, frozen=True):
    """The intervals of one thread that have one cause, by their start.

    ``row`` is a row of ``calls`` or of ``ranges``, or ``NONE`` for operators; ``reach`` the latest
    end so far.
    """

    start: Ints
    end: Ints
    row: Ints
    reach: Ints

    def first(self, times: Ints) -> Ints:
        """Return the index of the first interval that ends after each time, else the length."""
        return np.searchsorted(self.reach, times, side="right")


class _Intervals(msgspec.Struct, frozen=True):
    """Intervals of one cause in any order; ``number`` is that of the thread or process."""

    number: Ints
    start: Ints
    end: Ints
    row: Ints

    @classmethod
    def of(cls, table: pl.DataFrame, number: Ints, rows: Ints) -> _Intervals:
        """Return ``rows`` of ``table``, each of whose rows has a ``number``."""
        start, duration = (
            table[column].gather(rows).to_numpy() for column in ("start", "duration")
        )
        return cls(number[rows], start, start + duration, rows)

    def where(self, kept: Flags) -> _Intervals:
        return _Intervals(self.number[kept], self.start[kept], self.end[kept], self.row[kept])

    def without_rows(self) -> _Intervals:
        return replace(self, row=np.full(len(self.row), NONE))

    @staticmethod
    def joined(parts: Sequence[_Intervals]) -> _Intervals:
        return _Intervals(
            *(
                np.concatenate([getattr(part, column) for part in parts])
                for column in ("number", "start", "end", "row")
            )
        )

    def by(self, number_of: Ints) -> _Intervals:
        """Return the intervals with each number replaced by that in ``number_of``."""
        return _Intervals(number_of[self.number], self.start, self.end, self.row)

    def by_number(self) -> dict[int, HostTime]:
        found = {}
        for number, rows in rows_of(self.number):
            start = self.start[rows]
            if (start[1:] < start[:-1]).any():
                rows = rows[np.argsort(start, kind="stable")]
                start = self.start[rows]
            end = self.end[rows]
            found[number] = HostTime(start, end, self.row[rows], np.maximum.accumulate(end))
        return found


def host_times(
    trace: Trace, threads: Threads, wanted: Flags
) -> Mapping[int, Mapping[int, HostTime]]:
    """Return the time of each wanted thread by its number and cause.

    A wait for a batch counts for all threads of its process. Overhead of a process without wanted
    threads, as Kineto writes it, counts for all threads of the rank.
    """
    found: dict[int, dict[int, HostTime]] = {int(key): {} for key in np.flatnonzero(wanted)}

    def add(cause: int, part: _Intervals, group: Ints | None = None) -> None:
        """Add ``part`` to its threads, or to every thread of its number in ``group``."""
        own = part.where(wanted[part.number]).by_number() if group is None else part.by_number()
        for key, causes in found.items():
            number = key if group is None else int(group[key])
            if number in own:
                causes[cause] = own[number]

    names = Texts.of(trace.calls["name"])
    for cause, pattern in _CALLS.items():
        rows = np.flatnonzero(names.matching(pattern))
        add(cause, _Intervals.of(trace.calls, threads.calls, rows))
    add(COLLECTIVE, _named(trace, threads, _BLOCKING_COLLECTIVE))
    add(DATA_LOADER, _named(trace, threads, LOADING).by(threads.process), threads.process)
    outermost = trace.ops["depth"].eq(0).fill_null(value=False).to_numpy()
    add(OPERATOR, _Intervals.of(trace.ops, threads.ops, np.flatnonzero(outermost)).without_rows())
    for cause, part in _overhead(trace, threads):
        add(cause, _shared(part, threads, wanted))
    return found


def _overhead(trace: Trace, threads: Threads) -> list[tuple[int, _Intervals]]:
    is_overhead = trace.ranges["kind"].eq("overhead").fill_null(value=False).to_numpy()
    drivers = is_overhead & Texts.of(trace.ranges["text"]).matching(_DRIVER_OVERHEAD)
    return [
        (cause, _Intervals.of(trace.ranges, threads.ranges, np.flatnonzero(rows)))
        for cause, rows in ((PROFILER, is_overhead & ~drivers), (DRIVER, drivers))
    ]


def _shared(part: _Intervals, threads: Threads, wanted: Flags) -> _Intervals:
    """Return ``part``, with intervals of other processes on each wanted thread of their rank."""
    own = np.isin(threads.process, threads.process[wanted])[part.number]
    stray = part.where(~own)
    of_all = [part.where(own)]
    for key in np.flatnonzero(wanted):
        of_rank = stray.where(threads.rank[stray.number] == threads.rank[key])
        of_all.append(replace(of_rank, number=np.full(len(of_rank.start), key)))
    return _Intervals.joined(of_all)


def loading(trace: Trace) -> pl.DataFrame:
    """Return the waits for a batch: ``row`` in ranges, ``rank``, ``start``, ``duration``."""
    columns = ("row", "rank", "start", "duration")
    ranges, ops = _rows_named(trace, LOADING)
    return pl.concat(
        [
            trace.ranges[ranges].with_columns(pl.Series("row", ranges)).select(columns),
            trace.ops[ops].with_columns(pl.lit(None, pl.Int64).alias("row")).select(columns),
        ]
    )


def _named(trace: Trace, threads: Threads, pattern: str) -> _Intervals:
    ranges, ops = _rows_named(trace, pattern)
    return _Intervals.joined(
        [
            _Intervals.of(trace.ranges, threads.ranges, ranges),
            _Intervals.of(trace.ops, threads.ops, ops).without_rows(),
        ]
    )


def _rows_named(trace: Trace, pattern: str) -> tuple[Ints, Ints]:
    """Return the rows of ranges and of operators whose names match ``pattern``."""
    hosts = trace.ranges["kind"].is_in(_HOSTS).fill_null(value=False).to_numpy()
    return (
        np.flatnonzero(Texts.of(trace.ranges["text"]).matching(pattern) & hosts),
        np.flatnonzero(Texts.of(trace.ops["name"]).matching(pattern)),
    )
