"""Segments add up exactly to the wall time of every step, for any trace."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.support.synthetic import Scenario, both, kineto
from tests.support.traces import TraceBuilder
from tests.timeline.critical.checks import check, check_causes
from tests.timeline.critical.simulation import Machine
from traceana.columns.nesting import NONE, Ints, Nesting
from traceana.timeline.critical import critical, segments
from traceana.timeline.threads import cut
from traceana.timeline.waits import WorkByEnd, all_waits
from traceana.trace import Trace
from traceana.vocabulary.option_words import CriticalBy

times = st.integers(0, 60)
lengths = st.integers(0, 12)
rows = st.lists(st.tuples(times, lengths, st.integers(0, 2), st.integers(-1, 7)), max_size=14)


@st.composite
def tables(draw: st.DrawFn) -> Trace:
    """Draw a trace that no machine has recorded: anything at any time, in any order."""
    build = TraceBuilder()
    calls = draw(st.lists(st.tuples(times, lengths, st.integers(0, 2)), max_size=8))
    names = st.sampled_from(
        ["cudaLaunchKernel", "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaMemcpyAsync"]
    )
    for start, length, thread in calls:
        build.row("calls", name=draw(names), process=1, thread=thread, start=start, duration=length)
    for start, length, thread, _ in draw(rows):
        build.row("ops", name="op", process=1, thread=thread, start=start, duration=length)
    marks = sorted(draw(st.lists(times, max_size=3, unique=True)))
    for number, start in enumerate(marks):
        build.step(number, start, draw(lengths), process=1)
    for start, length, stream, call in draw(rows):
        more: dict[str, Any] = {"stream": stream, "context": 1, "process": 1}
        more["call"] = call if 0 <= call < len(calls) else None
        more["step"] = draw(st.sampled_from([None, *range(len(marks))]))
        kind = draw(st.sampled_from(["kernel", "collective", "copy", "sync", "wait"]))
        if kind in ("kernel", "collective"):
            build.name("collective", category="collective")
            build.kernel(kind, start, length, **more)
        elif kind == "copy":
            build.copy("HtoD", start, length, source_memory="pageable", **more)
        else:
            name = "Stream Wait Event" if kind == "wait" else "Stream Sync"
            # Its context can be that of the event.
            more["context"] = draw(st.integers(1, 2)) if kind == "wait" else 1
            build.row(
                "activities", name_id=build.name(name), kind="sync", start=start, duration=length,
                device=0, **more,
            )  # fmt: skip
    return build.build()


def _awaited(trace: Trace) -> Ints:
    """Return the activity of another stream or device that each waited for, or NONE."""
    waits = all_waits(trace)
    found = np.full(trace.tables.activities.height, NONE)
    rows = np.flatnonzero(waits.by_event != NONE)
    found[waits.activity[rows]] = waits.activity[waits.by_event[rows]]
    return found


@pytest.mark.slow
@given(st.lists(tables(), min_size=2, max_size=3))
def test_no_rank_waits_for_the_work_of_another(ranks: list[Trace]) -> None:
    """The waits in a trace of several ranks are those of each rank alone."""
    parts: dict[str, list[pl.DataFrame]] = {}
    expected: list[int] = []
    for rank, one in enumerate(ranks):
        before = {name: sum(table.height for table in parts[name]) for name in parts}
        moved = {"call": "calls", "step": "steps", "name_id": "names"}
        expected += [row if row == NONE else row + len(expected) for row in _awaited(one)]
        for name in ("activities", "calls", "steps", "ops", "names"):
            table = one.tables[name]
            rows = [pl.col(key) + before.get(of, 0) for key, of in moved.items() if key in table]
            if "rank" in table.columns:
                rows.append(pl.lit(rank).alias("rank"))
            own = table.with_columns(rows).cast(table.schema)
            parts.setdefault(name, []).append(own)
    both = ranks[0].with_tables(**{name: pl.concat(tables) for name, tables in parts.items()})
    assert _awaited(both).tolist() == expected


@pytest.mark.slow
@settings(max_examples=20)
@given(tables(), st.sampled_from(get_args(CriticalBy)))
def test_of_tables_at_random(trace: Trace, by: CriticalBy) -> None:
    if trace.tables.steps.height:
        check(trace)
    else:
        found = segments(trace)["time_ns"].sum()
        work = trace.tables.activities.filter(pl.col("kind") != "sync")
        tables = (work,) if work.height else (trace.tables.calls, trace.tables.ops)
        spans = [row for table in tables for row in table.select("start", "duration").rows()]
        begin = min((start for start, _ in spans), default=0)
        assert found == max((start + time for start, time in spans), default=0) - begin
    total = critical(trace).totals["time_ns"]
    assert critical(trace, by).totals["time_ns"] == total


@st.composite
def runs(draw: st.DrawFn) -> Scenario:
    """Draw a run as a GPU would have it: steps of launches, copies, waits and operators."""
    run = Scenario()
    at, free = 0, {7: 0, 8: 0}
    for number in range(draw(st.integers(1, 3))):
        begin = at
        for _ in range(draw(st.integers(0, 6))):
            at += draw(st.integers(0, 300))
            stream = draw(st.sampled_from([7, 8]))
            begins = max(free[stream], at) + draw(st.integers(1, 400))
            duration = draw(st.integers(0, 900))
            what = draw(st.sampled_from(["launch", "copy", "sync", "event", "operator"]))
            match what:
                case "launch":
                    run.launch(stream, at=at, begins=begins, duration=duration)
                case "copy":
                    run.copy("HtoD", 8, at=at, begins=begins, duration=duration, stream=stream)
                case "sync":
                    run.sync(at, max(at + 20, free[stream]), "stream", stream=stream)
                    at = max(at + 20, free[stream])
                case "event":
                    event = run.record_event(stream, at=at, completed=free[stream])
                    run.wait_event(event, 15 - stream, at=at + 100)
                    free[15 - stream] = max(free.values())
                    at += 100
                case _:
                    run.operator("aten::relu", at, at + duration)
                    at += duration  # a thread's operators nest, or follow each other
            if what in ("launch", "copy"):
                free[stream] = begins + duration
            at += 100
        at += draw(st.integers(1, 200))
        run.step(number, begin, at)
    return run


@pytest.mark.slow
@settings(max_examples=5)
@given(runs())
def test_of_runs_at_random(run: Scenario) -> None:
    with tempfile.TemporaryDirectory() as folder:
        traces = both(run, Path(folder))
    for trace in traces:
        check(trace)
        check_causes(trace)
    columns = ["step", "start_ns", "time_ns", "class", "part", "operator", "stream"]
    of_nsys, of_kineto = (segments(trace).select(columns).rows() for trace in traces)
    assert of_nsys == of_kineto


_DOINGS = (
    *("kernel", "copy", "idle", "event", "beside", "synchronize", "blocking", "staged"),
    *("cudaDeviceSynchronize", "cudaFree"),
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Draw the calls of a host, and simulate them."""
    machine = Machine()
    length = st.integers(1, 3_000)
    for _ in range(draw(st.integers(1, 14))):
        stream, other = draw(st.permutations([7, 8, 9]))[:2]
        match draw(st.sampled_from(_DOINGS)):
            case "idle":
                machine.idle(draw(length))
            case "beside":
                machine.work("kernel", stream, draw(length))
                machine.work("kernel", 24 - stream - other, draw(length))
                machine.event(stream, other)
                machine.work("kernel", other, draw(length))
            case "event":
                machine.event(stream, other)
            case "synchronize":
                machine.synchronize(stream)
            case "blocking" | "staged" as copy:
                machine.blocking(stream, draw(length), staged=copy == "staged")
            case "cudaDeviceSynchronize" | "cudaFree" as call:
                machine.drain(call)
            case kind:
                machine.work(kind, stream, draw(length))
    assume(machine.run.calls)
    # What waited for two things that ended at one moment waited for either; and so does the step.
    assume(len(set(machine.moments)) == len(machine.moments))
    assume(machine.now not in machine.ends())
    machine.run.step(0, 0, max(machine.now, 1))
    return machine


