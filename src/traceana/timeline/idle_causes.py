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
from traceana.settings import LONGEST_DISPATCH_NS, LONGEST_EVENT_LATENCY_NS
from traceana.timeline.busy import (
    LOADING,
    difference,
    named_intervals,
    thread_intervals,
    waits_for_batches,
)
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
from traceana.trace.work import labels
from traceana.vocabulary import host_calls

if TYPE_CHECKING:
    from traceana.trace import Trace

Causes = npt.NDArray[np.int8]

_CALLS: Final[dict[int, str]] = {
    ALLOCATION: host_calls.ALLOCATES,
    SYNCHRONIZATION: host_calls.SYNCHRONIZES,
    COPY: host_calls.COPIES,
}
"""Patterns of the names of calls that delay the host."""

_BLOCKING_COLLECTIVE: Final = r"^(?:gloo|mpi|ucc):|^MPI_|^c10d::(?:monitored_)?barrier"
"""Ranges and operators of collectives that the host performs or waits for. NCCL's collectives are
kernels, which wait on the device."""

_DRIVER_OVERHEAD: Final = r"(?i)loading|compiler|command buffer"
"""CUPTI's overhead records of CUDA: code is loaded or compiled, or the command buffer is full."""

_LAST_DURING_LAUNCH: Final = DRIVER
"""Causes up to this one also count while the launching call runs."""

_LATEST: Final = np.iinfo(np.int64).max


