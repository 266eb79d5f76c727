"""``traceana whatif``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.cli import options
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles
from traceana.cli.output import Output
from traceana.errors import ExitCode

Scenarios = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        metavar="TEXT|FILE.toml",
        help="'conv x 0.5', 'relu x 0', 'no sync', 'layer:fc* x 0', 'gpu:H100', a name or a file; "
        "repeatable. Default: the named ones, and half the time of the largest classes.",
        autocompletion=options.scenarios,
        show_default=False,
    ),
]
Sweep = Annotated[bool, typer.Option("--sweep", help="Also with factors from 0 to 1.")]
Replay = Annotated[bool, typer.Option("--replay", help="Replay without a change; show its error.")]


def whatif(
    files: TraceFiles,
    reading: Reading,
    tabling: Tabling,
    writing: Drawing,
    scenario: Scenarios = None,
    sweep: Sweep = False,
    replay: Replay = False,
) -> ExitCode:
    """Predicted step time after a change.

    The trace is replayed with the recorded dependencies: launches, streams, event waits,
    synchronization and threads.
    """
    from traceana.report.pages.whatif import whatif

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(whatif(trace, scenario or (), sweep=sweep, replay=replay))
    return exit_code(trace, reading)
