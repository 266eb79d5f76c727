"""``traceana layers``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from traceana.cli.opening import exit_code, layer_manifest, open_trace
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
    "optimizer_ns",
    "other_ns",
    "time_ns",
    "share",
    "algorithm",
    "flops",
    "executed_flops",
    "flops_per_s",
    "of_peak",
    "intensity",
    "bound",
    "layout_ns",
    "measured_flops",
    "dram_bytes",
)
OPTIONAL = (
    *("dram_bytes", "measured_flops", "layout_ns", "intensity", "executed_flops"),
    *("calls", "bar", "type", "bound", "flops", "of_peak", "flops_per_s", "algorithm"),
)
"""What a narrow terminal goes without, first what goes first: never a part of the time."""


class By(StrEnum):
    """What one row is."""

    LAYER = "layer"
    TYPE = "type"


Grouping = Annotated[
    By, typer.Option("--by", metavar="|".join(By), help="One row a layer, or one a type of layer.")
]
Depth = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="One row for all layers whose paths begin with the same N parts.",
        show_default=False,
    ),
]
ByDirection = Annotated[
    bool,
    typer.Option(
        "--direction", help="One row a layer and pass: forward, dgrad, wgrad, backward, optimizer."
    ),
]
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Measure the peaks of this machine's CPU, for traces of it (some seconds).",
    ),
]


def layers(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    by: Grouping = By.LAYER,
    depth: Depth = None,
    direction: ByDirection = False,
    calibrate: Calibrate = False,
) -> ExitCode:
    """Time by direction, FLOPs, rates and algorithms of each layer.

    What is on no layer is a row of its own: optimizer, data, collective, hooks, or why it is on
    none. The rows add up to all work of the trace. 1 multiply-accumulate is 2 FLOPs.
    """
    from traceana.analyze.layers import layers as analysis

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    model = layer_manifest(files, reading)
    peaks = None
    if calibrate:
        if not trace.on_cpu:
            raise typer.BadParameter(
                "it measures this machine's CPU, and the work of this trace ran on another device",
                param_hint="--calibrate",
            )
        from traceana.flops.calibrate import calibrated

        peaks = calibrated(again=True)
    result = analysis(
        trace, by=by.value, depth=depth, direction=direction, model=model, peaks=peaks
    )
    named_by = {"type"} if by is By.TYPE else set()
    columns = tuple(
        column for column in COLUMNS if column in result.frame.columns and column not in named_by
    )
    output.show("layers", result, trace, columns=columns, optional=OPTIONAL, bars="share")
    return exit_code(trace, reading)
