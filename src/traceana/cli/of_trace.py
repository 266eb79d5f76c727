"""A command of one trace, with the options of the table of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from traceana.cli import options
from traceana.cli.opening import exit_code, noted, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.commands import Command, Option, function_of
from traceana.errors import ExitCode, SweepWarning

_COMPLETED: Final = {"scenario": options.scenarios}
"""Options whose values the shell completes."""


def of_trace(command: Command) -> Callable[..., ExitCode]:
    """Return the function of ``command``: it opens a trace, and writes the command's result."""

    def run(
        files: list[Path], reading: Reading, tabling: Tabling, writing: Writing, **chosen: Any
    ) -> ExitCode:
        output = Output(tabling, writing, reads=files)
        trace = open_trace(files, reading)
        function = function_of(command.name)
        given = {name: value for name, value in chosen.items() if value is not None}
        if "illustrated" in inspect.signature(function).parameters:
            given["illustrated"] = output.is_illustrated
        with noted(SweepWarning):
            result = function(trace, **given)
        output.write(result)
        return exit_code(trace, reading, command.needs)

    writing = Drawing if command.pictures else Writing
    parameters = [
        _parameter("files", TraceFiles),
        *(_parameter(one.name, *_typed(one)) for one in command.options),
        _parameter("reading", Reading),
        _parameter("tabling", Tabling),
        _parameter("writing", writing),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _typed(option: Option) -> tuple[Any, Any]:
    """Return the annotation of an option for typer, and its default."""
    flag, words = option.kind is bool, option.words
    made = typer.Option(
        f"--{option.name}",
        metavar="|".join(words) if words else option.metavar,
        help=option.help,
        min=1 if option.kind is int else None,
        autocompletion=_COMPLETED.get(option.name),
        show_default=bool(words),
    )
    default = words[0] if words else False if flag else None
    return Annotated[option.kind if flag or words else option.kind | None, made], default
