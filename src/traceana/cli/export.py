"""``traceana export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Anonymize, Reading, TraceFiles
from traceana.errors import ExitCode

Target = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File to write: .perfetto.json, .speedscope.json, another .json (a Kineto file "
        "again), each with .gz; .duckdb.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file that -o names.")]


def export(
    files: TraceFiles,
    output: Target,
    reading: Reading,
    anonymize: Anonymize = False,
    force: Force = False,
) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    from traceana.files import check_free, write_output
    from traceana.report.exports import exporter

    made = exporter(output.name, anonymize=anonymize)
    check_free(output, force=force, reads=files)
    trace = open_trace(files, reading)
    write_output(output, made(trace), force=force)
    return exit_code(trace, reading)
