"""What a reader of the figures of idle time has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.idle.windows import by_steps
from traceana.analyze.steps import measured_steps
from traceana.analyze.work import any_work, why_no_work

if TYPE_CHECKING:
    from traceana.trace import Trace


def notes(trace: Trace, frame: pl.DataFrame) -> tuple[str, ...]:
    """Return the sentences on ``frame``, the result."""
    if not any_work(trace):
        return (why_no_work(trace),)
    if frame.is_empty() and frame.columns[0] == "step":
        return ("no steps: the trace marks no iterations",)
    if frame.is_empty():
        return ("no idle time in what is looked at",)
    found = []
    if trace.on_cpu:
        found.append(
            "a trace of the CPU: it is idle while a batch is waited for (data_loader), or no "
            "operator runs on any thread"
        )
    elif trace.calls.is_empty():
        found.append("the file holds no runtime calls: why the devices were idle is not known")
    else:
        lost = frame.filter(pl.col("cause") == "not_recorded")["time_ns"].sum()
        if lost:
            found.append("not_recorded: the launch of the next work is not in the trace")
    if not by_steps(trace):
        found.append(
            "of the recording, from its first event to its last: begin and end are what lies "
            "before a device's first work and behind its last"
        )
    found += measured_steps(trace).notes if trace.steps.height else ()
    return tuple(found)
