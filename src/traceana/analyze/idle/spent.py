"""What the threads of the host were in, by the cause of idle time that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
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
from traceana.analyze.numbering import rows_of
from traceana.enrich.nesting import NONE, Ints, matching

if TYPE_CHECKING:
    from traceana.analyze.idle.threads import Threads
    from traceana.trace import Trace

Mask = npt.NDArray[np.bool_]

_HOSTS: Final = ("module", "annotation", "step", "nvtx", "nvtx_start", "runtime")
"""Kinds of ranges that may tell what the host waited for."""


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


@dataclass(frozen=True, slots=True)
class _Part:
    """Intervals of one cause, of any thread, in any order: ``number`` is what they are filed by."""

    number: Ints
    start: Ints
    end: Ints
    row: Ints

    @classmethod
    def of(cls, table: pl.DataFrame, number: Ints, rows: Ints) -> _Part:
        """Return ``rows`` of ``table``, each of whose rows has a ``number``."""
        start, duration = (
            table[column].gather(rows).to_numpy() for column in ("start", "duration")
        )
        return cls(number[rows], start, start + duration, rows)

    def where(self, kept: Mask) -> _Part:
        return _Part(self.number[kept], self.start[kept], self.end[kept], self.row[kept])

    def without_rows(self) -> _Part:
        return replace(self, row=np.full(len(self.row), NONE))

    @staticmethod
    def joined(parts: Sequence[_Part]) -> _Part:
        return _Part(
            *(
                np.concatenate([getattr(part, column) for part in parts])
                for column in ("number", "start", "end", "row")
            )
        )

    def by(self, number_of: Ints) -> _Part:
        """Return the same filed by what ``number_of`` holds of each number."""
        return _Part(number_of[self.number], self.start, self.end, self.row)

    def filed(self) -> dict[int, Spent]:
        found = {}
        for number, rows in rows_of(self.number):
            start = self.start[rows]
            if (start[1:] < start[:-1]).any():
                rows = rows[np.argsort(start, kind="stable")]
                start = self.start[rows]
            end = self.end[rows]
            found[number] = Spent(start, end, self.row[rows], np.maximum.accumulate(end))
        return found


def spent(trace: Trace, threads: Threads, asked: Mask) -> Mapping[int, Mapping[int, Spent]]:
    """Return what each thread was in, by its number and the cause.

    ``asked`` says of each thread whether it is wanted. Loading is waited for by the process,
    whichever of its threads does. Overhead whose process has none of those threads, as Kineto
    writes it, is that of every thread of the rank.
    """
    found: dict[int, dict[int, Spent]] = {int(key): {} for key in np.flatnonzero(asked)}

    def file(cause: int, part: _Part, group: Ints | None = None) -> None:
        """File ``part`` by thread, or give it to every thread of its number in ``group``."""
        own = part.where(asked[part.number]).filed() if group is None else part.filed()
        for key, causes in found.items():
            number = key if group is None else int(group[key])
            if number in own:
                causes[cause] = own[number]

    names = trace.calls["name"]
    for cause, pattern in CALLS.items():
        rows = np.flatnonzero(matching(names, pattern))
        file(cause, _Part.of(trace.calls, threads.calls, rows))
    file(COLLECTIVE, _named(trace, threads, BLOCKING_COLLECTIVE))
    file(DATA_LOADER, _named(trace, threads, LOADING).by(threads.process), threads.process)
    outermost = trace.ops["depth"].eq(0).fill_null(value=False).to_numpy()
    file(OPERATOR, _Part.of(trace.ops, threads.ops, np.flatnonzero(outermost)).without_rows())
    for cause, part in _overhead(trace, threads):
        file(cause, _of_anyone(part, threads, asked))
    return found


def _overhead(trace: Trace, threads: Threads) -> list[tuple[int, _Part]]:
    is_overhead = trace.ranges["kind"].eq("overhead").fill_null(value=False).to_numpy()
    drivers = is_overhead & matching(trace.ranges["text"], DRIVER_OVERHEAD)
    return [
        (cause, _Part.of(trace.ranges, threads.ranges, np.flatnonzero(rows)))
        for cause, rows in ((PROFILER, is_overhead & ~drivers), (DRIVER, drivers))
    ]


def _of_anyone(part: _Part, threads: Threads, asked: Mask) -> _Part:
    """Return ``part``, of which each thread of the rank has what is of no process of ``asked``."""
    own = np.isin(threads.process, threads.process[asked])[part.number]
    stray = part.where(~own)
    of_all = [part.where(own)]
    for key in np.flatnonzero(asked):
        of_rank = stray.where(threads.rank[stray.number] == threads.rank[key])
        of_all.append(replace(of_rank, number=np.full(len(of_rank.start), key)))
    return _Part.joined(of_all)


def loading(trace: Trace) -> pl.DataFrame:
    """Return when a batch was waited for: ``row`` in ranges, ``rank``, ``start``, ``duration``."""
    columns = ("row", "rank", "start", "duration")
    ranges, ops = _rows_named(trace, LOADING)
    return pl.concat(
        [
            trace.ranges[ranges].with_columns(pl.Series("row", ranges)).select(columns),
            trace.ops[ops].with_columns(pl.lit(None, pl.Int64).alias("row")).select(columns),
        ]
    )


def _named(trace: Trace, threads: Threads, pattern: str) -> _Part:
    ranges, ops = _rows_named(trace, pattern)
    return _Part.joined(
        [
            _Part.of(trace.ranges, threads.ranges, ranges),
            _Part.of(trace.ops, threads.ops, ops).without_rows(),
        ]
    )


def _rows_named(trace: Trace, pattern: str) -> tuple[Ints, Ints]:
    """Return the rows of ranges and of operators whose names match ``pattern``."""
    hosts = trace.ranges["kind"].is_in(_HOSTS).fill_null(value=False).to_numpy()
    return (
        np.flatnonzero(matching(trace.ranges["text"], pattern) & hosts),
        np.flatnonzero(matching(trace.ops["name"], pattern)),
    )
