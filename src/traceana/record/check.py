"""Whether what a profiler wrote is a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceana.errors import NothingRecordedError, TraceanaError


def why_unusable(traces: Sequence[Path]) -> TraceanaError | None:
    """Read ``traces`` as every verb will; returns what is wrong with them, or None."""
    from traceana.analyze.work import why_no_work, work
    from traceana.opening import open_trace

    try:
        trace = open_trace(list(traces) if len(traces) > 1 else traces[0])
    except TraceanaError as error:
        return NothingRecordedError(f"the profiler's trace cannot be read: {error}")
    if trace.meta.truncated:
        return NothingRecordedError("the profiler's trace ends in its middle: record it again")
    if work(trace).is_empty():
        return NothingRecordedError(f"the profiler recorded nothing: {why_no_work(trace)}")
    return None
