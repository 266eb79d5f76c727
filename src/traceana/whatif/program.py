"""The clock of the program: a trace as it would have been without its profiler.

What reads the Trace that :func:`without_profiler` returns knows one clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import force_setattr, replace

from traceana.timeline.steps import select_like
from traceana.whatif.profiler import profiler_cost

if TYPE_CHECKING:
    from traceana.trace import Trace


def without_profiler(trace: Trace) -> Trace:
    """Return ``trace`` on the clock of its program: as it would have run without the profiler.

    The durations of device work are the recorded ones. Host events, and all starts, are
    replayed: the host takes the time that it is estimated to take without the profiler; where the
    run was timed without it, so long that the median step is the timed one. The recorded
    trace is its ``recorded``. A trace stays as it is where it was opened as recorded, and where the
    profiler's cost is not known, as of ranks whose collectives meet.
    """
    if trace.recorded is not None or trace.meta.as_recorded or profiler_cost(trace.whole) is None:
        return trace
    if trace.whole is not trace:
        whole = without_profiler(trace.whole)
        if whole is trace.whole:
            return trace
        selected = select_like(whole, trace).with_meta(step_interval_ns=None, step_cost_ns=None)
        return replace(selected, recorded=trace)
    if trace.on_program_clock is not None:
        return trace.on_program_clock
    # Most traces have no known cost, and need none of its imports.
    from traceana.whatif.program_times import moved

    made = moved(trace) or trace
    force_setattr(trace, "on_program_clock", made)
    return made
