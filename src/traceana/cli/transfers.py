"""``traceana transfers``."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode
from traceana.report.transfers.columns import COLUMNS, OPTIONAL, OPTIONAL_SIZES, SIZES


class By(StrEnum):
    """What the copies are told apart by, beside direction and host memory."""

    DIRECTION = "direction"
    OPERATOR = "operator"
    LAYER = "layer"
    RANGE = "range"
    CALL = "call"
    STEP = "step"
    SIZE = "size"


Told = Annotated[
    By,
    typer.Option(
        "--by",
        metavar="|".join(By),
        help="One row a direction, or a direction and who asked, a step or a size as well.",
    ),
]


def transfers(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    by: Told = By.DIRECTION,
) -> ExitCode:
    """Copies by direction and host memory: count, bytes, throughput, and what no kernel hides.

    Exposed time is that in which a copy runs and no kernel on its device. --by tells apart who
    asked for the copies, the steps, or sizes in powers of two, with bars of their counts.
    """
    from traceana.analyze import transfers as analysis
    from traceana.report.transfers.sentences import sentences

    output = Output(tabling, writing, reads=files, screenful=40)
    trace = open_trace(files, reading)
    result = analysis.transfers(trace, by.value)
    if by is By.SIZE:
        output.show(
            "transfers", result, trace, columns=SIZES, optional=OPTIONAL_SIZES, bars="count"
        )
        return exit_code(trace, reading)
    columns = COLUMNS if by is By.DIRECTION else (by.value, *COLUMNS)
    if by is By.DIRECTION:
        result = replace(result, notes=(*sentences(result.frame), *result.notes))
    output.show("transfers", result, trace, columns=columns, optional=OPTIONAL)
    return exit_code(trace, reading)
