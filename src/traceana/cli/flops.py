"""``traceana flops``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode

COLUMNS = (
    *("operator", "part", "kind", "calls", "flops", "share", "bytes", "time_ns"),
    *("formula", "reason"),
)
OPTIONAL = ("bytes", "kind", "formula", "calls", "share")

Explain = Annotated[
    bool, typer.Option("--explain", help="Each formula in use: its derivation, and who uses it.")
]


def flops(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    explain: Explain = False,
) -> ExitCode:
    """FLOPs and compulsory bytes of each operator, and the operators that are not counted.

    1 multiply-accumulate is 2 FLOPs. Shapes are the trace's own: record_shapes=True in
    torch.profiler, HLO in XPlane. Of nested operators the outermost counts.
    """
    from traceana.analyze.flops import flops as analysis
    from traceana.analyze.formulas import formulas

    output = Output(tabling, writing, reads=files, screenful=40)
    trace = open_trace(files, reading)
    result = analysis(trace)
    if explain:
        output.show("flops", formulas(result), trace, records=True)
    else:
        output.show("flops", result, trace, columns=COLUMNS, optional=OPTIONAL, bars="share")
    return exit_code(trace, reading)
