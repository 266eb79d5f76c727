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
from traceana.report.transfers.columns import (
    COLLECTIVES,
    COLUMNS,
    OPTIONAL,
    OPTIONAL_COLLECTIVES,
    OPTIONAL_SIZES,
    SIZES,
)


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


Collectives = Annotated[
    bool,
    typer.Option(
        "--collectives",
        help="One row a collective and message size: algorithm and bus bandwidth, exposed time.",
    ),
]


def transfers(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    by: Told = By.DIRECTION,
    collectives: Collectives = False,
) -> ExitCode:
    """Copies by direction and host memory: count, bytes, throughput, and what no kernel hides.

    Exposed time is that in which a copy runs and no kernel on its device. --by tells apart who
    asked for the copies, the steps, or sizes in powers of two, with bars of their counts.
    --collectives shows what ranks exchange in place of the copies.
    """
    from traceana.analyze import transfers as analysis
    from traceana.analyze.communication import by_message
    from traceana.report.transfers.sentences import sentences

    if collectives and by is not By.DIRECTION:
        raise typer.BadParameter("--by is of copies", param_hint="--collectives")
    output = Output(tabling, writing, reads=files, screenful=40)
    trace = open_trace(files, reading)
    if collectives:
        output.show(
            "transfers",
            by_message(trace),
            trace,
            columns=COLLECTIVES,
            optional=OPTIONAL_COLLECTIVES,
        )
        return exit_code(trace, reading)
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
