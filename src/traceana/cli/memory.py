"""``traceana memory``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.choices import MemoryBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[
    MemoryBy,
    by_option(
        MemoryBy,
        "A device; what its memory holds at the peak; a step; a slice of time; a workspace.",
    ),
]


def memory(
    files: TraceFiles, reading: Reading, tabling: Tabling, writing: Writing, by: By = "device"
) -> ExitCode:
    """Allocated memory: the peak of each device, what it consists of, its growth per step.

    Needs allocator events in the trace. --by convolution shows workspaces.
    """
    from traceana.analyze.memory import NO_EVENTS
    from traceana.report.pages.memory import memory as page
    from traceana.report.text import plain

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by))
    code = exit_code(trace, reading, needs_work=False)
    if code is ExitCode.OK and trace.memory.is_empty():
        source = plain(trace.meta.source)
        typer.echo(f"traceana: nothing to show of {source}: {NO_EVENTS}", err=True)
        return ExitCode.EMPTY_SELECTION
    return code
