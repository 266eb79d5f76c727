"""Wrapper that makes a function a command: grouped options and error handling."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from traceana.cli import interrupt, options
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, Writing
from traceana.cli.streams import detail, message, remove_bar, set_verbosity
from traceana.commands import Command, Option, function_of
from traceana.errors import ExitCode, SweepWarning, TraceanaError

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Only results and errors: no notes, no progress bar.")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="On stderr: reader, phase times, integrity counts, warnings."
    ),
]
_DASH: Final = Path("-")
"""Standard input, where a command takes a file."""


def command(function: Callable[..., int]) -> Callable[..., None]:
    """Return ``function`` as a command for typer.

    A parameter whose type is a dataclass (see :mod:`traceana.cli.options`) becomes one option per
    field, behind the command's own options. The process exits with the code that ``function``
    returns. A :class:`~traceana.errors.TraceanaError` is printed as one line on stderr, and its
    exit code is used. An interrupt exits with 130. Any other exception is printed as one line with
    instructions to report it. ``--quiet`` and ``--verbose`` are added to the options.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters, common = [_parameter("context", typer.Context)], []
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            types_of_fields = get_type_hints(hints[name], include_extras=True)
            for field in fields(hints[name]):
                default = inspect.Parameter.empty if field.default is MISSING else field.default
                common.append(_parameter(field.name, types_of_fields[field.name], default))
        else:
            parameters.append(_parameter(name, hints[name], parameter.default))

    common += [_parameter("quiet", Quiet, False), _parameter("verbose", Verbose, False)]
    parameters += common

    @wraps(function)
    def run(context: typer.Context, quiet: bool, verbose: bool, **arguments: Any) -> None:
        if quiet and verbose:
            raise typer.BadParameter("contradicts --verbose", param_hint="--quiet")
        set_verbosity(quiet=quiet, verbose=verbose)
        format_source = context.get_parameter_source("format")
        is_configured = format_source is not None and format_source.name == "DEFAULT_MAP"
        if arguments.get("output") is not None and is_configured:
            arguments["format"] = None  # the suffix of the file decides
        for name, group in groups.items():
            arguments[name] = group(
                **{field.name: arguments.pop(field.name) for field in fields(group)}
            )
        raise typer.Exit(_run(function, arguments, debug=context.find_root().params["debug"]))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameter(
    name: str, annotation: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _run(function: Callable[..., int], arguments: dict[str, Any], *, debug: bool) -> int:
    begin = time.monotonic()
    try:
        with _with_standard_input(arguments) as given:
            code = function(**given)
    except TraceanaError as error:
        if debug:
            raise
        message(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return _interrupted()
    except typer.BadParameter:
        raise
    except Exception as error:
        if interrupt.seen():
            return _interrupted()
        if debug:
            raise
        message(
            f"internal error: {type(error).__name__}: {error}; run traceana --debug ... for the "
            "traceback, and report it with the format of the file"
        )
        raise typer.Exit(ExitCode.INTERNAL) from error
    finally:
        remove_bar()
        detail(f"{time.monotonic() - begin:.2f} s in all")
    return code


@contextmanager
def _with_standard_input(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give ``arguments`` with the file of standard input in place of ``-``."""
    given: list[Any] = []
    for value in arguments.values():
        given += value if isinstance(value, list) else [value]
    if _DASH not in given:
        yield arguments
        return
    if given.count(_DASH) > 1:
        raise typer.BadParameter("standard input can be read once", param_hint="-")
    from traceana.cli.streams import spooled

    with spooled() as path:

        def of(value: Any) -> Any:
            return path if value == _DASH else value

        yield {
            name: [of(item) for item in value] if isinstance(value, list) else of(value)
            for name, value in arguments.items()
        }


def _interrupted() -> ExitCode:
    interrupt.say()
    return ExitCode.INTERRUPTED


_COMPLETED: Final = {"scenario": options.scenarios}
"""Options whose values the shell completes."""


def of_trace(command: Command) -> Callable[..., int]:
    """Return the function of ``command``: it opens a trace, and writes the command's result."""

    def run(
        files: list[Path], reading: Reading, tabling: Tabling, writing: Writing, **chosen: Any
    ) -> ExitCode:
        from traceana.cli.opening import exit_code, noted, open_trace
        from traceana.cli.output import Output

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
        *(_parameter(option.name, *_typed(option)) for option in command.options),
        _parameter("reading", Reading),
        _parameter("tabling", Tabling),
        _parameter("writing", writing),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


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
