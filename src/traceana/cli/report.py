"""``traceana report``."""

from __future__ import annotations

from traceana.cli.opening import batches_beside, exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles
from traceana.cli.output import Output
from traceana.errors import ExitCode


def report(files: TraceFiles, reading: Reading, tabling: Tabling, writing: Drawing) -> ExitCode:
    """Summary: steps, classes, layers, transfers, recommendations.

    CSV, TSV and Parquet have the time by class; JSON has all sections.
    """
    from traceana.report.pages.report import report as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    batches = batches_beside(files)
    output.write(page(trace, batches=batches, illustrated=output.is_illustrated))
    return exit_code(trace, reading)
