"""``traceana kernels``."""

from __future__ import annotations

from typing import Annotated

import typer

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
    "measured",
    "ncu_ns",
    "measured_flops",
    "measured_flops_per_s",
    "dram_bytes",
    "tensor_active",
)
OPTIONAL = ("max_ns", "min_ns", "mean_ns")
OPTIONAL_MEASURED = (*OPTIONAL, "ncu_ns", "measured_flops", "algorithm", "share")

Unclassified = Annotated[
    bool, typer.Option("--unclassified", help="Only kernels of category other, most time first.")
]


def kernels(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    unclassified: Unclassified = False,
) -> ExitCode:
    """One row a distinct kernel: calls, time, and what the kernel is.

    On a trace of the CPU the kernels are the operators. CSV, JSON and Parquet hold all the
    columns of the taxonomy and the rule that decided; the table holds the main ones.
    """
    from traceana.analyze import kernels as analysis

    output = Output(tabling, writing, reads=files, screenful=30)
    trace = open_trace(files, reading)
    result = analysis.kernels(trace, unclassified=unclassified)
    measured = trace.counters.height > 0
    optional = OPTIONAL_MEASURED if measured else OPTIONAL
    output.show("kernels", result, trace, columns=COLUMNS, optional=optional)
    return exit_code(trace, reading, needs_work=not measured)
