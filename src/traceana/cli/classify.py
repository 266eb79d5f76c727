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
        help="Kernel names; - reads them from stdin, one a line.",
        show_default=False,
    ),
]
Rules = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Extra classification rules (TOML), checked first."),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Say which rule decided, why, and which others match.")
]

OPTIONAL = ("family", "tensor_core", "gemm_layout", "epilogue", "rule", "tile", "library")


def classify(
    names: Names,
    tabling: Tabling,
    writing: Writing,
    rules: Rules = None,
    explain: Explain = False,
) -> ExitCode:
    """What kernels are, by their names: one row a name, in order."""
    from traceana.enrich.classify import rules_in_use
    from traceana.ingest.names import demangle

    output = Output(tabling, writing)
    loaded = rules_in_use(rules)
    given = _lines_of_stdin() if names == ["-"] else names
    plain = demangle(given)
    if plain.error is not None:
        typer.echo(f"traceana: {plain.failed} names not demangled: {plain.error}", err=True)
    texts = [plain.names.get(name, name) for name in given]
    if explain:
        from traceana.analyze.classes import explained_names

        output.show("classify", explained_names(texts, loaded, given), records=True)
    else:
        from traceana.analyze.classes import name_classes

        output.show("classify", name_classes(texts, loaded, given), optional=OPTIONAL)
    return ExitCode.OK


def _lines_of_stdin() -> list[str]:
    # Line ends alone separate names: a name may hold any other character that Python calls one.
    text = sys.stdin.buffer.read().decode(errors="replace")
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]
