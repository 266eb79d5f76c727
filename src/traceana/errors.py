"""The errors of traceana and the exit codes of the command line.

The command line catches :class:`TraceanaError` in one place, prints its one line and exits with
its code; the API raises the classes. Errors that call for the same action of the user share a
code. Messages are one line and end with what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import wraps
from typing import ClassVar, Final, ParamSpec, TypeVar

from traceana.plain_text import plain

P = ParamSpec("P")
R = TypeVar("R")


class ExitCode(IntEnum):
    """Exit codes of the command line; the numbers are part of the interface."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOT_FOUND = 10
    UNRECOGNIZED_FORMAT = 14
    DAMAGED_INPUT = 17
    EMPTY_SELECTION = 20
    GATE_FAILED = 31
    GATE_INCONCLUSIVE = 32
    INVALID_FILE = 40
    CANNOT_WRITE = 50
    MISSING_DEPENDENCY = 51
    RECORDING_FAILED = 71
    INTERRUPTED = 130


EXIT_CODES: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "success; also when the reader of a pipe closed it",
    ExitCode.INTERNAL: "internal error: please report it",
    ExitCode.USAGE: "bad option or argument: also a malformed gate, sweep, shard or step marker, "
    "and two files of one rank",
    ExitCode.NOT_FOUND: "the input, or a file given with an option, does not exist, cannot be "
    "read, or is a pipe or a device",
    ExitCode.UNRECOGNIZED_FORMAT: "unrecognized format: also a folder without a trace or recorded "
    "run, and a bundle of another schema version",
    ExitCode.DAMAGED_INPUT: "damaged input: empty, corrupt, truncated or partly unreadable (what "
    "was readable has been shown), an unfinished recording, or integrity problems with `--strict`",
    ExitCode.EMPTY_SELECTION: "nothing to show: no device activity or operators, no timeline, a "
    "recorded run without a trace, or a step, device, column or rule that does not exist",
    ExitCode.GATE_FAILED: "a gate failed: `advise --fail-on`, `advise --max`, `diff "
    "--fail-if-slower`, `history --fail-if-slower`",
    ExitCode.GATE_INCONCLUSIVE: "a gate is inconclusive, with `--on-inconclusive fail`",
    ExitCode.INVALID_FILE: "a file given with an option is invalid: `--rules`, `--model`, `--map`, "
    "`--counters`; or a configuration file",
    ExitCode.CANNOT_WRITE: "the output cannot be written, would overwrite something, the disk "
    "is full, or standard output is closed",
    ExitCode.MISSING_DEPENDENCY: "an optional dependency or an external tool such as nsys is "
    "missing, or the tool failed; a Dask scheduler does not answer",
    ExitCode.RECORDING_FAILED: "`record`: nothing was recorded of a command that succeeded, two "
    "profilers conflict, or a run of a sweep failed; else the exit status is the command's",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C, SIGTERM, SIGHUP)",
}
"""What each exit code means, for docs/exit-codes.md."""


def near(name: str, known: Iterable[str]) -> str:
    """Return the one of ``known`` that ``name`` may be mistyped from, empty without one."""
    from difflib import get_close_matches

    return "".join(get_close_matches(name, list(known), 1))


def suggested(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean X?)``, for behind a mistyped ``name``; empty without one near it."""
    found = near(name, known)
    return f" (did you mean {found}?)" if found else ""


def how_to_install(extra: str) -> str:
    """Return how to install the dependencies of ``extra``, for the end of a message.

    The only place for this command. It needs a checkout, because traceana is not on PyPI: there the
    name is free, and anybody could register it.
    """
    return f"pip install '.[{extra}]' (in a checkout of traceana)"


class TraceanaError(Exception):
    """Base of all errors that a user can cause or fix."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __str__(self) -> str:
        """Return the message as one line; text of a trace may be in it."""
        return plain(super().__str__())


class UsageError(TraceanaError):
    """An option or argument is invalid, or contradicts another: a gate, sweep, scenario, shard or
    step marker, two files of one rank, ``--capture`` of a bundle."""

    exit_code = ExitCode.USAGE


class NotFoundError(TraceanaError):
    """A file does not exist, cannot be read, or is outside the folder of the MCP server."""

    exit_code = ExitCode.NOT_FOUND


class UnknownFormatError(TraceanaError):
    """No format is recognized: text of another program, a folder without a trace or recorded run, a
    bundle of another schema version."""

    exit_code = ExitCode.UNRECOGNIZED_FORMAT


class NotATraceError(TraceanaError):
    """A file of a recognized format without events: in a folder it is skipped."""

    exit_code = ExitCode.UNRECOGNIZED_FORMAT


class CorruptError(TraceanaError):
    """The content is empty, damaged or truncated, or its recording did not finish."""

    exit_code = ExitCode.DAMAGED_INPUT


class NoSuchSelectionError(TraceanaError):
    """There is nothing to show: no such step, device, column or rule, no timeline, no trace."""

    exit_code = ExitCode.EMPTY_SELECTION


class InvalidInputError(TraceanaError):
    """A file beside the trace is invalid: rules, layer manifest, pairs, counters, configuration; or
    a model that cannot be described."""

    exit_code = ExitCode.INVALID_FILE


class CannotWriteError(TraceanaError):
    """The output cannot be written, would overwrite something, or the disk is full."""

    exit_code = ExitCode.CANNOT_WRITE


class MissingDependencyError(TraceanaError):
    """An optional dependency or an external tool is missing or failed."""

    exit_code = ExitCode.MISSING_DEPENDENCY


class RecordingError(TraceanaError):
    """Nothing was recorded: the program or the profiler failed, or two profilers conflict."""

    exit_code = ExitCode.RECORDING_FAILED


_KEYWORDS: Final = {
    **{"force": "overwrite=True", "map": "pairs="},
    **{"step": "steps=", "device": "devices=", "rank": "ranks="},
} | {
    option: f"{option.replace('-', '_')}="
    for option in (
        *("by", "calibrate", "capture", "collectives", "counters", "device-model"),
        *("inductor-cache", "model", "rules", "scheduler", "step-marker", "unclassified"),
    )
}
_OPTION: Final = re.compile(rf"(?<!\S)--({'|'.join(_KEYWORDS)})(?![\w-])(?: (?=[/'\"]))?")


def in_python(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with errors that name its keywords, not options of the command line."""

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except TraceanaError as error:
            error.args = (_OPTION.sub(lambda found: _KEYWORDS[found[1]], str(error)),)
            raise

    return run


class ManifestWarning(UserWarning):
    """A layer manifest beside a trace cannot be read and is left out."""


class SweepWarning(UserWarning):
    """The other runs of a recorded run's sweep cannot be read and are left out."""


class RedirectWarning(UserWarning):
    """A trace at a URL comes from another host, to which its server redirects."""
