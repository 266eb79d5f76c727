"""``traceana idle``."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode
from traceana.report.idle.columns import COLUMNS, GAPS, OPTIONAL, OPTIONAL_GAPS


class By(StrEnum):
    """What idle time is told apart by, beside device and cause."""

    CAUSE = "cause"
    OPERATOR = "operator"
    RANGE = "range"
    STEP = "step"
    GAP = "gap"


Told = Annotated[
    By,
    typer.Option(
        "--by",
        metavar="|".join(By),
        help="One row a cause, or a cause and the operator, range or step; or each gap, longest "
        "first.",
    ),
]


def idle(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    by: Told = By.CAUSE,
) -> ExitCode:
    """When no work ran on a device, and why: each gap has one cause.

    Below the table: how busy each device was, whether launches keep up with the kernels, and what
    of copies and collectives no kernel hides. docs/idle.md has the rules.
    """
    from traceana.analyze.devices import devices
    from traceana.analyze.idle import idle as analysis
    from traceana.analyze.idle import idle_time
    from traceana.report.idle.sentences import sentences

    output = Output(tabling, writing, reads=files, screenful=30)
    trace = open_trace(files, reading)
    found = idle_time(trace)
    result = analysis(trace, by.value, found=found)
    places = devices(trace, found=found)
    result = replace(result, notes=(*sentences(places.frame), *result.notes))
    told = () if by is By.CAUSE else (by.value,)
    output.show(
        "idle",
        result,
        trace,
        columns=GAPS if by is By.GAP else (*told, *COLUMNS),
        optional=OPTIONAL_GAPS if by is By.GAP else OPTIONAL,
        sections={"devices": places},
    )
    return exit_code(trace, reading)
