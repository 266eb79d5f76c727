"""``traceana kernels``."""

from __future__ import annotations

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode

COLUMNS = (
    "name",
    "category",
    "algorithm",
    "calls",
    "time_ns",
    "share",
    "mean_ns",
    "min_ns",
    "max_ns",
)
OPTIONAL = ("max_ns", "min_ns", "mean_ns")


def kernels(files: TraceFiles, reading: Reading, tabling: Tabling, writing: Writing) -> ExitCode:
    """One row a distinct kernel: calls, time, and what the kernel is.

    On a trace of the CPU the kernels are the leaf operators. CSV, JSON and Parquet hold all the
    columns of the taxonomy and the rule that decided; the table holds the main ones.
    """
    from traceana.analyze import kernels as analysis

    output = Output(tabling, writing, reads=files, screenful=30)
    trace = open_trace(files, reading)
    output.show("kernels", analysis.kernels(trace), trace, columns=COLUMNS, optional=OPTIONAL)
    return exit_code(trace, reading)
