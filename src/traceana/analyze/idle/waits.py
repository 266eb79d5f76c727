"""Work that had been launched and waited for an event of another stream: what it waited for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.classes import SOURCE, category_of
from traceana.analyze.idle.causes import COLLECTIVE, COPY, EVENT, WAIT_CALL, WAIT_RECORD
from traceana.analyze.idle.spent import matching
from traceana.analyze.numbering import distinct, numbered
from traceana.attribute.nesting import NONE, Ints, timeline

if TYPE_CHECKING:
    from traceana.analyze.idle.recorded import Recorded
    from traceana.trace import Trace

_STREAM: Final = ("rank", "process", "stream")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Gaps of one device behind which work had been launched before they began.

    ``before`` and ``after`` are rows of activities, ``call`` of the call that launched ``after``.
    """

    device: int
    start: Ints
    end: Ints
    before: Ints
    after: Ints
    call: Ints

    def only(self, rows: Ints) -> Waiting:
        """Return some of the gaps."""
        columns = (self.start, self.end, self.before, self.after, self.call)
        return Waiting(self.device, *(values[rows] for values in columns))


class Waits:
    """Which work of a trace was launched behind a wait for an event, and what it waited for.

    A stream waits where it was told to since the work before on it was launched; without CUPTI's
    records of waits, where the thread told any stream to since it launched last.
    """

    def __init__(self, trace: Trace, recorded: Recorded) -> None:
        """Look for the waits of ``trace``."""
        self._trace = trace
        calls, start = recorded.call, recorded.call_start
        records = _records(trace)
        self._recorded = len(records) > 0
        if self._recorded:
            (stream,) = numbered(trace.activities.select(_STREAM))
            called = np.where(
                calls[records] == NONE, recorded.start[records], start[calls[records]]
            )
            works = (trace.activities["kind"] != "sync").to_numpy() & (calls != NONE)
            time = np.where(works, start[calls], 0)
            self._told = _behind((stream[records], called), (stream, time), works)
            return
        threads = recorded.threads.calls
        waits = np.flatnonzero(matching(trace.calls["name"], WAIT_CALL))
        self._told = _behind((threads[waits], start[waits]), (threads, start), recorded.launching)

    def awaited(self, gaps: Waiting) -> tuple[Ints, npt.NDArray[np.int8]]:
        """Return the rows of ``gaps`` in which the next work waits for an event, and their causes.

        What it waits for is the work of its process on another device that ended last in the gap,
        else what ended last on its own device, if that is of another stream. Where that is nothing,
        the wait explains nothing.
        """
        told = np.flatnonzero(self._told[gaps.after if self._recorded else gaps.call])
        if not len(told):
            return told, np.zeros(0, dtype=np.int8)
        some = gaps.only(told)
        stream = self._trace.activities["stream"]
        own, before = (stream.gather(rows) for rows in (some.after, some.before))
        beside = (own != before).fill_null(value=False).to_numpy()
        elsewhere = self._on_other_devices(some)
        found = np.where(elsewhere != NONE, elsewhere, np.where(beside, some.before, NONE))
        known = np.flatnonzero(found != NONE)
        return told[known], _causes(self._trace, found[known])

    def _on_other_devices(self, gaps: Waiting) -> Ints:
        """Return the work of the same process that ended last in each gap, on another device."""
        found = np.full(len(gaps.after), NONE, dtype=np.int64)
        of_gaps = self._process[gaps.after]
        for own in np.unique(of_gaps[self._several[of_gaps]]):
            rows = np.flatnonzero(self._process == own)
            there = self._work[rows].with_columns(pl.Series("row", rows))
            there = there.filter(pl.col("kind") != "sync", pl.col("device") != gaps.device)
            ends = (there["start"] + there["duration"]).to_numpy()
            order = np.argsort(ends, kind="stable")
            ends, rows = ends[order], there["row"].to_numpy()[order]
            here = np.flatnonzero(of_gaps == own)
            at = np.searchsorted(ends, gaps.end[here], side="right") - 1
            inside = (at >= 0) & (ends[np.maximum(at, 0)] > gaps.start[here])
            found[here[inside]] = rows[at[inside]]
        return found

    @cached_property
    def _work(self) -> pl.DataFrame:
        return self._trace.activities.select("start", "duration", "device", "kind")

    @cached_property
    def _process(self) -> Ints:
        """The number of the process of each activity."""
        return numbered(self._trace.activities.select("rank", "process"))[0]

    @cached_property
    def _several(self) -> Mask:
        """Whether a process, by number, worked on several devices."""
        used = self._work.select("kind", "device", pl.Series("process", self._process))
        devices = distinct(used.filter(pl.col("kind") != "sync").select("process", "device"))
        count = devices.drop_nulls("device")["process"].to_numpy()
        return np.bincount(count, minlength=int(self._process.max()) + 1) > 1


def _causes(trace: Trace, activities: Ints) -> npt.NDArray[np.int8]:
    category = category_of(trace.activities.select(SOURCE)[activities], trace)
    cause = np.full(len(activities), EVENT, dtype=np.int8)
    for name, number in (("memcpy", COPY), ("collective", COLLECTIVE)):
        cause[category.eq(name).to_numpy()] = number
    return cause


def _records(trace: Trace) -> Ints:
    """Return the rows of CUPTI's records of a stream's wait for an event."""
    names = trace.names.select(pl.int_range(pl.len(), dtype=pl.UInt32), "name")
    wanted = names.filter(pl.col("name") == WAIT_RECORD).to_series(0)
    if wanted.is_empty():
        return np.zeros(0, dtype=np.int64)
    told = trace.activities.select(
        (pl.col("kind") == "sync")
        & pl.col("stream").is_not_null()
        & pl.col("name_id").is_in(wanted.implode())
    )
    return np.flatnonzero(told.to_series().to_numpy())


def _behind(waits: tuple[Ints, Ints], launches: tuple[Ints, Ints], launched: Mask) -> Mask:
    """Return which ``launches`` come behind one of ``waits``, and no other launch between them.

    Both are the number of a stream or thread, and a time; what is at the same time is not behind.
    Of ``launches`` those are looked at that are ``launched``.
    """
    found = np.zeros(len(launched), dtype=np.bool_)
    key, time = waits
    if not len(key):
        return found
    waiting = np.zeros(int(max(key.max(), launches[0].max(initial=0))) + 1, dtype=np.bool_)
    waiting[key] = True
    rows = np.flatnonzero(launched & waiting[launches[0]])
    if not len(rows):
        return found
    of_rows = launches[0][rows]
    (line,) = timeline(np.concatenate((of_rows, key)), np.concatenate((launches[1][rows], time)))
    begun, told = np.split(line, [len(rows)])
    if (begun[1:] < begun[:-1]).any():
        order = np.argsort(begun, kind="stable")
        begun, of_rows, rows = begun[order], of_rows[order], rows[order]
    # Of each wait the launches that come next, where they are behind it and of its stream.
    first = np.searchsorted(begun, told)
    there = first < len(begun)
    first, told, key = first[there], told[there], key[there]
    first = first[(begun[first] > told) & (of_rows[first] == key)]
    # Several may begin at the same time: all of them come next.
    moment = np.cumsum(np.concatenate(([0], begun[1:] != begun[:-1])))
    next_ones = np.zeros(len(begun), dtype=np.bool_)
    next_ones[moment[first]] = True
    found[rows] = next_ones[moment]
    return found
