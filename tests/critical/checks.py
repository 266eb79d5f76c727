"""What holds of every critical path, worked out from the tables alone."""

from __future__ import annotations

from traceana.analyze.critical import segments
from traceana.trace import Trace

WORK = ("kernel", "memcpy", "memset", "graph")


def walls(trace: Trace) -> list[tuple[int, int]]:
    """Return from when to when each step lasts, in plain Python."""
    done: dict[tuple[int | None, int | None], int] = {}
    found = {}
    activities = trace.activities.select("step", "kind", "start", "duration").to_dicts()
    steps = list(enumerate(trace.steps.to_dicts()))
    for row, step in sorted(steps, key=lambda pair: pair[1]["start"]):
        of_process = (step["rank"], step["process"])
        ends = [
            a["start"] + a["duration"] for a in activities if a["step"] == row and a["kind"] in WORK
        ]
        complete = max([step["start"] + step["duration"], *ends])
        begin = max(step["start"], done.get(of_process, step["start"]))
        done[of_process] = max(complete, done.get(of_process, complete))
        found[row] = (begin, max(begin, complete))
    return [found[row] for row, _ in steps]


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
