"""The ``traceana`` command."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana import __version__
from traceana.cli.advise import advise
from traceana.cli.classify import classify
from traceana.cli.command import command
from traceana.cli.compare import compare
from traceana.cli.critical import critical
from traceana.cli.diff import diff
from traceana.cli.flops import flops
from traceana.cli.idle import idle
from traceana.cli.info import info
from traceana.cli.kernels import kernels
from traceana.cli.layers import layers
from traceana.cli.memory import memory
from traceana.cli.record import CONTEXT, RecordCommand, record
from traceana.cli.report import report
from traceana.cli.save import save
from traceana.cli.study import study
from traceana.cli.transfers import transfers

COMMANDS = (
    report,
    advise,
    info,
    kernels,
    layers,
    flops,
    transfers,
    idle,
    critical,
    memory,
    diff,
    compare,
    study,
    classify,
    save,
)

# Rich help would cost 50 ms at every start.
app = typer.Typer(
    name="traceana",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"traceana {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Where the GPU time of a neural network went, and what to change."""


for function in COMMANDS:
    app.command()(command(function))
app.command(cls=RecordCommand, context_settings=CONTEXT)(command(record))


def main() -> None:
    """Run the command line; the entry point of the ``traceana`` script."""
    app(prog_name="traceana")
