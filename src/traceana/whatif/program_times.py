"""The times of a trace's events without the profiler.

The profiler makes the host slower and leaves device work as it is. A replay with the profiler's
cost removed says when each moment of a thread and each piece of work would have been; every other
event moves with the moments of its thread around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.columns.distinct import THREAD
from traceana.columns.intervals import times
from traceana.columns.nesting import NONE, Ints, from_rows, timeline
from traceana.timeline.graph import Graph
from traceana.timeline.threads import Floats, HostTime, whole_ns
from traceana.timeline.waits import of_process, whose
from traceana.whatif.profiler import fitted, profiler_cost
from traceana.whatif.whatif import Model, before_changes, median_ns, predicted_step, unchanged

if TYPE_CHECKING:
    from traceana.trace import Trace


def moved(trace: Trace) -> Trace | None:
    """Return ``trace`` without its profiler's cost; None where that is not known."""
    model, cost = Model.of_marked(trace), profiler_cost(trace)
    # Where ranks wait for each other, a collective takes longer or shorter with the host, and no
    # recording without a profiler was made of that.
    if model is None or cost is None or model.meetings.ranks:
        return None
    timed_ns = trace.meta.unprofiled_step_ns
    if timed_ns is not None and not trace.meta.host_factors:
        uncapped = model.without(replace(cost, measured=True))
        cost = fitted(cost, timed_ns, lambda part: median_ns(uncapped, unchanged(uncapped, part)))
    model = model.without(cost)
    base = before_changes(model)
    whole, replay = model, base.replays.central
    if model.part.numbers is not None:
        whole = model.of_all_steps()
        replay = unchanged(whole)
    times_of_events = _Times(trace)
    factors_of_hosts = []
    for graph, factors, over, change in zip(
        whole.processes, whole.host, replay.over, replay.changes, strict=True
    ):
        times_of_events.move(graph, factors, over, change.duration)
        owner = graph.steps["rank"][0], graph.steps["process"][0]
        factors_of_hosts.append((*owner, float(factors.min(initial=1.0))))
    step = predicted_step(model, base.replays, base)
    interval = step.low_ns, step.high_ns
    ends = sorted(round(median_ns(model, end) * model.scale) for end in base.replays.costs)
    made = times_of_events.trace().with_meta(
        step_interval_ns=interval, step_cost_ns=tuple(ends), host_factors=tuple(factors_of_hosts)
    )
    return replace(made, recorded=trace, kept_advice=trace.kept_advice)


class _Clock(msgspec.Struct, frozen=True):
    """When the moments of the threads of one process were, and when they are.

    ``thread`` and ``at`` are in order; after each moment its thread takes ``factors`` times as
    long, and waits for the next moment. ``saved`` is what the factors save until each moment.
    """

    thread: Ints
    at: Ints
    now: Ints
    saved: Floats
    host: HostTime
    factors: Floats

    @classmethod
    def of(cls, graph: Graph, over: Ints, factors: Floats) -> _Clock:
        """Return the clock of the moments of ``graph``, which are ``over`` in the replay."""
        moments = np.flatnonzero(graph.thread != NONE)
        moments = moments[np.lexsort((graph.at[moments], graph.thread[moments]))]
        thread, at = graph.thread[moments], graph.at[moments]
        saved = graph.host.saved(thread, at, factors)
        return cls(thread, at, over[moments], saved, graph.host, factors)

    def of_thread(self, thread: Ints, time: Ints, otherwise: Ints) -> Ints:
        """Return when each ``time`` of a ``thread`` is; ``otherwise`` before its first moment."""
        (position,) = timeline(np.append(self.thread, thread), np.append(self.at, time))
        moment_position, position = np.split(position, [len(self.thread)])
        before = np.searchsorted(moment_position, position, side="right") - 1
        has_moment = (before != NONE) & (self.thread[before] == thread)
        rows, before = np.flatnonzero(has_moment), before[has_moment]
        saved = self.host.saved(thread[rows], time[rows], self.factors) - self.saved[before]
        since = time[rows] - self.at[before] - whole_ns(saved)
        last = np.append(self.thread[1:] != self.thread[:-1], True)
        until = np.where(last, np.iinfo(np.int64).max, np.append(self.now[1:], 0))
        moved = otherwise.copy()
        moved[rows] = np.minimum(self.now[before] + since, until[before])
        return moved


def _in_order(at: Ints, now: Ints) -> tuple[Ints, Ints]:
    """Return the times ``at`` in order, and ``now`` without any that precedes an earlier one."""
    order = np.argsort(at, kind="stable")
    return at[order], np.maximum.accumulate(now[order])


