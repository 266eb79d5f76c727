"""``traceana layers``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.choices import LayersBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[LayersBy, by_option(LayersBy, "One row per layer, or per layer type.")]
Depth = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Group layers by the first N parts of their paths.",
        show_default=False,
    ),
]
ByDirection = Annotated[
    bool,
    typer.Option(
        "--direction",
        help="One row per layer and pass: forward, dgrad, wgrad, backward, optimizer.",
    ),
]
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Measure the peaks of this machine's CPU, for CPU traces recorded on it.",
    ),
]


def layers(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Drawing,
    by: By = "layer",
    depth: Depth = None,
    direction: ByDirection = False,
    calibrate: Calibrate = False,
) -> ExitCode:
    """Time per pass, FLOPs, FLOP/s and algorithms of each layer.

    Work outside layers has its own rows: optimizer, data, collective, hooks, and unattributed
    work by reason. The rows add up to all work. 1 multiply-accumulate = 2 FLOPs.
    """
    from traceana.report.pages.layers import layers as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    peaks = None
    if calibrate:
        if not trace.on_cpu:
            raise typer.BadParameter(
                "applies to CPU traces only",
                param_hint="--calibrate",
            )
        from traceana.flops.peaks import calibrated

        peaks = calibrated(again=True)
    output.write(
        page(trace, by=by, depth=depth, direction=direction, model=trace.manifest, peaks=peaks)
    )
    return exit_code(trace, reading)
