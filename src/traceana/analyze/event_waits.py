"""Waits for CUDA events: the waiting work, and the work after which the event was recorded.

Used for the causes of gaps and for the critical path. Where CUPTI recorded the wait and its event,
the work is known. Else it is inferred from the calls of the launching thread and from the work that
ended last. ``ANY`` is an unknown stream, ``NO_WORK`` a stream without work.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.enrich.distinct_values import Texts, distinct, first_rows, numbered
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, take, timeline, to_rows
from traceana.settings import LONGEST_EVENT_LATENCY_NS

if TYPE_CHECKING:
    from traceana.trace import Trace

STREAM_WAIT: Final = "Stream Wait Event"
"""The readers' name of CUPTI's record of a stream's wait for an event."""

WAIT_CALL: Final = r"^(?:cuda|cu|hip)StreamWaitEvent"
"""Calls that make a stream wait for an event."""

ANY, NO_WORK = -1, -2
NEVER: Final = np.iinfo(np.int64).min

_RECORD: Final = ["rank", "process", "event_correlation"]


def wait_records(trace: Trace, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of streams for an event among ``syncs``, synchronization records.

    Further column: ``requested``, the start of the requesting call, else of the record (ns).
    """
    names = trace.names.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"), "name")
    wanted = names.filter(pl.col("name") == STREAM_WAIT)["name_id"]
    waits = syncs.filter(pl.col("name_id").is_in(wanted.implode()))
    called = trace.whole.calls["start"].gather(waits["call"])
    return waits.with_columns(called.fill_null(waits["start"]).alias("requested"))


def keys_of(syncs: pl.DataFrame, keys: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream or context of each record.

    :data:`ANY` where it is not recorded or its number is ambiguous, :data:`NO_WORK` where nothing
    ran on it. ``columns`` identify it in ``syncs`` and in ``keys``; a record's device can be wrong.
    """
    several = pl.len() > 1
    known = keys.group_by(columns).agg(pl.when(several).then(ANY).otherwise(pl.col("key").first()))
    found = syncs.select(columns).join(
        known, on=list(columns), how="left", nulls_equal=True, maintain_order="left"
    )
    return (
        found.select(
            pl.when(pl.col(columns[-1]).is_null())
            .then(ANY)
            .otherwise(pl.col(known.columns[-1]).fill_null(NO_WORK))
            .cast(pl.Int64)
        )
        .to_series()
        .to_numpy()
    )


def event_keys(waits: pl.DataFrame, streams: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream on which the event of each of ``waits`` was recorded."""
    of_events = waits.with_columns(pl.col("event_stream").alias("stream"))
    return keys_of(of_events, streams, *columns)


def recorded_work(trace: Trace, waits: pl.DataFrame, on: Ints, key: Ints, launched: Ints) -> Ints:
    """Return for each of ``waits`` the work after which its event was recorded.

    ``waits`` are synchronization records with ``requested``; ``on`` is the key of each event's
    stream (:func:`event_keys`); ``key`` and ``launched`` are the stream of each piece of work and
    the start of its launch.

    It is the last work launched on the event's stream before the call that recorded the event, or,
    where that call is not in the trace, before the waiting call. ``NO_WORK`` where nothing was
    launched there before, ``ANY`` where the stream of the event is unknown.
    """
    if waits.is_empty():
        return np.zeros(0, dtype=np.int64)
    wanted = waits["event_correlation"].drop_nulls().unique()
    calls = trace.whole.calls.select("rank", "process", "correlation", "start")
    records = calls.filter(pl.col("correlation").is_in(wanted.implode()))
    recorded = waits.select(_RECORD).join(
        records.rename({"correlation": "event_correlation"}).unique(_RECORD, keep="first"),
        on=_RECORD, how="left", nulls_equal=True, maintain_order="left",
    )["start"]  # fmt: skip
    index = np.argsort(launched, kind="stable")
    order = Ended.of(key[index], launched[index], launched[index])
    # A launching call and a recording call never start at the same time.
    position = order.last(np.maximum(on, 0), recorded.fill_null(waits["requested"]).to_numpy() - 1)
    found = take(index, take(order.order, position))
    return np.select([on < 0, found == NONE], [on, NO_WORK], found)


def awaited(waiting: Ints, when: Ints, work: Ints, key: Ints, launched: Ints) -> Ints:
    """Return for each work the one that its stream waited for since the work before it.

    ``waiting`` is the key of the waiting stream, ``when`` the time of the request, and ``work`` of
    :func:`recorded_work`. Of several waits the work that ended last counts; NONE without a wait.
    The awaited work is numbered in the order of its end; ``key`` and ``launched`` are of the
    possibly waiting work.
    """
    result = np.full(len(key), NONE, dtype=np.int64)
    if not len(waiting):
        return result
    order = np.lexsort((launched, key))
    times, rank = np.unique(np.concatenate((launched, when)), return_inverse=True)
    merged = (key * len(times) + rank[: len(key)])[order]
    at = np.searchsorted(merged, waiting * len(times) + rank[len(key) :], side="left")
    known = (at < len(order)) & (waiting >= 0) & (work >= 0)
    first = order[at[known]]
    same = key[first] == waiting[known]
    np.maximum.at(result, first[same], work[known][same])
    return result


class Ended(msgspec.Struct, frozen=True):
    """An index of work by key (a stream, a device) and end. Lookups of columns, O(log n) each."""

    order: Ints
    """Rows, by key and end."""
    key: Ints
    end: Ints
    _merged: Ints
    _rank: Ints
    _tree: Ints
    """The earliest launch below each node of a balanced tree over ``order``."""

    @classmethod
    def of(cls, key: Ints, end: Ints, launched: Ints) -> Ended:
        """Return the index of rows given as columns in the order of their end; ``key`` >= 0."""
        order = np.argsort(key, kind="stable")
        first = np.append(True, end[1:] != end[:-1])[: len(end)]
        rank = end[first]
        merged = key[order] * (len(rank) + 1) + (np.cumsum(first) - 1)[order]
        size = 1 << len(order).bit_length()
        tree = np.full(2 * size, np.iinfo(np.int64).max, dtype=np.int64)
        tree[size : size + len(order)] = launched[order]
        level = size
        while level > 1:
            half = level // 2
            tree[half:level] = np.minimum(
                tree[level : 2 * level : 2], tree[level + 1 : 2 * level : 2]
            )
            level = half
        return cls(order, key[order], end[order], merged, rank, tree)

    def last(self, key: Ints, until: Ints) -> Ints:
        """Return the position in ``order`` of the last of ``key`` that ended by ``until``."""
        if not len(self.order):
            return np.full(len(key), NONE, dtype=np.int64)
        position = self._after(key, until) - 1
        return np.where((position >= 0) & (self.key[position] == key), position, NONE)

    def last_launched(self, key: Ints, after: Ints, until: Ints, before: Ints) -> Ints:
        """Return the row of the last work that ended in (``after``, ``until``].

        Only work launched before ``before`` counts; NONE without such work.
        """
        if not len(self.order):
            return np.full(len(key), NONE, dtype=np.int64)
        size = len(self._tree) // 2
        node = self._after(key, until) + size
        found = np.zeros(len(node), dtype=np.int64)
        while (node > 1).any():
            # Before a right child come its left sibling, and the nodes before their parent.
            sibling = np.where(node & 1, node - 1, 0)
            hit = (sibling > 0) & (self._tree[sibling] < before)
            found = np.where(hit, sibling, found)
            node = np.where(hit, 0, node >> 1)
        while ((found > 0) & (found < size)).any():
            below = (found > 0) & (found < size)
            right = np.where(below, 2 * found + 1, 1)
            found = np.where(below, np.where(self._tree[right] < before, right, right - 1), found)
        position = np.maximum(found - size, 0)
        known = (found > 0) & (position >= self._after(key, after))
        return np.where(known, self.order[position], NONE)

    def _after(self, key: Ints, until: Ints) -> Ints:
        """Return the position after all smaller keys and the work of ``key`` ended by ``until``."""
        rank = np.searchsorted(self._rank, until, side="right")
        return np.searchsorted(self._merged, key * (len(self._rank) + 1) + rank, side="left")


def distinct_of(ordered: Ints) -> Ints:
    """Return the distinct values of a sorted array; much faster than hashing them."""
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


class Launches(msgspec.Struct, frozen=True):
    """Start and launching call of each activity; start, end and thread of each call.

    ``call`` are rows, NONE for null; ``launching``: whether a call launched anything.
    """

    start: Ints
    call: Ints
    call_start: Ints
    call_end: Ints
    call_thread: Ints
    launching: Flags

    @classmethod
    def of(cls, trace: Trace, call_thread: Ints) -> Launches:
        """Return the columns of ``trace``; ``call_thread`` numbers the thread of each call."""
        call = trace.activities["call"]
        start = trace.calls["start"].to_numpy()
        launching = np.zeros(len(start), dtype=np.bool_)
        launching[call.drop_nulls().to_numpy()] = True
        return cls(
            trace.activities["start"].to_numpy(),
            from_rows(call),
            start,
            start + trace.calls["duration"].to_numpy(),
            call_thread,
            launching,
        )


class LaunchedGaps(msgspec.Struct, frozen=True):
    """Gaps of one device that began after the next work had been launched.

    ``before`` and ``after`` are rows of activities, ``call`` of the call that launched ``after``.
    """

    device: int
    start: Ints
    end: Ints
    before: Ints
    after: Ints
    call: Ints

    def only(self, rows: Ints) -> LaunchedGaps:
        """Return some of the gaps."""
        columns = (self.start, self.end, self.before, self.after, self.call)
        return LaunchedGaps(self.device, *(values[rows] for values in columns))


class EventWaits:
    """The work of a trace that was launched after a wait of its stream for an event.

    With CUPTI's records, a wait counts for the next work launched on the waiting stream; without
    them, for the next work that the calling thread launched on any stream.
    """

    _IN_PROCESS: Final = ("rank", "process", "stream")
    _IN_CONTEXT: Final = ("rank", "process", "context", "stream")
    _STREAM: Final = ("rank", "process", "device", "context", "stream")

    def __init__(self, trace: Trace, launches: Launches) -> None:
        """Find the waits of ``trace``."""
        self._trace = trace
        self._waiting_known = self._awaited_known = np.zeros(0, dtype=np.int64)
        syncs = trace.activities.filter(pl.col("kind") == "sync", pl.col("stream").is_not_null())
        records = wait_records(trace, syncs)
        self._recorded = records.height > 0
        if self._recorded:
            self._find_recorded(records, launches)
            return
        calls, threads = launches.call_start, launches.call_thread
        waits = np.flatnonzero(Texts.of(trace.calls["name"]).matching(WAIT_CALL))
        # By call; recorded waits by activity.
        self._waits = _next_launches(
            (threads[waits], calls[waits]), (threads, calls), launches.launching
        )

    def awaited(self, gaps: LaunchedGaps) -> tuple[Ints, Ints]:
        """Return the rows of ``gaps`` whose next work waits for an event, and the awaited work.

        That is the work after which the event was recorded, where the trace has the event, if it
        ended in the gap. Else it is the work of the process on another device that ended last in
        the gap, else the work that ended last on the same device, if on another stream. Without
        such work, or where it ended long before the end of the gap, the wait does not explain it.
        """
        found = self._known(gaps)
        waiting = self._waits[gaps.after if self._recorded else gaps.call] & (found == NONE)
        rows = np.flatnonzero(waiting)
        if len(rows):
            found[rows] = self._inferred(gaps.only(rows))
        known = np.flatnonzero(found != NONE)
        late = gaps.end[known] - _ends(self._trace, found[known]) > LONGEST_EVENT_LATENCY_NS
        known = known[~late]
        return known, found[known]

    def _find_recorded(self, waits: pl.DataFrame, launches: Launches) -> None:
        """Find the work after ``waits``, and the work before the recorded events."""
        works = (self._trace.activities["kind"] != "sync").to_numpy()
        row = np.flatnonzero(works)
        streams_of_work = self._trace.activities.select(self._STREAM)[row]
        (of_work,) = numbered(streams_of_work)
        streams = streams_of_work[first_rows(of_work)].with_row_index("key")
        key = np.full(len(works), NONE, dtype=np.int64)
        key[row] = of_work
        # The context may be the event's: then a stream number unique in the process counts.
        waiting = keys_of(waits, streams, *self._IN_CONTEXT)
        in_process = keys_of(waits, streams, *self._IN_PROCESS)
        waiting = np.where(waiting == NO_WORK, in_process, waiting)
        on = event_keys(waits, streams, *self._IN_CONTEXT)
        requested = waits["requested"].to_numpy()
        call = launches.call
        launched = np.where(call == NONE, launches.start, take(launches.call_start, call))
        works &= call != NONE
        unknown = (on == ANY) & (waiting >= 0)
        self._waits = _next_launches((waiting[unknown], requested[unknown]), (key, launched), works)
        known = (on >= 0) & (waiting >= 0)
        if not known.any():
            return
        waiting, requested = waiting[known], requested[known]
        events = np.isin(of_work, np.unique(on[known]))
        ends = _ends(self._trace, row[events])
        awaitable = row[events][np.argsort(ends, kind="stable")]
        work = recorded_work(
            self._trace, waits.filter(known), on[known], key[awaitable], launched[awaitable]
        )
        behind = np.flatnonzero(_next_launches((waiting, requested), (key, launched), works))
        found = take(awaitable, awaited(waiting, requested, work, key[behind], launched[behind]))
        # Work always waits for the work before it on its own stream.
        other = (found != NONE) & (key[found] != key[behind])
        self._waiting_known, self._awaited_known = behind[other], found[other]

    def _known(self, gaps: LaunchedGaps) -> Ints:
        """Return the work awaited by the next work through a recorded event; else NONE.

        It counts if it ended in the gap.
        """
        found = np.full(len(gaps.after), NONE, dtype=np.int64)
        at = np.searchsorted(self._waiting_known, gaps.after)
        rows = np.flatnonzero(np.append(self._waiting_known, NONE)[at] == gaps.after)
        work = self._awaited_known[at[rows]]
        end = _ends(self._trace, work)
        inside = (end >= gaps.start[rows]) & (end <= gaps.end[rows])
        found[rows[inside]] = work[inside]
        return found

    def _inferred(self, gaps: LaunchedGaps) -> Ints:
        """Return the work that the next work may have waited for, where the event is unknown."""
        stream = self._trace.activities["stream"]
        own, before = (stream.gather(to_rows(rows)) for rows in (gaps.after, gaps.before))
        beside = (own != before).fill_null(value=False).to_numpy()
        elsewhere = self._on_other_devices(gaps)
        return np.where(elsewhere != NONE, elsewhere, np.where(beside, gaps.before, NONE))

    def _on_other_devices(self, gaps: LaunchedGaps) -> Ints:
        """Return the work of the same process that ended last in each gap, on another device."""
        found = np.full(len(gaps.after), NONE, dtype=np.int64)
        of_gaps = self._process[gaps.after]
        for own in np.unique(of_gaps[self._several_devices[of_gaps]]):
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
    def _several_devices(self) -> Flags:
        """Whether a process, by number, worked on several devices."""
        used = self._work.select("kind", "device", pl.Series("process", self._process))
        devices = distinct(used.filter(pl.col("kind") != "sync").select("process", "device"))
        count = devices.drop_nulls("device")["process"].to_numpy()
        return np.bincount(count, minlength=int(self._process.max()) + 1) > 1


def _ends(trace: Trace, rows: Ints) -> Ints:
    """Return the ends of some activities."""
    start, duration = (
        trace.activities[column].gather(rows).to_numpy() for column in ("start", "duration")
    )
    return np.asarray(start + duration)


def _next_launches(waits: tuple[Ints, Ints], launches: tuple[Ints, Ints], launched: Flags) -> Flags:
    """Return the ``launches`` that come next after one of ``waits``, on its stream or thread.

    Both are the number of a stream or thread, and a time; a launch at the time of the wait is not
    after it. Only the ``launches`` that are ``launched`` count.
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
    started, requested = np.split(line, [len(rows)])
    if (started[1:] < started[:-1]).any():
        order = np.argsort(started, kind="stable")
        started, of_rows, rows = started[order], of_rows[order], rows[order]
    # The launch that comes next after each wait, if it is on the same stream or thread.
    first = np.searchsorted(started, requested)
    there = first < len(started)
    first, requested, key = first[there], requested[there], key[there]
    first = first[(started[first] > requested) & (of_rows[first] == key)]
    # Launches that start at the same time all count.
    group = np.cumsum(np.concatenate(([0], started[1:] != started[:-1])))
    next_ones = np.zeros(len(started), dtype=np.bool_)
    next_ones[group[first]] = True
    found[rows] = next_ones[group]
    return found
