"""The cause of each gap, by the rules of docs/idle.md.

If the next work was launched before the GPU went idle, the cause is the wait of that work: an
event, the queue, the launch itself. Else the host is the cause: the time until the launch is
divided by the activity of the launching thread, assigned to causes by the names of its calls,
ranges and operators, and the largest part is the cause. The gaps of a CPU without GPU work are
waits for a batch, or time without operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.distinct import Texts, Threads, rows_of
from traceana.columns.intervals import Intervals, times, union, until
from traceana.columns.nesting import NONE, Flags, Ints, Nesting, from_rows, take, to_rows
from traceana.enrich.keys import SOURCE, category_of
from traceana.enrich.ranges import ROLE_OF_TEXT
from traceana.settings import LONGEST_DISPATCH_NS, LONGEST_EVENT_LATENCY_NS
from traceana.timeline.copies import blocking_copies
from traceana.timeline.idle_gaps import (
    AFTER_LAST,
    ALLOCATION,
    BEFORE_FIRST,
    COLLECTIVE,
    COPY,
    DATA_LOADER,
    DRIVER,
    EVENT,
    HOST,
    LAUNCH_LATENCY,
    NOT_RECORDED,
    OPERATOR,
    PROFILER,
    QUEUED,
    SAME_LAUNCH,
    SYNCHRONIZATION,
    Cause,
)
from traceana.timeline.waits import BY_EVENT, BY_STREAM, all_waits
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

Causes = npt.NDArray[np.int8]

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

_HOSTS: Final = ("module", "annotation", "step", "nvtx", "nvtx_start", "runtime")
"""Kinds of ranges whose text can be the cause of a wait of the host."""

_WHOLE_GAP: Final = DRIVER
"""Causes up to this one also count while the launching call runs."""

_TRAINING: Final = ("layer", "optimizer", "collective", "hooks")
"""Roles of operators that count as compute even during a wait for a batch."""

_LATEST: Final = np.iinfo(np.int64).max


class CauseFinder:
    """Finds the cause of each gap of a trace, device by device."""

    def __init__(self, trace: Trace) -> None:
        """Prepare the lookups; ``trace`` is whole."""
        self._trace = trace
        activities, calls = trace.tables.activities, trace.tables.calls
        _, self._ended = times(activities)
        self._call = from_rows(activities["call"])
        self._called, self._returned = times(calls)
        waits = all_waits(trace)
        self._why, self._awaited = (np.full(activities.height + 1, NONE) for _ in range(2))
        self._why[waits.activity] = waits.why
        by_event = np.flatnonzero(waits.by_event != NONE)
        self._awaited[waits.activity[by_event]] = waits.activity[waits.by_event[by_event]]
        threads = Threads.of(trace.tables.ops, trace.tables.calls, trace.tables.ranges)
        self._thread = threads.calls
        launching = threads.among(threads.calls[self._call[self._call != NONE]])
        self._ops = _nesting(trace.tables.ops, threads.ops, launching)
        self._ranges = _nesting(trace.tables.ranges, threads.ranges, launching)
        self._host = host_times(trace, threads, launching)
        self._copies: Flags = activities["kind"].is_in(["memcpy", "memset"]).to_numpy()
        self._blocking: Flags = blocking_copies(trace).fill_null(value=False).to_numpy()

    def added_to(self, gaps: pl.DataFrame) -> pl.DataFrame:
        """Return ``gaps``, of :func:`traceana.timeline.idle_gaps.gaps`, each with its ``cause``.

        Further columns: ``explained``, the part of the gap that the cause explains (ns); ``call``,
        ``range``, ``op``, the host's rows during the gap, or at the launch where the work was
        launched before the GPU went idle.
        """
        start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
        after = from_rows(gaps["after"])
        launch = take(self._call, after)
        launch_before = take(self._call, from_rows(gaps["before"]))
        called, returned = take(self._called, launch), take(self._returned, launch)
        otherwise = self._by_wait(gaps, launch, launch_before)
        until_launch = np.where(otherwise == HOST, np.minimum(called, end), start)
        thread = take(self._thread, launch)
        self._replace_idle_threads(
            thread, take(self._thread, launch_before), start, otherwise == HOST
        )

        cause, explained = otherwise.copy(), end - start
        middle, row = (start + until_launch) // 2, np.full(len(start), NONE, dtype=np.int64)
        by_thread = np.flatnonzero((thread != NONE) & np.isin(otherwise, (HOST, LAUNCH_LATENCY)))
        for number, some in rows_of(thread[by_thread]):
            here = by_thread[some]
            cause[here], explained[here], middle[here], row[here] = largest_causes(
                self._host[number], start[here], end[here], until_launch[here], otherwise[here]
            )

        # A call that took unusually long to launch a kernel loaded code or initialized the device.
        # Copies are staged in their calls.
        in_launch = np.minimum(returned, end) - np.maximum(called, start)
        longest = (otherwise == HOST) & (launch != NONE) & ~self._copies[after]
        longest &= (in_launch > LONGEST_DISPATCH_NS) & (in_launch > explained)
        cause[longest], explained[longest], row[longest] = DRIVER, in_launch[longest], NONE
        # The driver stages pageable memory inside a call that blocks, before the copy starts.
        staged = np.isin(cause, (LAUNCH_LATENCY, QUEUED)) & (after != NONE)
        cause[staged & self._blocking[after]] = COPY

        by_host = otherwise == HOST
        in_call = np.isin(cause, (ALLOCATION, SYNCHRONIZATION, COPY)) & by_host & (row != NONE)
        in_range = ((cause <= DRIVER) | by_host) & ~in_call & (row != NONE)
        launched = ~by_host & (otherwise < BEFORE_FIRST)
        call, annotation, op = (np.full(len(start), NONE, dtype=np.int64) for _ in range(3))
        in_operator = np.where(cause == HOST, NONE, thread)[by_host]
        op[by_host] = self._ops.innermost(in_operator, middle[by_host])
        annotation[by_host] = self._ranges.innermost(thread[by_host], middle[by_host])
        for column, found in (("op", op), ("range", annotation)):
            found[launched] = from_rows(
                self._trace.tables.activities[column].gather(after[launched])
            )
        call[launched | longest] = launch[launched | longest]
        call[in_call], annotation[in_range] = row[in_call], row[in_range]
        return gaps.with_columns(
            pl.Series("cause", cause.astype(np.uint8)).cat.to(Cause),
            pl.Series("explained", explained),
            to_rows(call).alias("call"),
            to_rows(annotation).alias("range"),
            to_rows(op).alias("op"),
        )

    def _by_wait(self, gaps: pl.DataFrame, launch: Ints, launch_before: Ints) -> Causes:
        """Return the cause of each gap by what the work after it waited for; ``HOST`` where its
        launching call began in the gap."""
        start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
        after = from_rows(gaps["after"])
        called, returned = take(self._called, launch), take(self._returned, launch)
        why = self._why[after]
        known = from_rows(gaps["cause"].to_physical())
        # Launched, and not started long after: no latency of a launch is as long.
        late = (end - returned > LONGEST_DISPATCH_NS) & (
            end - returned > np.maximum(called - start, 0)
        )
        cause = np.select(
            [
                known != NONE,
                launch == NONE,
                launch == launch_before,
                late,
                called >= start,
                why == BY_STREAM,
            ],
            [known, NOT_RECORDED, SAME_LAUNCH, QUEUED, HOST, QUEUED],
            LAUNCH_LATENCY,
        ).astype(np.int8)
        asked = (called < start) | (cause == QUEUED)
        rows = np.flatnonzero((why == BY_EVENT) & asked & (known == NONE))
        awaited = self._awaited[after[rows]]
        ended = take(self._ended, awaited)
        # An event that was over before the gap, or long before its end, does not explain it.
        recent = (ended >= start[rows]) & (end[rows] - ended <= LONGEST_EVENT_LATENCY_NS)
        rows, awaited = rows[recent], awaited[recent]
        category = category_of(self._trace.tables.activities.select(SOURCE)[awaited], self._trace)
        cause[rows] = EVENT
        for name, number in (("memcpy", COPY), ("collective", COLLECTIVE)):
            cause[rows[category.eq(name).to_numpy()]] = number
        return cause

    def _replace_idle_threads(
        self, thread: Ints, thread_before: Ints, start: Ints, by_host: Flags
    ) -> None:
        """Replace threads that had not started at the begin of the gap by those that launched last.

        They were in no call, operator or range then, such as autograd's before the backward pass.
        """
        rows = np.flatnonzero((thread != thread_before) & (thread_before != NONE) & by_host)
        key, when = thread[rows], start[rows]
        busy = self._ops.innermost(key, when) != NONE
        busy |= self._ranges.innermost(key, when) != NONE
        for number, here in rows_of(key):
            for one in self._host[number].values():
                busy[here] |= np.append(one.start, _LATEST)[one.first(when[here])] <= when[here]
        thread[rows[~busy]] = thread_before[rows[~busy]]


def largest_causes(
    host: Mapping[int, CauseTime], start: Ints, end: Ints, launch: Ints, otherwise: Causes
) -> tuple[Causes, Ints, Ints, Ints]:
    """Return the cause with the largest part of each gap, from ``start`` (in order) to ``end``.

    ``host`` has the time of the launching thread by cause; ``launch``, between start and end, is
    the start of the launch. ``otherwise`` is the cause of the rest: ``HOST`` for the unexplained
    time until the launch, any other for the whole gap except overhead.

    Also returned: the time that the cause explains; the middle of the first interval of the cause
    in the gap, or of the gap up to the launch; and the row of that interval in calls or ranges.
    """
    reach = np.maximum.accumulate(end)
    together: Intervals = (start[:0], start[:0])
    parts: dict[int, Ints] = {}
    before_launch = overhead = np.zeros_like(start)
    # Where several causes overlap, the more specific one has the time.
    for number, one in sorted(host.items()):
        near = np.append(start, _LATEST)[np.searchsorted(reach, one.start, side="right")] < one.end
        if not near.any():
            continue
        together = union(
            np.append(together[0], one.start[near]), np.append(together[1], one.end[near])
        )
        from_start = until(together, start)
        to_launch = until(together, launch) - from_start
        if number <= _WHOLE_GAP:
            whole = until(together, end) - from_start
            parts[number], overhead = whole - overhead, whole
        else:
            parts[number] = to_launch - before_launch
        before_launch = to_launch
    rest = launch - start - before_launch
    operators = parts.get(OPERATOR, np.zeros_like(rest))
    for number in (SYNCHRONIZATION, COPY):
        if number in parts:
            _credit_blocking(host[number], parts[number], rest, operators, start, launch)

    explained = np.where(otherwise == HOST, rest, end - start - overhead)
    cause = otherwise.copy()
    # Of equal parts the first counts, which is the more specific cause.
    best = np.zeros_like(explained)
    for number, part in parts.items():
        larger = (part > best) & (part >= explained)
        best[larger], cause[larger] = part[larger], number
    middle = (start + launch) // 2
    row = np.full(len(start), NONE, dtype=np.int64)
    for number in parts:
        one = host[number]
        here = np.flatnonzero(cause == number)
        if number == OPERATOR:
            # Of operators the one in the middle of the gap counts, if any.
            at = one.first(middle[here])
            here = here[np.append(one.start, _LATEST)[at] > middle[here]]
        at = one.first(start[here])
        stop = (end if number <= _WHOLE_GAP else launch)[here]
        middle[here] = (np.maximum(one.start[at], start[here]) + np.minimum(one.end[at], stop)) // 2
        row[here] = one.row[at]
    return cause, np.maximum(best, explained), middle, row


def _credit_blocking(
    one: CauseTime, part: Ints, rest: Ints, operators: Ints, start: Ints, launch: Ints
) -> None:
    """Charge a call that blocked the thread when the GPU went idle with the delay it caused.

    Without the wait the thread would have launched earlier by the time it waited: this much of its
    other time before the launch counts as the call's. ``part``, ``rest`` and ``operators``, the
    time of the calls, of no cause and of operators, are changed in-place.
    """
    starts, ends = union(one.start, one.end)
    if not len(starts):
        return
    at = np.searchsorted(starts, start, side="right") - 1
    rows = np.flatnonzero((at != NONE) & (ends[at] > start) & (launch > start))
    waited = np.minimum(start[rows] - starts[at[rows]], rest[rows] + operators[rows])
    from_rest = np.minimum(waited, rest[rows])
    rest[rows] -= from_rest
    operators[rows] -= waited - from_rest
    part[rows] += waited


def _nesting(frame: pl.DataFrame, key: Ints, wanted: Flags) -> Nesting:
    """Return the nested rows of ``frame`` on the ``wanted`` threads, numbered by ``key``."""
    start, end = times(frame)
    depth = from_rows(frame["depth"])
    rows = np.flatnonzero(wanted[key] & (depth != NONE))
    rows = rows[np.lexsort((-end[rows], start[rows], key[rows]))]
    return Nesting(from_rows(frame["parent"]), depth, key, start, end, rows)


class CauseTime(msgspec.Struct, frozen=True):
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


def host_times(
    trace: Trace, threads: Threads, wanted: Flags
) -> Mapping[int, Mapping[int, CauseTime]]:
    """Return the time of each wanted thread by its number and cause.

    A wait for a batch counts for all threads of its process. Overhead of a process without wanted
    threads, as Kineto writes it, counts for all threads of the rank.
    """
    known = threads.known.with_columns(pl.Series("number", np.arange(threads.known.height)))
    asked = known.filter(wanted)
    names = Texts.of(trace.tables.calls["name"])
    parts = {
        cause: _intervals(trace.tables.calls, threads.calls, names.matching(pattern))
        for cause, pattern in _CALLS.items()
    }
    parts[COLLECTIVE] = _named(trace, threads, _BLOCKING_COLLECTIVE)
    parts[DATA_LOADER] = _on_all(_named(trace, threads, LOADING), known, asked, ["rank", "process"])
    outermost = trace.tables.ops["depth"].eq(0).fill_null(value=False).to_numpy()
    parts[OPERATOR] = _intervals(trace.tables.ops, threads.ops, outermost, with_rows=False)
    overhead = trace.tables.ranges["kind"].eq("overhead").fill_null(value=False).to_numpy()
    of_driver = overhead & Texts.of(trace.tables.ranges["text"]).matching(_DRIVER_OVERHEAD)
    processes = known.select("rank", "process").rows()
    with_wanted = set(asked.select("rank", "process").rows())
    own = np.array([process in with_wanted for process in processes], dtype=np.bool_)
    for cause, records in ((PROFILER, overhead & ~of_driver), (DRIVER, of_driver)):
        part = _intervals(trace.tables.ranges, threads.ranges, records)
        is_own = own[part["number"].to_numpy()]
        of_rank = _on_all(part.filter(~is_own), known, asked, ["rank"])
        parts[cause] = pl.concat([part.filter(is_own), of_rank])

    found: dict[int, dict[int, CauseTime]] = {number: {} for number in asked["number"]}
    for cause, part in parts.items():
        part = part.sort("start", maintain_order=True)
        number, *columns = (part[name].to_numpy() for name in ("number", "start", "end", "row"))
        for thread, rows in rows_of(number):
            if thread in found:
                start, end, row = (column[rows] for column in columns)
                found[thread][cause] = CauseTime(start, end, row, np.maximum.accumulate(end))
    return found


def _intervals(
    table: pl.DataFrame, number: Ints, wanted: Flags, *, with_rows: bool = True
) -> pl.DataFrame:
    """Return ``number`` (of the thread), ``start``, ``end`` and ``row`` of rows of ``table``."""
    rows = np.flatnonzero(wanted)
    start, duration = (table[column].gather(rows) for column in ("start", "duration"))
    row = rows if with_rows else np.full(len(rows), NONE)
    return pl.DataFrame(
        {"number": number[rows], "start": start, "end": start + duration, "row": row}
    )


def _named(trace: Trace, threads: Threads, pattern: str) -> pl.DataFrame:
    """Return the :func:`_intervals` of ranges and of operators whose names match ``pattern``."""
    hosts = trace.tables.ranges["kind"].is_in(_HOSTS).fill_null(value=False).to_numpy()
    ranges = Texts.of(trace.tables.ranges["text"]).matching(pattern) & hosts
    ops = Texts.of(trace.tables.ops["name"]).matching(pattern)
    return pl.concat(
        [
            _intervals(trace.tables.ranges, threads.ranges, ranges),
            _intervals(trace.tables.ops, threads.ops, ops, with_rows=False),
        ]
    )


def _on_all(
    part: pl.DataFrame, known: pl.DataFrame, asked: pl.DataFrame, by: list[str]
) -> pl.DataFrame:
    """Return each interval of ``part`` on all ``asked`` threads that are equal to its own ``by``.

    ``by`` are columns of ``known`` and of ``asked``, threads with their ``number``.
    """
    return (
        part.join(known.select("number", *by), on="number", maintain_order="left")
        .drop("number")
        .join(asked.select("number", *by), on=by, nulls_equal=True, maintain_order="left")
        .select(part.columns)
    )


def cpu_time(
    trace: Trace, rank: int | None, start: int, end: int
) -> tuple[Intervals, pl.DataFrame]:
    """Return the busy time and the gaps of one rank's CPU from ``start`` to ``end``.

    The CPU is busy while an operator of a layer, of the optimizer or of a collective runs on any
    thread. Other operators count outside waits for a batch only, because TensorFlow's input
    pipelines and PyTorch's data sets also run operators. The rest is ``data_loader`` during a wait
    for a batch, else ``host``. Gaps have the columns of :meth:`CauseFinder.added_to`.
    """
    here = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    rows = trace.tables.activities.with_row_index("row").filter(
        here, pl.col("device") == CPU_DEVICE
    )
    role = trace.tables.layers["role"].cast(pl.String).gather(rows["layer"])
    in_training = role.is_in(_TRAINING).fill_null(value=False).to_numpy()
    begun = rows["start"].to_numpy()
    ended = begun + rows["duration"].to_numpy()
    operators = union(begun, ended)
    threads = Threads.of(trace.tables.ops, trace.tables.calls, trace.tables.ranges)
    of_rank = threads.known.select(here).to_series().to_numpy()
    waits = _named(trace, threads, LOADING)
    waits = waits.filter(of_rank[waits["number"].to_numpy()]).sort("start", maintain_order=True)
    waiting = union(waits["start"].to_numpy(), waits["end"].to_numpy())
    # Other operators during an exposed wait belong to the input pipeline.
    exposed = _without(waiting, union(begun[in_training], ended[in_training]))
    busy = _without(operators, exposed)
    nothing = _without(_without((np.array([start]), np.array([end])), operators), waiting)
    # As on a GPU, the time before the first activity ends where the first step starts.
    first = trace.tables.steps.filter(here)["start"].min()
    first_step = end if first is None else max(int(first), start)  # type: ignore[arg-type]
    cut = np.full(int(((nothing[0] < first_step) & (first_step < nothing[1])).sum()), first_step)
    starts = np.concatenate((exposed[0], np.sort(np.append(nothing[0], cut))))
    ends = np.concatenate((exposed[1], np.sort(np.append(nothing[1], cut))))
    cause = np.full(len(starts), HOST, dtype=np.int8)
    cause[: len(exposed[0])] = DATA_LOADER
    cause[(cause == HOST) & (starts == start) & (starts < first_step)] = BEFORE_FIRST
    cause[(cause == HOST) & (ends == end)] = AFTER_LAST
    in_time = np.argsort(starts, kind="stable")
    starts, ends, cause = starts[in_time], ends[in_time], cause[in_time]

    row = rows["row"].cast(pl.Int64).to_numpy()
    by_end, by_start = np.argsort(ended, kind="stable"), np.argsort(begun, kind="stable")
    last = np.searchsorted(ended[by_end], starts, side="right") - 1
    following = np.searchsorted(begun[by_start], ends, side="left")
    before = take(row[by_end], last)
    after = np.append(row[by_start], NONE)[following]
    key = np.full(len(starts), NONE, dtype=np.int64)
    # The operator's thread where both are recorded.
    for column, numbers in (("range", threads.ranges), ("op", threads.ops)):
        launching = from_rows(trace.tables.activities[column].gather(to_rows(after)))
        key = np.where(launching == NONE, key, take(numbers, launching))
    key[threads.known["thread"].is_null().to_numpy()[key] & (key != NONE)] = NONE
    ranges = _nesting(trace.tables.ranges, threads.ranges, threads.among(key))
    annotation = ranges.innermost(key, (starts + ends) // 2)
    if waits.height:
        reach = waits["end"].cum_max().to_numpy()
        at = np.minimum(np.searchsorted(reach, starts, side="right"), waits.height - 1)
        own = waits["row"].to_numpy()[at]
        annotation = np.where((cause == DATA_LOADER) & (own != NONE), own, annotation)
    gaps = pl.DataFrame({"start": starts, "end": ends}).with_columns(
        pl.lit(rank, pl.Int32).alias("rank"),
        pl.lit(CPU_DEVICE, pl.Int32).alias("device"),
        to_rows(before).alias("before"),
        to_rows(after).alias("after"),
        pl.Series("cause", cause.astype(np.uint8)).cat.to(Cause),
        (pl.col("end") - pl.col("start")).alias("explained"),
        pl.lit(None, pl.UInt32).alias("call"),
        to_rows(annotation).alias("range"),
        pl.lit(None, pl.UInt32).alias("op"),
    )
    return busy, gaps


def _without(one: Intervals, other: Intervals) -> Intervals:
    """Return the parts of ``one`` that are not in ``other``; both are disjoint and ordered."""
    edges = np.unique(np.concatenate((*one, *other)))
    kept = (np.diff(until(one, edges)) > 0) & (np.diff(until(other, edges)) == 0)
    return union(edges[:-1][kept], edges[1:][kept])
