"""The errors of traceana and the exit codes of the command line.

The command line catches :class:`TraceanaError` in one place, prints its one line and exits with
its code; the API raises the classes. Errors that call for the same action of the user share a
code. Messages are one line and end with what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar, Final


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
    "--fail-if-slower`",
    ExitCode.GATE_INCONCLUSIVE: "a gate is inconclusive, with `--on-inconclusive fail`",
    ExitCode.INVALID_FILE: "a file given with an option is invalid: `--rules`, `--model`, `--map`, "
    "`--counters`; or a configuration file",
    ExitCode.CANNOT_WRITE: "the output cannot be written, would overwrite something, the disk "
    "is full, or standard output is closed",
    ExitCode.MISSING_DEPENDENCY: "an optional dependency or an external tool such as nsys is "
    "missing, or the tool failed; a Dask scheduler does not answer",
    ExitCode.RECORDING_FAILED: "`record`: the command failed, nothing was recorded, or two "
    "profilers conflict",
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


class NotFoundError(TraceanaError):
    """The path does not exist."""

    exit_code = ExitCode.NOT_FOUND


class OutsideRootError(TraceanaError):
    """The path leads out of the folder that the MCP server opens."""

    exit_code = ExitCode.NOT_FOUND


class IsDirectoryError(TraceanaError):
    """The path is a directory that is not a trace bundle."""

    exit_code = ExitCode.UNRECOGNIZED_FORMAT


class EmptyFileError(TraceanaError):
    """The file is empty."""

    exit_code = ExitCode.DAMAGED_INPUT


class UnreadableError(TraceanaError):
    """The operating system refuses to read the file."""

    exit_code = ExitCode.NOT_FOUND


class UnknownFormatError(TraceanaError):
    """Unrecognized format."""

    exit_code = ExitCode.UNRECOGNIZED_FORMAT


class NotATraceError(TraceanaError):
    """The file is valid JSON without a trace."""

    exit_code = ExitCode.UNRECOGNIZED_FORMAT


class ForeignDatabaseError(TraceanaError):
    """The file is an SQLite database of another program."""

    exit_code = ExitCode.UNRECOGNIZED_FORMAT


class BadStepMarkerError(TraceanaError):
    """The step marker matches no range and is not a regular expression."""

    exit_code = ExitCode.USAGE


class AmbiguousRanksError(TraceanaError):
    """Two files of a folder have the same rank: they belong to two runs."""

    exit_code = ExitCode.USAGE


class CountersError(TraceanaError):
    """The counters file has no Nsight Compute counters, or they cannot be joined."""

    exit_code = ExitCode.INVALID_FILE


class CaptureError(TraceanaError):
    """A recording of a capture does not apply to the trace, or cannot be used as one."""

    exit_code = ExitCode.USAGE


class GeneratedCodeError(TraceanaError):
    """A folder has no generated code of Inductor, or code cannot be given for the trace."""

    exit_code = ExitCode.USAGE


class NotARunError(TraceanaError):
    """A folder is not a recorded run or sweep, or one of its files is damaged."""

    exit_code = ExitCode.UNRECOGNIZED_FORMAT


class UnfinishedRunError(TraceanaError):
    """The recording of the folder is not finished."""

    exit_code = ExitCode.DAMAGED_INPUT


class RunWithoutTraceError(TraceanaError):
    """The run failed before a trace was written, or was recorded without a profiler."""

    exit_code = ExitCode.EMPTY_SELECTION


class CorruptError(TraceanaError):
    """The file has a known format and is damaged beyond reading."""

    exit_code = ExitCode.DAMAGED_INPUT


class BundleVersionError(TraceanaError):
    """A saved bundle was written by another version of the schema, or is incomplete."""

    exit_code = ExitCode.UNRECOGNIZED_FORMAT


class BadConfigurationError(TraceanaError):
    """A setting of a configuration file or an environment variable is invalid."""

    exit_code = ExitCode.INVALID_FILE


class BadRulesError(TraceanaError):
    """A rule file is invalid; the message names the file and the rule or line."""

    exit_code = ExitCode.INVALID_FILE


class BadModelError(TraceanaError):
    """A model cannot be described, or a file is not a layer manifest."""

    exit_code = ExitCode.INVALID_FILE


class BadPairsError(TraceanaError):
    """A file of layer pairs is invalid; the message names the file and the line."""

    exit_code = ExitCode.INVALID_FILE


class BadGateError(TraceanaError):
    """A gate has an unknown rule or figure, or a malformed limit."""

    exit_code = ExitCode.USAGE


class CannotWriteError(TraceanaError):
    """The output cannot be written, or would overwrite something."""

    exit_code = ExitCode.CANNOT_WRITE


class MissingExtraError(TraceanaError):
    """An optional dependency is not installed; the message names the extra."""

    exit_code = ExitCode.MISSING_DEPENDENCY


class SchedulerError(TraceanaError):
    """A Dask scheduler does not answer, has no workers, or went away."""

    exit_code = ExitCode.MISSING_DEPENDENCY


class MissingToolError(TraceanaError):
    """An external tool is not installed; the message names its command."""

    exit_code = ExitCode.MISSING_DEPENDENCY


class ToolFailedError(TraceanaError):
    """An external tool failed; the message has its last line."""

    exit_code = ExitCode.MISSING_DEPENDENCY


class NoSuchSelectionError(TraceanaError):
    """The selected step, device, column or rule does not exist."""

    exit_code = ExitCode.EMPTY_SELECTION


class NoTimelineError(TraceanaError):
    """The analysis needs a timeline, and the trace is a printed summary."""

    exit_code = ExitCode.EMPTY_SELECTION


class NothingRecordedError(TraceanaError):
    """The profiler wrote no trace, or one without activity."""

    exit_code = ExitCode.RECORDING_FAILED


class NoSpaceError(TraceanaError):
    """The disk or the quota is full."""

    exit_code = ExitCode.CANNOT_WRITE


class ProfilerConflictError(TraceanaError):
    """Two profilers attach to one process; CUPTI supports one."""

    exit_code = ExitCode.RECORDING_FAILED


class RefusedOptionsError(TraceanaError):
    """A workload rejected its options; the message is its own."""

    exit_code = ExitCode.USAGE


class BadShardError(TraceanaError):
    """``--shard`` is not i/N with i from 1 to N."""

    exit_code = ExitCode.USAGE


class BadScenarioError(TraceanaError):
    """A scenario is malformed, has an unknown name, or its file is invalid."""

    exit_code = ExitCode.USAGE


class BadSweepError(TraceanaError):
    """The axes of a sweep are malformed, or differ from those of the sweep to resume."""

    exit_code = ExitCode.USAGE


class ManifestWarning(UserWarning):
    """A layer manifest beside a trace cannot be read and is left out."""


class SweepWarning(UserWarning):
    """The other runs of a recorded run's sweep cannot be read and are left out."""
