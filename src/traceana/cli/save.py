"""``traceana save``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, TraceFiles
from traceana.errors import ExitCode

Bundle = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="DIR", help="Directory to write.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")]


def save(files: TraceFiles, output: Bundle, reading: Reading, force: Force = False) -> ExitCode:
    """Save the trace as a bundle, which opens faster.

    A bundle is a directory of Parquet files, with the layers, steps, classes and recommendations.
    """
    trace = open_trace(files, reading)
    trace.save(output, overwrite=force)
    return exit_code(trace, reading, needs_work=False)
