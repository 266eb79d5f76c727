"""The ``traceana`` command, and the number of threads that it takes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Final

import typer

from traceana.cli import interrupt, streams
from traceana.cli.command import command, of_trace
from traceana.commands import COMMANDS
from traceana.cores import stay_on_one
from traceana.errors import ExitCode

PROGRAM: Final = "traceana"


def application(
    names: Iterable[str] = COMMANDS, *, complete: bool = True, listed: bool = False
) -> typer.Typer:
    """Return the application with the commands ``names``; only their modules are imported.

    ``complete`` adds the options that install the completion of a shell. If the commands are only
    ``listed``, their modules are not imported and they cannot be run.
    """
    if complete:
        from traceana.cli import completion

        completion.use()
    app = typer.Typer(
        name=PROGRAM,
        add_completion=complete,
        no_args_is_help=True,
        # Rich help takes 50 ms at every start.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for name in names:
        described = COMMANDS[name]
        if listed:
            app.command(name, help=described.summary)(_nothing)
        elif described.own:
            module = import_module(f"traceana.cli.{name}")
            options = getattr(module, "TYPER_OPTIONS", {})
            app.command(name, help=described.text, **options)(command(getattr(module, name)))
        else:
            app.command(name, help=described.text)(command(of_trace(described)))
    return app


def _nothing() -> None:
    """Stand for a command that is only listed."""


def _version(wanted: bool) -> None:
    if wanted:
        from traceana.readers.compiled import COMPILED
        from traceana.version import __version__

        scanner = "with" if COMPILED else "without"
        typer.echo(f"traceana {__version__}, {scanner} the compiled scanner")
        raise typer.Exit


def _common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[  # noqa: ARG001  # its callback prints it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Analyze GPU profiler traces of neural networks."""
    # doctor shows what is wrong with a configuration.
    name = context.invoked_subcommand
    if name is not None and name != "doctor":
        _configure(context, name, debug=debug)


def _configure(context: typer.Context, name: str, *, debug: bool) -> None:
    """Make the settings of environment and configuration files the defaults of command ``name``."""
    from traceana.cli import configuration
    from traceana.errors import TraceanaError

    try:
        settings = configuration.in_effect()
    except TraceanaError as error:
        if debug:
            raise
        streams.message(str(error))
        raise typer.Exit(error.exit_code) from error
    if settings.pop("color", "auto") == "never":
        os.environ.setdefault("NO_COLOR", "1")
    if settings:
        context.default_map = {name: settings}


def main() -> None:
    """Run the command line and exit with its code."""
    # Imports and columns make many objects and hardly any cycles: with Python's own threshold of
    # 700 the searches for cycles take a sixth of the CPU time of a report. It makes 90,000.
    gc.set_threshold(200_000)
    if sys.argv[1:2] == ["help"]:
        sys.argv[1:] = [*sys.argv[2:3], "--help"]
    words = sys.argv[1:]
    options = list(takewhile(lambda word: word.startswith("-"), words))
    name = words[len(options) :][:1]
    # The names of all commands are needed for --help, and to suggest one for a mistyped name; the
    # commands themselves to complete a command line.
    completes = f"_{PROGRAM.upper()}_COMPLETE" in os.environ
    is_command = bool(name) and name[0] in COMMANDS and not {"-h", "--help"} & {*options}
    streams.install()
    if name and not is_command and not completes and Path(name[0]).exists():
        streams.message(f"{name[0]} is not a command: did you mean traceana report {name[0]}?")
        sys.exit(ExitCode.USAGE)
    if name != ["record"]:  # runs the user's script in its environment
        few = choose_threads(words)
        if few and name not in _OF_SEVERAL_PROCESSES:
            stay_on_one()
    try:
        app = application(
            name if is_command else COMMANDS,
            complete=not is_command,
            listed=not is_command and not completes,
        )
        app(prog_name=PROGRAM)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if interrupt.seen():
            raise
        # The reader of a full pipe may never come.
        code = streams.exit_code(code)
        interrupt.ignore()
        # Python searches all objects for cycles again as it ends. Frozen objects are left out.
        # DuckDB's module reports its objects as leaked unless the search finds them.
        if "duckdb" not in sys.modules:
            gc.freeze()
        interrupt.raise_last()
        sys.exit(code)


_OF_SEVERAL_PROCESSES: Final = (["ranks"], ["mcp"])
"""One starts other processes, and one opens files that clients name later."""

SMALL: Final = 32_000_000
"""Bytes of JSON or SQLite below which one thread is chosen.

A report of a small trace makes a thousand queries of well under a millisecond. With several
threads, most of their CPU time is waiting for each other: on two cores, one thread takes 0.8 of
the CPU time and 0.9 of the time at 60 kB, and the times are equal at 60 MB.
"""

_COMPRESSED: Final = (".gz", ".zst", ".parquet", ".arrow")
_RATIO: Final = 10
_MOST_FILES: Final = 1_000


def choose_threads(words: Sequence[str]) -> bool:
    """Set one thread for polars if the files named in ``words`` are small, and one for OpenBLAS.

    Return whether they are.

    traceana multiplies no large matrices, so OpenBLAS needs no more, but to measure the peak of
    the processor. Variables that the user has set stay. A folder of more than a thousand files
    counts as large.
    """
    given, most = os.environ.get("POLARS_MAX_THREADS", "1"), max(os.cpu_count() or 1, 64)
    if not (given.isdecimal() and given.isascii() and int(given[:9])):
        # With no threads polars would panic.
        del os.environ["POLARS_MAX_THREADS"]
    elif int(given[:9]) > most:
        # It starts them all: 1,000 take minutes.
        os.environ["POLARS_MAX_THREADS"] = str(most)
    if "--calibrate" in words:
        return False
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sum(map(_size, words)) >= SMALL:
        return False
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    return True


def _size(word: str) -> int:
    """Return about how many bytes the file ``word`` has uncompressed, or the files of a folder; 0
    without such a file."""
    path = Path(word)
    try:
        if not path.is_dir():
            return _of_file(path)
        total = 0
        for number, file in enumerate(path.rglob("*")):
            total += _of_file(file)
            if total >= SMALL or number >= _MOST_FILES:
                return SMALL
    except (OSError, ValueError):
        return 0
    return total


def _of_file(path: Path) -> int:
    return path.stat().st_size * (_RATIO if path.suffix in _COMPRESSED else 1)
