"""Properties of every critical path, computed from the tables."""

from __future__ import annotations

import itertools
from typing import Any

import polars as pl

from traceana.settings import LONGEST_CLOCK_ERROR_NS
from traceana.timeline.critical import segments
from traceana.trace import Trace

WORK = ("kernel", "memcpy", "memset", "graph")


def walls(trace: Trace) -> list[tuple[int, int]]:
    """Return from when to when each step lasts, in plain Python."""
    done: dict[tuple[int | None, int | None], int] = {}
    found = {}
    earlier = _earlier(trace)
    activities = trace.tables.activities.select("step", "kind", "start", "duration").to_dicts()
    steps = list(enumerate(trace.tables.steps.to_dicts()))
    for row, step in sorted(steps, key=lambda pair: pair[1]["start"]):
        of_process = (step["rank"], step["process"])
        ends = [
            a["start"] + a["duration"] for a in activities if a["step"] == row and a["kind"] in WORK
        ]
        complete = max([step["start"] + step["duration"], *ends])
        before = (
            []
            if of_process in done
            else [
                end
                for rank, process, called, end in earlier
                if rank == step["rank"]
                and (process == step["process"] or None in (process, step["process"]))
                and (called is None or called < step["start"])
                and end <= complete
            ]
        )
        begin = max(step["start"], done.get(of_process, step["start"]), *before)
        done[of_process] = max(complete, done.get(of_process, complete))
        found[row] = (begin, max(begin, complete))
    return [found[row] for row, _ in steps]


def _earlier(trace: Trace) -> list[tuple[int | None, int | None, int | None, int]]:
    """Return the work of no step: rank, process, when it was launched if that is known, end.

    In a trace without calls work is asked for when it starts.
    """
    calls = trace.tables.calls["start"].to_list()
    found = []
    for one in trace.tables.activities.filter(pl.col("kind").is_in(WORK)).to_dicts():
        if one["step"] is None:
            known = one["call"] is not None
            called = calls[one["call"]] if known else None if calls else one["start"]
            end = one["start"] + one["duration"]
            found.append((one["rank"], one["process"], called, end))
    return found


def check(trace: Trace) -> None:
    """Assert that the segments of each step follow each other from its begin to its end."""
    by_step: dict[int, list[tuple[int, int]]] = {}
    for row, start, time in segments(trace).select("step_row", "start_ns", "time_ns").iter_rows():
        by_step.setdefault(row, []).append((start, time))
    for row, (begin, end) in enumerate(walls(trace)):
        at = begin
        for start, time in by_step.pop(row, []):
            assert start == at, f"step {row}: from {start}, not {at}"
            assert time > 0
            at += time
        assert at == end, f"step {row} ends at {at}, not {end}"
    assert not by_step


ON_DEVICE = ("kernel", "collective", "copy", "memset")
ON_HOST = ("host", "sync")


