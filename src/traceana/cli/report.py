"""``traceana report``."""

from __future__ import annotations

from traceana.cli.opening import batches_beside, exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode


def report(files: TraceFiles, reading: Reading, tabling: Tabling, writing: Writing) -> ExitCode:
    """The run on one screen: steps, classes, layers, copies, findings.

    CSV, TSV and Parquet hold the table of time by class; JSON and Markdown hold all sections.
    """
    from traceana.report.overview import overview

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    whole = overview(trace, batches=batches_beside(files))
    output.show("report", whole.breakdown, trace, overview=whole)
    return exit_code(trace, reading)
