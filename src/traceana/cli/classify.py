"""``traceana classify``."""

from __future__ import annotations

from typing import Annotated

import typer

from traceana.cli.options import Rules, Tabling, Writing
from traceana.cli.output import Output
from traceana.cli.streams import lines_of_input, message
from traceana.errors import ExitCode

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...|-",
        help="Kernel names; - reads them from stdin, one per line.",
    ),
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
    """Run the command; :mod:`traceana.commands` has its help."""
    from traceana.enrich.classify import rules_in_use
    from traceana.plain_text import as_unicode
    from traceana.readers.kernel_names import demangle
    from traceana.report.pages.kernels import classified as page

    output = Output(tabling, writing)
    given = list(lines_of_input()) if names == ["-"] else [as_unicode(name) for name in names]
    readable = demangle(given)
    if readable.error is not None:
        message(f"{readable.failed} names not demangled: {readable.error}")
    output.write(page(given, rules_in_use(rules), readable=readable.names, explain=explain))
    return ExitCode.OK
