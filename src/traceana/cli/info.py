"""``traceana info``."""

from __future__ import annotations

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode


def info(files: TraceFiles, reading: Reading, tabling: Tabling, writing: Writing) -> ExitCode:
    """Contents of a trace: format, devices, counts, integrity.

    The JSON is one object, without rows.
    """
    from traceana.report.pages.info import info as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace))
    return exit_code(trace, reading, needs_work=False)