class CauseFinder:
    """Finds the cause of each gap of a trace, device by device."""

    def __init__(self, trace: Trace) -> None:
        """Prepare the lookups; ``trace`` is whole."""
        self._trace = trace
        activities, calls = trace.tables.activities, trace.tables.calls
        _, self._activity_end = times(activities)
        self._call_start, self._call_end = times(calls)
        self._launch = from_rows(activities["call"])
        waits = all_waits(trace)
        # By activity; the last entry is that of NONE.
        self._wait_kind = np.full(activities.height + 1, NONE)
        self._wait_kind[waits.activity] = waits.why
        self._awaited = np.full(activities.height + 1, NONE)
        waiting = np.flatnonzero(waits.by_event != NONE)
        self._awaited[waits.activity[waiting]] = waits.activity[waits.by_event[waiting]]
        threads = Threads.of(trace.tables.ops, trace.tables.calls, trace.tables.ranges)
        self._call_thread = threads.calls
        launching = threads.among(threads.calls[self._launch[self._launch != NONE]])
        self._ops = _nesting(trace.tables.ops, threads.ops, launching)
        self._ranges = _nesting(trace.tables.ranges, threads.ranges, launching)
        self._host_times = host_times(trace, threads, launching)
        self._is_copy: Flags = activities["kind"].is_in(["memcpy", "memset"]).to_numpy()
        self._blocking: Flags = blocking_copies(trace).fill_null(value=False).to_numpy()

    def with_causes(self, gaps: pl.DataFrame) -> pl.DataFrame:
        """Return ``gaps``, of :func:`traceana.timeline.idle_gaps.gaps`, each with its ``cause``.

        Further columns: ``explained``, the part of the gap that the cause explains (ns); ``call``,
        ``range``, ``op``, the host's rows during the gap, or at the launch where the work was
        launched before the GPU went idle.
        """
        start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
        after = from_rows(gaps["after"])
        launch = take(self._launch, after)
        launch_before = take(self._launch, from_rows(gaps["before"]))
        launch_start, launch_end = take(self._call_start, launch), take(self._call_end, launch)
        wait_cause = self._causes_of_waits(gaps, launch, launch_before)
        by_host = wait_cause == HOST
        thread = self._active_threads(
            take(self._call_thread, launch), take(self._call_thread, launch_before), start, by_host
        )

        # The time until the launch is divided by the activity of the launching thread.
        until_launch = np.where(by_host, np.minimum(launch_start, end), start)
        cause, explained = wait_cause.copy(), end - start
        middle, row = (start + until_launch) // 2, np.full(len(start), NONE, dtype=np.int64)
        divided = np.flatnonzero((thread != NONE) & np.isin(wait_cause, (HOST, LAUNCH_LATENCY)))
        for number, positions in rows_of(thread[divided]):
            rows = divided[positions]
            # Threads launch for several devices.
            rows = rows[np.argsort(start[rows], kind="stable")]
            cause[rows], explained[rows], middle[rows], row[rows] = largest_causes(
                self._host_times[number],
                start[rows],
                end[rows],
                until_launch[rows],
                wait_cause[rows],
            )

        # A call that took unusually long to launch a kernel loaded code or initialized the device.
        # Copies are staged in their calls.
        in_launch = np.minimum(launch_end, end) - np.maximum(launch_start, start)
        long_launch = by_host & (launch != NONE) & ~self._is_copy[after]
        long_launch &= (in_launch > LONGEST_DISPATCH_NS) & (in_launch > explained)
        cause[long_launch], row[long_launch] = DRIVER, NONE
        explained[long_launch] = in_launch[long_launch]
        # The driver stages pageable memory inside a call that blocks, before the copy starts.
        launched_before = np.isin(cause, (LAUNCH_LATENCY, QUEUED)) & (after != NONE)
        cause[launched_before & self._blocking[after]] = COPY

        # The host's rows: of the cause if it is a call or a range, else at the middle of its time.
        call, range_row, op = (np.full(len(start), NONE, dtype=np.int64) for _ in range(3))
        op_thread = np.where(cause == HOST, NONE, thread)[by_host]
        op[by_host] = self._ops.innermost(op_thread, middle[by_host])
        range_row[by_host] = self._ranges.innermost(thread[by_host], middle[by_host])
        has_launch = ~by_host & (wait_cause < BEFORE_FIRST)
        activities = self._trace.tables.activities
        op[has_launch] = from_rows(activities["op"].gather(after[has_launch]))
        range_row[has_launch] = from_rows(activities["range"].gather(after[has_launch]))
        call[has_launch | long_launch] = launch[has_launch | long_launch]
        is_call = np.isin(cause, (ALLOCATION, SYNCHRONIZATION, COPY)) & by_host & (row != NONE)
        is_range = ((cause <= DRIVER) | by_host) & ~is_call & (row != NONE)
        call[is_call], range_row[is_range] = row[is_call], row[is_range]
        return gaps.with_columns(
            pl.Series("cause", cause.astype(np.uint8)).cat.to(Cause),
            pl.Series("explained", explained),
            to_rows(call).alias("call"),
            to_rows(range_row).alias("range"),
            to_rows(op).alias("op"),
        )

    def _causes_of_waits(self, gaps: pl.DataFrame, launch: Ints, launch_before: Ints) -> Causes:
        """Return the cause of each gap by what the work after it waited for; ``HOST`` where its
        launching call began in the gap."""
        start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
        after = from_rows(gaps["after"])
        launch_start, launch_end = take(self._call_start, launch), take(self._call_end, launch)
        wait_kind = self._wait_kind[after]
        at_edge = from_rows(gaps["cause"].to_physical())
        # Launched, and not started long after: no latency of a launch is as long.
        latency = end - launch_end
        late = (latency > LONGEST_DISPATCH_NS) & (latency > np.maximum(launch_start - start, 0))
        cause = np.select(
            [
                at_edge != NONE,
                launch == NONE,
                launch == launch_before,
                late,
                launch_start >= start,
                wait_kind == BY_STREAM,
            ],
            [at_edge, NOT_RECORDED, SAME_LAUNCH, QUEUED, HOST, QUEUED],
            LAUNCH_LATENCY,
        ).astype(np.int8)
        launched_before = (launch_start < start) | (cause == QUEUED)
        rows = np.flatnonzero((wait_kind == BY_EVENT) & launched_before & (at_edge == NONE))
        awaited = self._awaited[after[rows]]
        ended = take(self._activity_end, awaited)
        # An event that was over before the gap, or long before its end, does not explain it.
        recent = (ended >= start[rows]) & (end[rows] - ended <= LONGEST_EVENT_LATENCY_NS)
        rows, awaited = rows[recent], awaited[recent]
        category = labels(self._trace.tables, "category")["category"][awaited]
        cause[rows] = EVENT
        cause[rows[category.eq("memcpy").to_numpy()]] = COPY
        cause[rows[category.eq("collective").to_numpy()]] = COLLECTIVE
        return cause

    def _active_threads(
        self, thread: Ints, thread_before: Ints, start: Ints, by_host: Flags
    ) -> Ints:
        """Return the launching ``thread`` of each gap, or the one that launched before if the
        launching thread had not started at the begin of the gap.

        It was in no call, operator or range then, such as autograd's before the backward pass.
        """
        rows = np.flatnonzero((thread != thread_before) & (thread_before != NONE) & by_host)
        launching, gap_start = thread[rows], start[rows]
        active = self._ops.innermost(launching, gap_start) != NONE
        active |= self._ranges.innermost(launching, gap_start) != NONE
        for number, positions in rows_of(launching):
            when = gap_start[positions]
            for spent in self._host_times[number].values():
                active[positions] |= spent.start_or_latest(spent.first_after(when)) <= when
        thread = thread.copy()
        thread[rows[~active]] = thread_before[rows[~active]]
        return thread


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
    latest_end = np.maximum.accumulate(end)
    covered: Intervals = (start[:0], start[:0])
    parts: dict[int, Ints] = {}
    before_launch = overhead = np.zeros_like(start)
    # Where several causes overlap, the more specific one has the time.
    for cause_number, spent in sorted(host.items()):
        next_gap = np.searchsorted(latest_end, spent.start, side="right")
        in_gap = np.append(start, _LATEST)[next_gap] < spent.end
        if not in_gap.any():
            continue
        covered_start = np.append(covered[0], spent.start[in_gap])
        covered = union(covered_start, np.append(covered[1], spent.end[in_gap]))
        covered_before = until(covered, start)
        covered_to_launch = until(covered, launch) - covered_before
        if cause_number <= _LAST_DURING_LAUNCH:
            covered_to_end = until(covered, end) - covered_before
            parts[cause_number], overhead = covered_to_end - overhead, covered_to_end
        else:
            parts[cause_number] = covered_to_launch - before_launch
        before_launch = covered_to_launch
    rest = launch - start - before_launch
    operators = parts.get(OPERATOR, np.zeros_like(rest))
    for cause_number in (SYNCHRONIZATION, COPY):
        if cause_number in parts:
            _credit_blocking(
                host[cause_number], parts[cause_number], rest, operators, start, launch
            )

    explained = np.where(otherwise == HOST, rest, end - start - overhead)
    cause = otherwise.copy()
    # Of equal parts the first counts, which is the more specific cause.
    largest = np.zeros_like(explained)
    for cause_number, part in parts.items():
        larger = (part > largest) & (part >= explained)
        largest[larger], cause[larger] = part[larger], cause_number
    middle = (start + launch) // 2
    row = np.full(len(start), NONE, dtype=np.int64)
    for cause_number in parts:
        spent = host[cause_number]
        gaps = np.flatnonzero(cause == cause_number)
        if cause_number == OPERATOR:
            # Of operators the one in the middle of the gap counts, if any.
            next_start = spent.start_or_latest(spent.first_after(middle[gaps]))
            gaps = gaps[next_start > middle[gaps]]
        first = spent.first_after(start[gaps])
        stop = (end if cause_number <= _LAST_DURING_LAUNCH else launch)[gaps]
        begun = np.maximum(spent.start[first], start[gaps])
        middle[gaps] = (begun + np.minimum(spent.end[first], stop)) // 2
        row[gaps] = spent.row[first]
    return cause, np.maximum(largest, explained), middle, row


