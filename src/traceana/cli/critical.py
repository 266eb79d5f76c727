"""``traceana critical``."""

from __future__ import annotations

from typing import Annotated

from traceana.choices import CriticalBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[CriticalBy, by_option(CriticalBy, "What one row is; segments are in order.")]


def critical(
    files: TraceFiles, reading: Reading, tabling: Tabling, writing: Writing, by: By = "class"
) -> ExitCode:
    """The critical path of a step, from its end back to its beginning.

    Through stream order, launches, synchronizing calls, event waits between streams, and threads.
    Its segments add up to the step time. Of the measured steps.
    """
    from traceana.report.pages.idle import critical as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by))
    return exit_code(trace, reading)
