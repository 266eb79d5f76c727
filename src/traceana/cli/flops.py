"""``traceana flops``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.choices import FlopsBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[
    FlopsBy,
    by_option(
        FlopsBy,
        "One row per operator and pass; per kernel class with its roofline; or per operator and "
        "input shapes with FLOP/s and percent of peak.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="List the formulas in use, their derivations and operators."),
]


def flops(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Drawing,
    by: By = "operator",
    explain: Explain = False,
) -> ExitCode:
    """FLOPs and compulsory bytes per operator, class or shape.

    1 multiply-accumulate = 2 FLOPs. Shapes come from the trace (record_shapes=True in
    torch.profiler, HLO in XPlane), otherwise from the layer manifest. Of nested operators, only
    the outermost is counted. For causal attention, flops counts all scores and executed_flops
    only unmasked ones.
    """
    from traceana.report.pages.layers import flops as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by, explain=explain, model=trace.manifest))
    return exit_code(trace, reading)
