"""``traceana critical``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode


class By(StrEnum):
    """What a row is of."""

    CLASS = "class"
    KERNEL = "kernel"
    LAYER = "layer"
    OPERATOR = "operator"
    SEGMENT = "segment"


Told = Annotated[
    By,
    typer.Option("--by", metavar="|".join(By), help="What a row is of; segments are in order."),
]

_FIGURES: Final = ("count", "time_ns", "step_median_ns", "share")
COLUMNS: Final[dict[By, tuple[str, ...]]] = {
    By.CLASS: ("class", "part", *_FIGURES),
    By.KERNEL: ("name", "class", "part", *_FIGURES),
    By.LAYER: ("layer", "class", *_FIGURES),
    By.OPERATOR: ("operator", "class", *_FIGURES),
    By.SEGMENT: ("step", "start_ns", "time_ns", "class", "part", "name", "operator", "layer"),
}
OPTIONAL: Final = ("layer", "count", "part")


def critical(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    by: Told = By.CLASS,
) -> ExitCode:
    """The critical path of a step: what its end waited for, back to its beginning.

    Through work in the order of its stream, launches, calls that wait for the device, waits of one
    stream for another, and threads. Its segments add up to the step's time. Of the measured steps.
    """
    from traceana.analyze import critical as analysis

    output = Output(tabling, writing, reads=files, screenful=30)
    trace = open_trace(files, reading)
    result = analysis.critical(trace, by.value)
    optional = tuple(name for name in OPTIONAL if name != by.value)
    output.show("critical", result, trace, columns=COLUMNS[by], optional=optional)
    return exit_code(trace, reading)
