"""``traceana critical``."""

from __future__ import annotations

from typing import Annotated

from traceana.choices import CriticalBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[CriticalBy, by_option(CriticalBy, "One row per class, …; segment: in time order.")]


def critical(
    files: TraceFiles, reading: Reading, tabling: Tabling, writing: Drawing, by: By = "class"
) -> ExitCode:
    """Critical path of the measured steps.

    It follows stream order, launches, synchronization, event waits between streams, and threads,
    from the end of a step to its start. The segments add up to the step time.
    """
    from traceana.report.pages.idle import critical as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by))
    return exit_code(trace, reading)
