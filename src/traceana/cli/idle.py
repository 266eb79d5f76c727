"""``traceana idle``."""

from __future__ import annotations

from typing import Annotated

from traceana.choices import IdleBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[
    IdleBy,
    by_option(
        IdleBy,
        "One row per cause, per cause and operator, range or step, or per gap, longest first.",
    ),
]


def idle(
    files: TraceFiles, reading: Reading, tabling: Tabling, writing: Drawing, by: By = "cause"
) -> ExitCode:
    """GPU idle time by cause.

    Each gap has one cause; docs/idle.md defines the causes. Also shows utilization, launch delay,
    launch-bound kernels, and exposed copies and collectives.
    """
    from traceana.report.pages.idle import idle as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by))
    return exit_code(trace, reading)
