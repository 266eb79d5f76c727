"""``traceana layers``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.choices import LayersBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[LayersBy, by_option(LayersBy, "One row a layer, or a type of layer.")]
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
    by: By = "layer",
    depth: Depth = None,
    direction: ByDirection = False,
    calibrate: Calibrate = False,
) -> ExitCode:
    """Time by direction, FLOPs, rates and algorithms of each layer.

    What is on no layer is a row of its own: optimizer, data, collective, hooks, or why it is on
    none. The rows add up to all work of the trace. 1 multiply-accumulate = 2 FLOPs.
    """
    from traceana.report.pages.layers import layers as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    peaks = None
    if calibrate:
        if not trace.on_cpu:
            raise typer.BadParameter(
                "it measures this machine's CPU, and the work of this trace ran on another device",
                param_hint="--calibrate",
            )
        from traceana.flops.calibrate import calibrated

        peaks = calibrated(again=True)
    output.write(
        page(trace, by=by, depth=depth, direction=direction, model=trace.manifest, peaks=peaks)
    )
    return exit_code(trace, reading)