def _credit_blocking(
    calls: CauseTime, part: Ints, rest: Ints, operators: Ints, start: Ints, launch: Ints
) -> None:
    """Charge a call that blocked the thread when the GPU went idle with the delay it caused.

    Without the wait the thread would have launched earlier by the time it waited: this much of its
    other time before the launch counts as the call's. ``part``, ``rest`` and ``operators``, the
    time of the calls, of no cause and of operators, are changed in-place.
    """
    starts, ends = union(calls.start, calls.end)
    if not len(starts):
        return
    last = np.searchsorted(starts, start, side="right") - 1
    rows = np.flatnonzero((last != NONE) & (ends[last] > start) & (launch > start))
    waited = np.minimum(start[rows] - starts[last[rows]], rest[rows] + operators[rows])
    from_rest = np.minimum(waited, rest[rows])
    rest[rows] -= from_rest
    operators[rows] -= waited - from_rest
    part[rows] += waited


def _nesting(frame: pl.DataFrame, thread: Ints, wanted: Flags) -> Nesting:
    """Return the nested rows of ``frame`` on the ``wanted`` threads; ``thread`` is each row's."""
    start, end = times(frame)
    depth = from_rows(frame["depth"])
    rows = np.flatnonzero(wanted[thread] & (depth != NONE))
    rows = rows[np.lexsort((-end[rows], start[rows], thread[rows]))]
    return Nesting(from_rows(frame["parent"]), depth, thread, start, end, rows)