def check_causes(trace: Trace) -> int:
    """Assert that each segment could be the cause of the next; return the number of pairs.

    Work follows work of its stream, work that an event was recorded behind, or its launch on the
    thread of the launching call; a thread goes on when work has ended that was asked for before its
    call waited, or in it, or when another thread was last at something.
    """
    end = pl.col("start") + pl.col("duration")
    work = trace.tables.activities.filter(pl.col("kind").is_in(WORK)).with_columns(end.alias("end"))
    asked = trace.tables.calls.select("start", end.alias("end"), "thread", "rank")
    launches = {name: asked[name].gather(work["call"]) for name in asked.columns}
    table = work.select("device", "stream", "rank", "start", "end").with_columns(
        launches["start"].alias("asked"), launches["end"].alias("returned"),
        launches["thread"].alias("thread"),
    )  # fmt: skip
    moments: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    queues: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in table.iter_rows(named=True):
        for side in ("start", "end"):
            at_moment = (row["device"], row["stream"], side, row[side])
            moments.setdefault(at_moment, []).append(row)
        queues.setdefault((row["device"], row["stream"]), []).append(row)
    calls: dict[int, list[tuple[int, int]]] = {}
    for thread, start, until in asked.select("thread", "start", "end").iter_rows():
        calls.setdefault(thread, []).append((start, until))

    def works(segment: dict[str, Any], at: int, side: str) -> list[dict[str, Any]]:
        """Return the work of a segment's stream that begins or ends at a moment."""
        return moments.get((segment["device"], segment["stream"], side, at), [])

    def running(segment: dict[str, Any], at: int, longest: int) -> list[dict[str, Any]]:
        """Return the work of a segment's stream that runs at a moment, and at most so long on."""
        key = (segment["device"], segment["stream"])
        return [
            row for row in queues.get(key, ()) if row["start"] < at < row["end"] <= at + longest
        ]

    def goes_on(thread: int, ended: dict[str, Any], at: int) -> bool:
        return any(
            begin < at <= until and (ended["asked"] is None or ended["asked"] <= begin)
            for begin, until in calls.get(thread, ())
        )

    # Where no call records a wait, a thread may wait in none.
    names = trace.tables.calls["name"].cast(pl.String)
    records_waits = names.str.contains("Synchronize").any()

    def is_silent(thread: int, ended: dict[str, Any], at: int) -> bool:
        """Return whether a thread was in no call from the launch of the work until its end."""
        returned = [until for begin, until in calls.get(thread, ()) if begin < at]
        last = max(returned, default=at)
        return not records_waits and (ended["asked"] or 0) <= last < at

    looked_at = 0
    for path in segments(trace).with_columns(pl.col("class").cast(pl.String)).partition_by(
        "step_row", maintain_order=True
    ):  # fmt: skip
        for one, next_one in itertools.pairwise(path.to_dicts()):
            at = next_one["start_ns"]
            what = (one["class"], next_one["class"])
            reported = f"{what} at {at} of step {one['step']}"
            looked_at += 1
            if one["class"] in ON_DEVICE and next_one["class"] in (*ON_DEVICE, "gap"):
                # Of kernels that overlap in a stream the first counts until the next begins.
                assert works(one, at, "end") or running(one, at, LONGEST_CLOCK_ERROR_NS), reported
                same = (one["device"], one["stream"]) == (next_one["device"], next_one["stream"])
                if next_one["class"] == "gap":
                    assert same or next_one["part"] != "stream", reported
            elif one["class"] in ON_DEVICE:
                assert next_one["class"] in ON_HOST, reported
                # By two clocks, a call can return before the work that it waited for has ended.
                ended = works(one, at, "end") or running(one, at, LONGEST_CLOCK_ERROR_NS)
                unknown = next_one["thread"] is None
                assert unknown or any(
                    # A thread that goes on can hand over at once, and has no segment then.
                    goes_on(thread, row, at) or is_silent(thread, row, at)
                    for thread in (next_one["thread"], *calls)
                    for row in ended
                ), reported
            elif next_one["class"] == "launch":
                assert one["class"] in ON_HOST, reported
                begins = at + next_one["time_ns"]
                assert any(
                    at in (row["asked"], row["returned"]) and row["thread"] == one["thread"]
                    for row in works(next_one, begins, "start")
                ), reported
            elif one["class"] in ON_HOST and next_one["class"] in ON_DEVICE:
                assert any(
                    row["thread"] == one["thread"] and row["asked"] < at <= row["returned"]
                    for row in works(next_one, at, "start")
                ), reported
            elif one["class"] in ON_HOST:
                assert next_one["class"] in ON_HOST, reported
            else:
                begun = works(one, at, "start")
                # Work that lasts no time is no segment: what follows it comes next.
                instant = any(row["end"] == at for row in begun)
                assert begun, reported
                assert next_one["class"] in ON_DEVICE or instant, reported
    return looked_at
