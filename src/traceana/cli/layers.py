"""``traceana layers``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode

COLUMNS = (
    "layer",
    "type",
    "direction",
    "calls",
    "forward_ns",
    "backward_ns",
    "other_ns",
    "time_ns",
    "share",
    "algorithm",
    "measured_flops",
    "flops_per_s",
    "dram_bytes",
)
OPTIONAL = ("other_ns", "calls", "type")

ByDirection = Annotated[
    bool, typer.Option("--direction", help="One row a layer and direction, not one a layer.")
]


def layers(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    direction: ByDirection = False,
) -> ExitCode:
    """Time of each layer, forward and backward, and its algorithms.

    What is on no layer is a row of its own by its role: optimizer, data, collective,
    unattributed. The rows add up to all work of the trace.
    """
    from traceana.analyze.layers import layers as by_layer
    from traceana.analyze.layers import layers_by_direction

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    result = (layers_by_direction if direction else by_layer)(trace)
    columns = tuple(column for column in COLUMNS if column in result.frame.columns)
    output.show("layers", result, trace, columns=columns, optional=OPTIONAL)
    return exit_code(trace, reading)
