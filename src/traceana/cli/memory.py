"""``traceana memory``."""

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

    DEVICE = "device"
    LAYER = "layer"
    OPERATOR = "operator"
    STEP = "step"
    TIME = "time"
    CONVOLUTION = "convolution"


Told = Annotated[
    By,
    typer.Option(
        "--by",
        metavar="|".join(By),
        help="A device; what holds its memory at the peak; a step; a slice of time; a workspace.",
    ),
]

_SCREENFUL: Final = 30
_WHOSE: Final = ("rank", "device")
_HELD: Final = ("count", "bytes", "share", "largest_bytes")
COLUMNS: Final[dict[By, tuple[str, ...]]] = {
    By.DEVICE: (
        *(*_WHOSE, "allocations", "peak_bytes", "at_ns", "step", "layer", "operator"),
        *("reserved_bytes", "largest_bytes", "end_bytes", "growth_bytes"),
    ),
    By.LAYER: (*_WHOSE, "layer", *_HELD),
    By.OPERATOR: (*_WHOSE, "operator", *_HELD),
    By.STEP: (*_WHOSE, "step", "allocations", "peak_bytes", "end_bytes", "growth_bytes"),
    By.TIME: (*_WHOSE, "start_ns", "allocated_bytes", "bar", "reserved_bytes"),
    By.CONVOLUTION: (
        *(*_WHOSE, "layer", "operator", "direction", "algorithm", "calls", "workspace_bytes"),
    ),
}
OPTIONAL: Final = ("allocations", "end_bytes", "largest_bytes", "operator", "reserved_bytes")


def memory(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    by: Told = By.DEVICE,
) -> ExitCode:
    """Memory that was allocated: the peak of each device, what held it, how it grows by the step.

    Of traces that hold the events of an allocator. --by time draws the course; --by convolution
    shows the workspaces of the algorithms.
    """
    from traceana.analyze import memory as analysis
    from traceana.report.text import plain

    screenful = None if by is By.TIME else _SCREENFUL
    output = Output(tabling, writing, reads=files, screenful=screenful)
    trace = open_trace(files, reading)
    result = analysis.memory(trace, by.value)
    columns = COLUMNS[by] if result.frame.height else ()
    optional = tuple(name for name in OPTIONAL if by is By.DEVICE)
    bars = "allocated_bytes" if by is By.TIME else None
    output.show("memory", result, trace, columns=columns, optional=optional, bars=bars)
    code = exit_code(trace, reading, needs_work=False)
    if code is ExitCode.OK and trace.memory.is_empty():
        source = plain(trace.meta.source)
        typer.echo(f"traceana: nothing to show of {source}: {analysis.NO_EVENTS}", err=True)
        return ExitCode.EMPTY_SELECTION
    return code