def _shifted(at: Ints, now: Ints, time: Ints) -> Ints:
    """Return when each ``time`` is, if what was ``at`` a time is ``now``: as late after it.

    ``at`` and ``now`` are in order.
    """
    if not len(at):
        return time
    before = np.searchsorted(at, time, side="right") - 1
    until = np.append(now[1:], np.iinfo(np.int64).max)
    moved = np.minimum(now[before] + time - at[before], until[before])
    return np.where(before == NONE, time, moved)


_OF_THREADS: Final = ("ops", "calls", "ranges")
_SPANS: Final = ("activities", *_OF_THREADS, "steps", "samples")
_POINTS: Final = (
    ("memory", "time", ""),
    ("links", "from_time", "from_"),
    ("links", "to_time", "to_"),
)
"""Points in time: their table, their column, and what the columns of their thread begin with."""


class _Times:
    """The times of the events of a trace, which are moved process by process."""

    def __init__(self, trace: Trace) -> None:
        """Begin with the times of ``trace``, as recorded."""
        self._trace = trace
        self._spans: dict[str, tuple[Ints, Ints]] = {}
        for name in _SPANS:
            start, end = times(getattr(trace.tables, name))
            self._spans[name] = start.copy(), end.copy()
        self._points = {
            (name, time): getattr(trace.tables, name)[time].to_numpy().copy()
            for name, time, _ in _POINTS
        }

    def move(self, graph: Graph, factors: Floats, over: Ints, duration: Ints) -> None:
        """Move the events of the process of ``graph``, whose nodes are ``over`` when given."""
        tables = self._trace.tables
        owner = whose(self._trace, graph.steps["rank"][0], graph.steps["process"][0])
        clock = _Clock.of(graph, over, factors)
        work = np.flatnonzero(graph.activity != NONE)
        activity, begun, ended = graph.activity[work], (over - duration)[work], over[work]
        recorded = np.concatenate((graph.at[work], (graph.at + graph.duration)[work]))
        device = _in_order(recorded, np.concatenate((begun, ended)))
        host = _in_order(clock.at, clock.now)

        for name in _OF_THREADS:
            rows = np.flatnonzero(of_process(getattr(tables, name), owner))
            thread = getattr(graph.keys, name)[rows]
            # Starts and ends together: the moments of the threads are ordered once.
            time = np.concatenate([side[rows] for side in self._spans[name]])
            moved = clock.of_thread(np.tile(thread, 2), time, _shifted(*host, time))
            for side, part in zip(self._spans[name], np.split(moved, 2), strict=True):
                side[rows] = part
        threads = graph.keys.known.with_row_index("key")
        for name, column, prefix in _POINTS:
            point = getattr(tables, name).select(
                "rank", process=f"{prefix}process", thread=f"{prefix}thread"
            )
            rows = np.flatnonzero(of_process(point, owner))
            key = point.join(
                threads, on=list(THREAD), how="left", nulls_equal=True, maintain_order="left"
            )["key"]
            time = self._points[name, column]
            time[rows] = clock.of_thread(
                from_rows(key)[rows], time[rows], _shifted(*host, time[rows])
            )

        on_device = (tables.ranges["kind"] == "device").fill_null(False).to_numpy()
        step_rows = graph.steps["step_row"].to_numpy()
        used = tables.activities["device"].gather(activity).unique()
        sampled = of_process(tables.samples.with_columns(process=None), (owner[0], None))
        sampled &= tables.samples["device"].is_in(used.implode()).fill_null(False).to_numpy()
        for name, rows, clocks in (
            ("ranges", np.flatnonzero(of_process(tables.ranges, owner) & on_device), device),
            ("activities", np.flatnonzero(of_process(tables.activities, owner)), device),
            ("steps", step_rows, host),
            ("samples", np.flatnonzero(sampled), device),
        ):
            at, now = clocks
            for side, time in zip(self._spans[name], times(getattr(tables, name)), strict=True):
                side[rows] = _shifted(at, now, time[rows])
        # What the replay has is exact.
        marked = graph.begins != NONE
        for name, rows, start, end in (
            ("activities", activity, begun, ended),
            ("steps", step_rows[marked], over[graph.begins[marked]], over[graph.ends[marked]]),
        ):
            self._spans[name][0][rows], self._spans[name][1][rows] = start, end

    def trace(self) -> Trace:
        """Return the trace with these times."""
        moved = {
            name: getattr(self._trace.tables, name).with_columns(
                pl.Series("start", start), pl.Series("duration", end - start)
            )
            for name, (start, end) in self._spans.items()
        }
        for (name, column), time in self._points.items():
            table = moved.get(name, getattr(self._trace.tables, name))
            moved[name] = table.with_columns(pl.Series(column, time))
        return self._trace.with_tables(**moved)
