"""``traceana transfers``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.choices import TransfersBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, by_option
from traceana.cli.output import Output
from traceana.errors import ExitCode

By = Annotated[
    TransfersBy,
    by_option(
        TransfersBy,
        "One row per direction, or per direction and operator, layer, range, call, step or size.",
    ),
]
Collectives = Annotated[
    bool,
    typer.Option(
        "--collectives",
        help="One row per collective and message size: algorithm and bus bandwidth, exposed time.",
    ),
]


def transfers(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Drawing,
    by: By = "direction",
    collectives: Collectives = False,
) -> ExitCode:
    """Copies by direction: calls, bytes, bandwidth, exposed time.

    Exposed: not overlapped with a kernel on the device. --by size groups by power of two.
    --collectives shows collectives instead of copies.
    """
    from traceana.report.pages.transfers import transfers as page

    if collectives and by != "direction":
        raise typer.BadParameter("cannot be combined with --collectives", param_hint="--by")
    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by, collectives=collectives))
    return exit_code(trace, reading)