def _two_reasons_at_once() -> Machine:
    """Return a kernel that begins at once behind a copy, when its launch could have begun it."""
    machine = Machine()
    machine.blocking(7, 163, staged=True)
    machine.work("kernel", 7, 1)
    machine.run.step(0, 0, machine.now)
    return machine


@pytest.mark.slow
@example(_two_reasons_at_once())
@settings(max_examples=12)
@given(machines())
def test_the_path_is_that_of_the_machine(machine: Machine) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = kineto(machine.run, Path(folder))
    check_causes(trace)
    found = segments(trace).group_by("class").agg(pl.col("time_ns").sum())
    times_by_class = dict(found.with_columns(pl.col("class").cast(pl.String)).rows())
    # A call that waits and has nothing to wait for is time of the host.
    waited = machine.expected()
    idle_calls = times_by_class.get("sync", 0) - waited["sync"]
    assert idle_calls >= 0
    times_by_class["sync"] = waited["sync"]
    times_by_class["host"] = times_by_class.get("host", 0) + idle_calls
    assert {k: v for k, v in times_by_class.items() if v} == {k: v for k, v in waited.items() if v}


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 2), times, times), max_size=20),
    st.lists(st.tuples(st.integers(0, 2), times, times, times), min_size=1, max_size=10),
)
def test_the_last_that_ended_is_found(
    work: list[tuple[int, int, int]], queries: list[tuple[int, int, int, int]]
) -> None:
    work.sort(key=lambda row: row[1])
    key, end, asked = (np.array(column, dtype=np.int64) for column in zip(*work, strict=True)) if (
        work
    ) else (np.zeros(0, dtype=np.int64),) * 3  # fmt: skip
    index = WorkByEnd.of(key, end, asked)
    of, after, until, before = (np.array(c, dtype=np.int64) for c in zip(*queries, strict=True))
    ended = [
        max((i for i, row in enumerate(work) if row[0] == q[0] and row[1] <= q[2]), default=NONE)
        for q in queries
    ]
    place = index.last(of, until)
    assert [NONE if p == NONE else int(index.order[p]) for p in place] == ended
    expected = [
        max(
            (
                i
                for i, row in enumerate(work)
                if row[0] == q[0] and q[1] < row[1] <= q[2] and row[2] < q[3]
            ),
            default=NONE,
        )
        for q in queries
    ]
    assert index.last_launched(of, after, until, before).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 1), times, lengths), max_size=10),
    st.lists(st.tuples(st.integers(0, 2), times, st.integers(1, 30), st.booleans()), max_size=6),
)
def test_time_is_cut_where_something_begins_or_ends(
    spans: list[tuple[int, int, int]], wanted: list[tuple[int, int, int, bool]]
) -> None:
    nest = Nesting.of(*(np.array([row[i] for row in spans], dtype=np.int64) for i in range(3)))
    key, begin, length = (np.array([row[i] for row in wanted], dtype=np.int64) for i in range(3))
    whole = np.array([row[3] for row in wanted], dtype=bool)
    found = list(
        zip(
            *(part.tolist() for part in cut(key, begin, begin + length, whole, [nest])), strict=True
        )
    )
    expected = []
    for number, (thread, start, time, uncut) in enumerate(wanted):
        marks = {m for k, s, d in spans if k == thread for m in (s, s + d)}
        inside = [] if uncut else sorted(m for m in marks if start < m < start + time)
        edges = [start, *inside, start + time]
        expected += [(number, *pair) for pair in itertools.pairwise(edges)]
    assert found == expected
