"""``traceana flops``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from traceana.cli.opening import exit_code, layer_manifest, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode

COLUMNS = (
    *("operator", "part", "kind", "calls", "flops", "share", "executed_flops", "bytes", "time_ns"),
    *("formula", "reason"),
)
OPTIONAL = ("executed_flops", "bytes", "kind", "formula", "calls", "share")
BY_CLASS = (
    *("category", "part", "calls", "time_ns", "share", "flops", "executed_flops"),
    *("flops_per_s", "of_peak", "intensity", "bound", "of_attainable"),
)
OPTIONAL_BY_CLASS = ("calls", "executed_flops", "intensity", "share")


class By(StrEnum):
    """What one row is."""

    OPERATOR = "operator"
    CLASS = "class"


Grouping = Annotated[
    By,
    typer.Option(
        "--by",
        metavar="|".join(By),
        help="One row an operator and part, or one a class of kernels, beside the roofline.",
    ),
]

Explain = Annotated[
    bool, typer.Option("--explain", help="Each formula in use: its derivation, and who uses it.")
]


def flops(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    by: Grouping = By.OPERATOR,
    explain: Explain = False,
) -> ExitCode:
    """FLOPs and compulsory bytes of each operator, and the operators that are not counted.

    1 multiply-accumulate is 2 FLOPs. Shapes are the trace's own: record_shapes=True in
    torch.profiler, HLO in XPlane; where it has none, those of a layer manifest. Of nested operators
    the outermost counts. Of causal attention flops is the full square, executed_flops what the mask
    keeps.
    """
    from traceana.analyze.flops import flops as analysis
    from traceana.analyze.flops import formulas
    from traceana.analyze.roofline import roofline

    output = Output(tabling, writing, reads=files, screenful=40)
    trace = open_trace(files, reading)
    model = layer_manifest(files, reading)
    if by is By.CLASS and not explain:
        by_class = roofline(trace, model=model)
        output.show("flops", by_class, trace, columns=BY_CLASS, optional=OPTIONAL_BY_CLASS)
        return exit_code(trace, reading)
    result = analysis(trace, model)
    if explain:
        output.show("flops", formulas(result), trace, records=True)
    else:
        output.show("flops", result, trace, columns=COLUMNS, optional=OPTIONAL, bars="share")
    return exit_code(trace, reading)
