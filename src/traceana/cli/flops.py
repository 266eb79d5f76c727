"""``traceana flops``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.choices import FlopsBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[
    FlopsBy,
    by_option(FlopsBy, "One row an operator and part, or a class of kernels beside the roofline."),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Each formula in use: its derivation, and who uses it.")
]


def flops(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    by: By = "operator",
    explain: Explain = False,
) -> ExitCode:
    """FLOPs and compulsory bytes of each operator, and the operators that are not counted.

    1 multiply-accumulate = 2 FLOPs. Shapes are the trace's own: record_shapes=True in
    torch.profiler, HLO in XPlane; where it has none, those of a layer manifest. Of nested operators
    the outermost counts. Of causal attention flops counts all scores, executed_flops what the mask
    keeps.
    """
    from traceana.report.pages.layers import flops as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by, explain=explain, model=trace.manifest))
    return exit_code(trace, reading)
