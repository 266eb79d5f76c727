"""``traceana classify``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from traceana.cli.options import Tabling, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...|-",
        help="Kernel names; - reads them from stdin, one per line.",
        show_default=False,
    ),
]
Rules = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Extra classification rules (TOML), checked first."),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Show the matching rule, its reason, and later rules that match too."
    ),
]


def classify(
    names: Names,
    tabling: Tabling,
    writing: Writing,
    rules: Rules = None,
    explain: Explain = False,
) -> ExitCode:
    """Classify kernel names: one row per name, in the given order."""
    from traceana.enrich.classify import rules_in_use
    from traceana.ingest.names import demangle
    from traceana.report.pages.kernels import classify as page

    output = Output(tabling, writing)
    given = _lines_of_stdin() if names == ["-"] else names
    readable = demangle(given)
    if readable.error is not None:
        typer.echo(f"traceana: {readable.failed} names not demangled: {readable.error}", err=True)
    output.write(page(given, rules_in_use(rules), readable=readable.names, explain=explain))
    return ExitCode.OK


def _lines_of_stdin() -> list[str]:
    # Not splitlines(): a name may contain other characters that Python treats as line ends.
    text = sys.stdin.buffer.read().decode(errors="replace")
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]
