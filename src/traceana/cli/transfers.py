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

COLUMNS = (
    "direction",
    "host_memory",
    "count",
    "bytes",
    "mean_bytes",
    "time_ns",
    "exposed_ns",
    "bytes_per_s",
    "median_bytes_per_s",
    "peak_share",
    "waits",
    "step_count",
    "step_bytes",
    "step_share",
)
OPTIONAL = ("step_count", "median_bytes_per_s", "step_bytes", "step_share", "bytes", "waits")
SIZES = ("direction", "host_memory", "size", "count", "bar", "time_ns", "exposed_ns", "bytes_per_s")
OPTIONAL_SIZES = ("bar", "exposed_ns", "host_memory")


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
    from traceana.report.transfer_sentences import sentences

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
