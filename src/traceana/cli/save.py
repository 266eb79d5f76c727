"""``traceana save``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Anonymize, Reading, TraceFiles
from traceana.errors import ExitCode

Bundle = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="DIR", help="Directory to write."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")]


def save(
    files: TraceFiles,
    output: Bundle,
    reading: Reading,
    anonymize: Anonymize = False,
    force: Force = False,
) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    from traceana.advise import saved

    trace = open_trace(files, reading)
    saved.save(trace, output, anonymize=anonymize, overwrite=force)
    return exit_code(trace, reading, needs=())