class CauseTime(msgspec.Struct, frozen=True):
    """The intervals of one thread that have one cause, by their start.

    ``row`` is a row of ``calls`` or of ``ranges``, or ``NONE`` for operators; ``latest_end`` the
    latest end so far.
    """

    start: Ints
    end: Ints
    row: Ints
    latest_end: Ints

    def first_after(self, times: Ints) -> Ints:
        """Return the index of the first interval that ends after each time, else the length."""
        return np.searchsorted(self.latest_end, times, side="right")

    def start_or_latest(self, index: Ints) -> Ints:
        """Return the start of each interval, a time after all others for the length."""
        return np.append(self.start, _LATEST)[index]


def host_times(
    trace: Trace, threads: Threads, wanted: Flags
) -> Mapping[int, Mapping[int, CauseTime]]:
    """Return {thread: {cause: its time}} of the ``wanted`` threads.

    A wait for a batch counts for all threads of its process. Overhead of a process without wanted
    threads, as Kineto writes it, counts for all threads of the rank.

    The pieces of :class:`~traceana.timeline.threads.HostTime` are not cut at these intervals, which
    other threads and the profiler recorded too: each piece is a segment of the critical path, and
    the profiler slows pieces by their length (:func:`traceana.whatif.profiler.is_slowed`).
    """
    tables = trace.tables
    all_threads = threads.known.with_columns(pl.Series("number", np.arange(threads.known.height)))
    wanted_threads = all_threads.filter(wanted)
    call_names = Texts.of(tables.calls["name"])
    parts = {
        cause: thread_intervals(tables.calls, threads.calls, call_names.matching(pattern))
        for cause, pattern in _CALLS.items()
    }
    parts[COLLECTIVE] = named_intervals(trace, threads, _BLOCKING_COLLECTIVE)
    loading = named_intervals(trace, threads, LOADING)
    parts[DATA_LOADER] = _on_all(loading, all_threads, wanted_threads, ["rank", "process"])
    outermost = tables.ops["depth"].eq(0).fill_null(value=False).to_numpy()
    parts[OPERATOR] = thread_intervals(tables.ops, threads.ops, outermost, with_rows=False)
    overhead = tables.ranges["kind"].eq("overhead").fill_null(value=False).to_numpy()
    of_driver = overhead & Texts.of(tables.ranges["text"]).matching(_DRIVER_OVERHEAD)
    wanted_processes = set(wanted_threads.select("rank", "process").rows())
    processes = all_threads.select("rank", "process").rows()
    in_wanted_process = np.array([process in wanted_processes for process in processes], np.bool_)
    for cause, records in ((PROFILER, overhead & ~of_driver), (DRIVER, of_driver)):
        part = thread_intervals(tables.ranges, threads.ranges, records)
        on_wanted = in_wanted_process[part["number"].to_numpy()]
        of_rank = _on_all(part.filter(~on_wanted), all_threads, wanted_threads, ["rank"])
        parts[cause] = pl.concat([part.filter(on_wanted), of_rank])

    by_thread: dict[int, dict[int, CauseTime]] = {number: {} for number in wanted_threads["number"]}
    for cause, part in parts.items():
        part = part.sort("start", maintain_order=True)
        number, start, end, row = (
            part[name].to_numpy() for name in ("number", "start", "end", "row")
        )
        for thread, rows in rows_of(number):
            if thread in by_thread:
                latest_end = np.maximum.accumulate(end[rows])
                by_thread[thread][cause] = CauseTime(start[rows], end[rows], row[rows], latest_end)
    return by_thread


def _on_all(
    part: pl.DataFrame, all_threads: pl.DataFrame, wanted_threads: pl.DataFrame, by: list[str]
) -> pl.DataFrame:
    """Return each interval of ``part`` on all wanted threads that are equal to its thread in
    ``by``, columns of threads."""
    return (
        part.join(all_threads.select("number", *by), on="number", maintain_order="left")
        .drop("number")
        .join(wanted_threads.select("number", *by), on=by, nulls_equal=True, maintain_order="left")
        .select(part.columns)
    )


