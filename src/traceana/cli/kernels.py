"""``traceana kernels``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.choices import KernelsBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

Unclassified = Annotated[
    bool, typer.Option("--unclassified", help="Only unclassified kernels, by time.")
]

By = Annotated[
    KernelsBy,
    by_option(KernelsBy, "One row per kernel, or per kernel, operator and input shapes."),
]


def kernels(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Drawing,
    unclassified: Unclassified = False,
    by: By = "name",
) -> ExitCode:
    """Kernels by time: calls, time, class.

    For a CPU trace, operators. CSV, JSON and Parquet have all classification columns and the
    rule that matched.
    """
    from traceana.report.pages.kernels import kernels as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by, unclassified=unclassified))
    return exit_code(trace, reading, needs_work=trace.counters.is_empty())
