"""Work that had been launched and waited for an event of another stream: what it waited for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.classes import SOURCE, category_of
from traceana.analyze.events.keys import ANY, NO_WORK, event_keys, keys_of, take
from traceana.analyze.events.recorded import awaited, recorded_work
from traceana.analyze.events.records import WAIT_CALL, wait_records
from traceana.analyze.idle.causes import COLLECTIVE, COPY, EVENT
from traceana.analyze.numbering import distinct, first_rows, numbered
from traceana.enrich.nesting import NONE, Ints, matching, timeline, to_rows

if TYPE_CHECKING:
    from traceana.analyze.idle.recorded import Recorded
    from traceana.trace import Trace

_IN_PROCESS: Final = ("rank", "process", "stream")
_IN_CONTEXT: Final = ("rank", "process", "context", "stream")
_STREAM: Final = ("rank", "process", "device", "context", "stream")
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
        self._behind_known = self._awaited_by_known = np.zeros(0, dtype=np.int64)
        syncs = trace.activities.filter(pl.col("kind") == "sync", pl.col("stream").is_not_null())
        records = wait_records(trace, syncs)
        self._recorded = records.height > 0
        if self._recorded:
            self._of_records(records, recorded)
            return
        calls, threads = recorded.call_start, recorded.threads.calls
        waits = np.flatnonzero(matching(trace.calls["name"], WAIT_CALL))
        self._told = _behind((threads[waits], calls[waits]), (threads, calls), recorded.launching)

    def awaited(self, gaps: Waiting) -> tuple[Ints, npt.NDArray[np.int8]]:
        """Return the rows of ``gaps`` in which the next work waits for an event, and their causes.

        What it waits for is the work that the event is behind, where the trace tells that, if it
        ended in the gap. Else it is the work of its process on another device that ended last in
        the gap, else what ended last on its own device, if that is of another stream. Where that is
        nothing, the wait explains nothing.
        """
        found = self._known(gaps)
        told = self._told[gaps.after if self._recorded else gaps.call] & (found == NONE)
        rows = np.flatnonzero(told)
        if len(rows):
            found[rows] = self._inferred(gaps.only(rows))
        known = np.flatnonzero(found != NONE)
        return known, _causes(self._trace, found[known])

    def _of_records(self, waits: pl.DataFrame, recorded: Recorded) -> None:
        """Look for the work behind ``waits``, and for what those tell the event of."""
        works = (self._trace.activities["kind"] != "sync").to_numpy()
        row = np.flatnonzero(works)
        places = self._trace.activities.select(_STREAM)[row]
        (of_work,) = numbered(places)
        streams = places[first_rows(of_work)].with_row_index("key")
        key = np.full(len(works), NONE, dtype=np.int64)
        key[row] = of_work
        # The context may be the event's: then the stream is known by its number, if one has that.
        told = keys_of(waits, streams, *_IN_CONTEXT)
        told = np.where(told == NO_WORK, keys_of(waits, streams, *_IN_PROCESS), told)
        asked, on = waits["asked"].to_numpy(), event_keys(waits, streams, *_IN_CONTEXT)
        call = recorded.call
        launched = np.where(call == NONE, recorded.start, take(recorded.call_start, call))
        works &= call != NONE
        unknown = (on == ANY) & (told >= 0)
        self._told = _behind((told[unknown], asked[unknown]), (key, launched), works)
        known = (on >= 0) & (told >= 0)
        if not known.any():
            return
        told, asked = told[known], asked[known]
        events = np.isin(of_work, np.unique(on[known]))
        awaitable = row[events][np.argsort(_ends(self._trace, row[events]), kind="stable")]
        work = recorded_work(
            self._trace, waits.filter(known), on[known], key[awaitable], launched[awaitable]
        )
        behind = np.flatnonzero(_behind((told, asked), (key, launched), works))
        found = take(awaitable, awaited(told, asked, work, key[behind], launched[behind]))
        # On one stream work waits for what is before it anyway.
        other = (found != NONE) & (key[found] != key[behind])
        self._behind_known, self._awaited_by_known = behind[other], found[other]

    def _known(self, gaps: Waiting) -> Ints:
        """Return the work that the next one waited for by an event that is known, in the gap."""
        found = np.full(len(gaps.after), NONE, dtype=np.int64)
        at = np.searchsorted(self._behind_known, gaps.after)
        rows = np.flatnonzero(np.append(self._behind_known, NONE)[at] == gaps.after)
        work = self._awaited_by_known[at[rows]]
        end = _ends(self._trace, work)
        inside = (end >= gaps.start[rows]) & (end <= gaps.end[rows])
        found[rows[inside]] = work[inside]
        return found

    def _inferred(self, gaps: Waiting) -> Ints:
        """Return the work that the next one may have waited for, where the event is not known."""
        stream = self._trace.activities["stream"]
        own, before = (stream.gather(to_rows(rows)) for rows in (gaps.after, gaps.before))
        beside = (own != before).fill_null(value=False).to_numpy()
        elsewhere = self._on_other_devices(gaps)
        return np.where(elsewhere != NONE, elsewhere, np.where(beside, gaps.before, NONE))

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


def _ends(trace: Trace, rows: Ints) -> Ints:
    """Return when some activities ended."""
    start, duration = (
        trace.activities[column].gather(rows).to_numpy() for column in ("start", "duration")
    )
    return np.asarray(start + duration)


def _causes(trace: Trace, activities: Ints) -> npt.NDArray[np.int8]:
    category = category_of(trace.activities.select(SOURCE)[activities], trace)
    cause = np.full(len(activities), EVENT, dtype=np.int8)
    for name, number in (("memcpy", COPY), ("collective", COLLECTIVE)):
        cause[category.eq(name).to_numpy()] = number
    return cause


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