def cpu_time(
    trace: Trace, rank: int | None, start: int, end: int
) -> tuple[Intervals, pl.DataFrame]:
    """Return the busy time and the gaps of one rank's CPU from ``start`` to ``end``.

    The CPU is busy as in :func:`traceana.timeline.busy.busy_time`; the rest is ``data_loader``
    during a wait for a batch, else ``host``. Gaps have the columns of
    :meth:`CauseFinder.with_causes`.
    """
    of_rank = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    on_cpu = pl.col("device") == CPU_DEVICE
    activities = trace.tables.activities.with_row_index("row").filter(of_rank, on_cpu)
    begun, ended = times(activities)
    operators = union(begun, ended)
    threads = Threads.of(trace.tables.ops, trace.tables.calls, trace.tables.ranges)
    loading = waits_for_batches(trace, rank)
    waits = loading.waits.sort("start", maintain_order=True)
    busy = difference(operators, loading.exposed)
    capture = (np.array([start]), np.array([end]))
    idle = difference(difference(capture, operators), loading.waiting)
    # As on a GPU, the time before the first activity ends where the first step starts.
    first = trace.tables.steps.filter(of_rank)["start"].min()
    first_step = end if first is None else max(int(first), start)  # type: ignore[arg-type]
    crossing = int(((idle[0] < first_step) & (first_step < idle[1])).sum())
    cut = np.full(crossing, first_step)
    gap_start = np.concatenate((loading.exposed[0], np.sort(np.append(idle[0], cut))))
    gap_end = np.concatenate((loading.exposed[1], np.sort(np.append(idle[1], cut))))
    cause = np.full(len(gap_start), HOST, dtype=np.int8)
    cause[: len(loading.exposed[0])] = DATA_LOADER
    cause[(cause == HOST) & (gap_start == start) & (gap_start < first_step)] = BEFORE_FIRST
    cause[(cause == HOST) & (gap_end == end)] = AFTER_LAST
    in_time = np.argsort(gap_start, kind="stable")
    gap_start, gap_end, cause = gap_start[in_time], gap_end[in_time], cause[in_time]

    row = activities["row"].cast(pl.Int64).to_numpy()
    by_end, by_start = np.argsort(ended, kind="stable"), np.argsort(begun, kind="stable")
    last = np.searchsorted(ended[by_end], gap_start, side="right") - 1
    following = np.searchsorted(begun[by_start], gap_end, side="left")
    before = take(row[by_end], last)
    after = np.append(row[by_start], NONE)[following]
    # The operator's thread if both are recorded.
    thread = np.full(len(gap_start), NONE, dtype=np.int64)
    for column, numbers in (("range", threads.ranges), ("op", threads.ops)):
        launching = from_rows(trace.tables.activities[column].gather(to_rows(after)))
        thread = np.where(launching == NONE, thread, take(numbers, launching))
    unnamed = threads.known["thread"].is_null().to_numpy()
    thread[unnamed[thread] & (thread != NONE)] = NONE
    ranges = _nesting(trace.tables.ranges, threads.ranges, threads.among(thread))
    range_row = ranges.innermost(thread, (gap_start + gap_end) // 2)
    if waits.height:
        latest_end = waits["end"].cum_max().to_numpy()
        wait = np.searchsorted(latest_end, gap_start, side="right")
        wait_row = waits["row"].to_numpy()[np.minimum(wait, waits.height - 1)]
        in_wait = (cause == DATA_LOADER) & (wait_row != NONE)
        range_row = np.where(in_wait, wait_row, range_row)
    gaps = pl.DataFrame({"start": gap_start, "end": gap_end}).with_columns(
        pl.lit(rank, pl.Int32).alias("rank"),
        pl.lit(CPU_DEVICE, pl.Int32).alias("device"),
        to_rows(before).alias("before"),
        to_rows(after).alias("after"),
        pl.Series("cause", cause.astype(np.uint8)).cat.to(Cause),
        (pl.col("end") - pl.col("start")).alias("explained"),
        pl.lit(None, pl.UInt32).alias("call"),
        to_rows(range_row).alias("range"),
        pl.lit(None, pl.UInt32).alias("op"),
    )
    return busy, gaps
