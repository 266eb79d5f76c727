"""Busy and idle time of random small runs, and the causes, against sweeps over every nanosecond."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tests.support.traces import TraceBuilder
from tests.timeline.critical.checks import walls
from traceana.analyze.devices import devices
from traceana.timeline import idle as idle_module
from traceana.timeline.idle import idle, idle_time
from traceana.timeline.steps import select
from traceana.trace import Trace

END = 60
"""The recording, 0 to here."""

CALLS = {
    "allocation": "cudaMalloc",
    "synchronization": "cudaStreamSynchronize",
    "copy": "cudaMemcpy",
}
RANGES = {"data_loader": "enumerate(DataLoader)#next", "collective": "gloo:broadcast"}
ORDER = ("profiler", *CALLS, "collective", "data_loader", "operator", "host")
KINDS = ("kernel", "collective", "memcpy")


@dataclass(frozen=True)
class Span:
    """Something of a kind from ``start`` to ``end``."""

    kind: str
    start: int
    end: int


def spans(kinds: tuple[str, ...], most: int) -> st.SearchStrategy[list[Span]]:
    """Return lists of short spans within the recording, in any order, overlapping as they like."""
    one = st.builds(
        lambda kind, start, length: Span(kind, start, min(start + length, END)),
        st.sampled_from(kinds),
        st.integers(0, END - 1),
        st.integers(0, 20),
    )
    return st.lists(one, max_size=most)


def built(work: list[Span], launches: list[int], host: list[Span], steps: list[Span]) -> Trace:
    """Return a trace whose work was launched at ``launches``, while the one thread was at ``host``.

    The host's rows are attributed by hand: operators have depth 0, and nothing has a parent.
    """
    b = TraceBuilder()
    b.name("collective", category="collective", function="all_reduce")
    place = {"process": 1, "thread": 1}
    b.row("ranges", text="recording", kind="span", start=0, duration=END, process=1)
    for number, (one, at) in enumerate(zip(work, launches, strict=False)):
        launch = min(at, one.start)
        row = {"start": launch, "duration": min(2, END - launch), "correlation": number, **place}
        call = b.row("calls", name="cudaLaunchKernel", **row)
        within = [i for i, s in enumerate(steps) if s.start <= launch < s.end]
        columns: dict[str, Any] = {"call": call, "stream": 7 + number % 2, "process": 1}
        columns["step"] = within[0] if within else None
        length = one.end - one.start
        if one.kind == "memcpy":
            b.copy("HtoD", one.start, length, **columns)
        else:
            b.kernel(one.kind, one.start, length, **columns)
    for one in host:
        row = {"start": one.start, "duration": one.end - one.start, **place}
        if one.kind in CALLS:
            b.row("calls", name=CALLS[one.kind], **row)
        elif one.kind == "operator":
            b.row("ops", name="aten::add", depth=0, **row)
        else:
            kind = "overhead" if one.kind == "profiler" else "annotation"
            b.row("ranges", text=RANGES.get(one.kind, one.kind), kind=kind, depth=0, **row)
    for number, one in enumerate(steps):
        b.step(number, one.start, one.end - one.start)
    return b.build()


def inside(moment: int, spans: list[Span], *kinds: str) -> bool:
    return any(s.kind in kinds and s.start <= moment < s.end for s in spans)


WORK = spans(KINDS, 8).filter(lambda work: len(work) > 0)
LAUNCHES = st.lists(st.integers(0, END), min_size=8, max_size=8)
HOST = spans(ORDER[:-1], 8)


@st.composite
def _steps(draw: st.DrawFn) -> list[Span]:
    edges = sorted(draw(st.sets(st.integers(0, END), max_size=4)))
    return [Span("step", a, b) for a, b in pairwise(edges)]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(WORK, LAUNCHES, HOST, _steps())
def test_busy_idle_and_overlap_are_those_of_a_sweep(
    work: list[Span], launches: list[int], host: list[Span], steps: list[Span]
) -> None:
    trace = built(work, launches, host, steps)
    fed = list(zip(work, launches, strict=False))
    used = [s for s in steps if any(min(at, w.start) in range(s.start, s.end) for w, at in fed)]
    # A step begins when the work launched before it has ended, and ends with its own.
    windows = walls(trace)
    lasting = [window for step, window in zip(steps, windows, strict=True) if step in used]
    first = min(begin for begin, _ in [*((w.start, w.end) for w in work), *lasting])
    last = max(end for _, end in [*((w.start, w.end) for w in work), *lasting])
    every = range(first, last)
    computing = ("kernel",)
    found = idle_time(trace)
    (row,) = devices(trace, found=found).frame.to_dicts()
    assert row["span_ns"] == last - first
    assert (row["before_ns"], row["after_ns"]) == (first, END - last)
    assert row["busy_ns"] == sum(inside(t, work, *KINDS) for t in every)
    assert row["kernel_ns"] == sum(inside(t, work, "kernel", "collective") for t in every)
    assert row["memops_only_ns"] == row["copy_exposed_ns"]
    assert row["copy_exposed_ns"] == sum(
        inside(t, work, "memcpy") and not inside(t, work, "kernel", "collective") for t in every
    )
    assert row["collective_ns"] == sum(inside(t, work, "collective") for t in every)
    assert row["collective_exposed_ns"] == sum(
        inside(t, work, "collective") and not inside(t, work, *computing) for t in every
    )
    assert row["busy_ns"] + row["idle_ns"] == row["span_ns"]
    for by in ("cause", "operator", "range", "gap"):
        assert idle(trace, by, found=found).totals["time_ns"] == row["idle_ns"]
    by_step = idle(trace, "step", found=found).frame
    for number, step in enumerate(steps):
        begin, end = windows[number]
        rows = by_step.filter(pl.col("step") == number)
        idle_ns = sum(not inside(t, work, *KINDS) for t in range(begin, end))
        assert rows["time_ns"].sum() == (idle_ns if step in used else 0)
        # A step whose work had ended before that of the step before has no time of its own.
        if step in used and begin < end:
            alone = select(trace, steps=[number])
            of_step = idle_time(alone)
            (only,) = devices(alone, found=of_step).frame.to_dicts()
            assert (only["span_ns"], only["idle_ns"]) == (end - begin, idle_ns)
            assert idle(alone, found=of_step).totals["time_ns"] == idle_ns


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(WORK, LAUNCHES, HOST, _steps())
def test_the_cause_is_the_largest_part_of_a_sweep(
    work: list[Span], launches: list[int], host: list[Span], steps: list[Span]
) -> None:
    trace = built(work, launches, host, steps)
    rows = idle(trace, "gap").frame.sort("start_ns").to_dicts()
    busy = [inside(t, work, *KINDS) for t in range(END)]
    judged_from = _first_step(work, launches, steps)
    begin = idle_time(trace).windows["start"].item()
    for row in rows:
        start, end = row["start_ns"], row["start_ns"] + row["time_ns"]
        assert not any(busy[start:end])
        edge = start in (begin, judged_from) or busy[start - 1]
        assert edge or any(w.start == w.end == start for w in work)
        assert (row["cause"] == "before_first") == (end <= judged_from)
        if row["cause"] in ("before_first", "after_last"):
            continue
        behind = [i for i, w in enumerate(work) if w.start == end]
        launch = min(launches[behind[0]], end)
        if launch < start:
            # Waits are not recorded: a collective that ended then can have been awaited.
            ended = any(w.kind == "collective" and w.end == start for w in work)
            waits = ("collective",) if ended else ()
            assert row["cause"] in ("launch_latency", "queued", "profiler", *waits)
            continue
        parts = dict.fromkeys(ORDER, 0)
        for t in range(start, end):
            kinds = [k for k in ORDER[:-1] if inside(t, host, k)]
            first = kinds[0] if kinds else "host"
            if t < launch or first == "profiler":
                parts[first] += 1
        for kind in ("synchronization", "copy"):
            _hold(kind, host, start, parts)
        most = max(parts.values())
        expected = next(k for k in ORDER if parts[k] == most) if most else "host"
        assert (row["cause"], row["explained_ns"]) == (expected, most)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(WORK, LAUNCHES, HOST, _steps())
def test_causes_do_not_depend_on_how_many_gaps_are_examined_at_a_time(
    work: list[Span], launches: list[int], host: list[Span], steps: list[Span]
) -> None:
    at_once = idle_time(built(work, launches, host, steps)).gaps
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(idle_module, "_BLOCK", 2)
        in_blocks = idle_time(built(work, launches, host, steps)).gaps
    assert_frame_equal(in_blocks, at_once)


def _first_step(work: list[Span], launches: list[int], steps: list[Span]) -> int:
    """Return when the step began that launched the first work, or else when that work began."""
    first = min(range(len(work)), key=lambda row: work[row].start)
    launch = min(launches[first], work[first].start)
    around = [s.start for s in steps if s.start <= launch < s.end]
    return around[0] if around else work[first].start


def _hold(kind: str, host: list[Span], start: int, parts: dict[str, int]) -> None:
    """Charge calls of ``kind`` that blocked the thread at ``start`` with the delay they caused."""
    if not inside(start, host, kind):
        return
    waited = 0
    while start - waited > 0 and inside(start - waited - 1, host, kind):
        waited += 1
    for rest in ("host", "operator"):
        moved = min(waited, parts[rest])
        parts[rest] -= moved
        parts[kind] += moved
        waited -= moved


def test_overhead_of_a_process_is_not_that_of_another_whichever_device_is_selected() -> None:
    b = TraceBuilder()
    for process in (1, 2):
        for launch in (0, 50):
            row = {"start": launch, "duration": 5, "process": process, "thread": process}
            call = b.row("calls", name="cudaLaunchKernel", **row)
            b.kernel("k", launch + 6, 10, device=process, process=process, call=call)
    own = {"process": 1, "thread": 1, "kind": "overhead"}
    b.row("ranges", text="CUPTI Buffer flush", start=20, duration=25, **own)
    trace = b.build()

    def cause(part: Trace, device: int) -> str:
        gaps = idle(part, "gap").frame.filter(pl.col("device") == device, pl.col("start_ns") == 16)
        return str(gaps["cause"].item())

    assert [cause(trace, device) for device in (1, 2)] == ["profiler", "host"]
    assert [cause(select(trace, devices=[one]), one) for one in (1, 2)] == ["profiler", "host"]
