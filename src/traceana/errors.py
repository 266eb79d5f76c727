"""Every way traceana can refuse its input, each with an exit code of its own.

The command line catches :class:`TraceanaError` in one place, prints its one line and leaves with
its code; a library user catches the classes. Messages are one line and say what to do next.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the command line; the numbers are part of the interface."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOT_FOUND = 10
    IS_DIRECTORY = 11
    EMPTY_FILE = 12
    UNREADABLE = 13
    UNKNOWN_FORMAT = 14
    NOT_A_TRACE = 15
    FOREIGN_DATABASE = 16
    CORRUPT = 17
    TRUNCATED = 18
    BUNDLE_VERSION = 19
    NO_WORK = 20
    AMBIGUOUS_RANKS = 21
    SKIPPED_FILES = 22
    NO_TIMELINE = 23
    COUNTERS_UNUSABLE = 24
    NOT_A_RUN = 25
    UNFINISHED_RUN = 26
    RUN_WITHOUT_TRACE = 27
    LEDGER_NOT_EMPTY = 30
    GATE_FAILED = 31
    BAD_RULES = 40
    BAD_MODEL = 41
    BAD_GATE = 43
    BAD_PAIRS = 42
    CANNOT_WRITE = 50
    MISSING_EXTRA = 51
    NO_SUCH_SELECTION = 52
    MISSING_TOOL = 53
    TOOL_FAILED = 54
    SLOWER = 60
    NOTHING_RECORDED = 70
    COMMAND_FAILED = 71
    NO_SPACE = 72
    PROFILER_CONFLICT = 73
    INTERRUPTED = 130


class TraceanaError(Exception):
    """Base of all errors that a user can cause or mend."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL


class NotFoundError(TraceanaError):
    """The path does not exist."""

    exit_code = ExitCode.NOT_FOUND


class IsDirectoryError(TraceanaError):
    """The path is a directory and no trace bundle."""

    exit_code = ExitCode.IS_DIRECTORY


class EmptyFileError(TraceanaError):
    """The file has no bytes."""

    exit_code = ExitCode.EMPTY_FILE


class UnreadableError(TraceanaError):
    """The operating system refuses to read the file."""

    exit_code = ExitCode.UNREADABLE


class UnknownFormatError(TraceanaError):
    """The file's content is of no format that traceana reads."""

    exit_code = ExitCode.UNKNOWN_FORMAT


class NotATraceError(TraceanaError):
    """The file is well-formed JSON and holds no trace."""

    exit_code = ExitCode.NOT_A_TRACE


class ForeignDatabaseError(TraceanaError):
    """The file is an SQLite database that no profiler wrote."""

    exit_code = ExitCode.FOREIGN_DATABASE


class BadStepMarkerError(TraceanaError):
    """The step marker is no range's text and no regular expression."""

    exit_code = ExitCode.USAGE


class AmbiguousRanksError(TraceanaError):
    """Two files of a folder are of one rank: they are of two runs."""

    exit_code = ExitCode.AMBIGUOUS_RANKS


class CountersError(TraceanaError):
    """What was named as counters holds none of Nsight Compute, or cannot be joined."""

    exit_code = ExitCode.COUNTERS_UNUSABLE


class NotARunError(TraceanaError):
    """A folder is no run or sweep of ``record``, or not one; or a file of it is damaged."""

    exit_code = ExitCode.NOT_A_RUN


class UnfinishedRunError(TraceanaError):
    """The folder is of a recording that goes on, or was cut off."""

    exit_code = ExitCode.UNFINISHED_RUN


class RunWithoutTraceError(TraceanaError):
    """The run died before there was a trace, or was recorded without a profiler."""

    exit_code = ExitCode.RUN_WITHOUT_TRACE


class CorruptError(TraceanaError):
    """The file is of a known format and damaged beyond reading."""

    exit_code = ExitCode.CORRUPT


class BundleVersionError(TraceanaError):
    """A saved bundle was written by another version of the schema, or is incomplete."""

    exit_code = ExitCode.BUNDLE_VERSION


class BadRulesError(TraceanaError):
    """A rule file does not load; the message names the file and the rule or line."""

    exit_code = ExitCode.BAD_RULES


class BadModelError(TraceanaError):
    """A model cannot be described, or a file that should describe one is no layer manifest."""

    exit_code = ExitCode.BAD_MODEL


class BadPairsError(TraceanaError):
    """A file of pairs of layers does not load; the message names the file and the line."""

    exit_code = ExitCode.BAD_PAIRS


class BadGateError(TraceanaError):
    """A gate names no rule or figure that there is, or its limit cannot be read."""

    exit_code = ExitCode.BAD_GATE


class CannotWriteError(TraceanaError):
    """The output cannot be written, or would overwrite something of the user's."""

    exit_code = ExitCode.CANNOT_WRITE


class MissingExtraError(TraceanaError):
    """An optional dependency is needed and not installed; the message names the extra."""

    exit_code = ExitCode.MISSING_EXTRA


class MissingToolError(TraceanaError):
    """A program that reads the format is not installed; the message names its command."""

    exit_code = ExitCode.MISSING_TOOL


class ToolFailedError(TraceanaError):
    """A program that reads the format failed; the message carries its last line."""

    exit_code = ExitCode.TOOL_FAILED


class NoSuchSelectionError(TraceanaError):
    """A step, device or column was asked for that the trace does not have."""

    exit_code = ExitCode.NO_SUCH_SELECTION


class NothingRecordedError(TraceanaError):
    """The profiler wrote nothing, or a trace without work."""

    exit_code = ExitCode.NOTHING_RECORDED


class NoSpaceError(TraceanaError):
    """The disk, or the user's share of it, is full."""

    exit_code = ExitCode.NO_SPACE


class ProfilerConflictError(TraceanaError):
    """Two profilers want the same process, and CUPTI serves one."""

    exit_code = ExitCode.PROFILER_CONFLICT


class RefusedOptionsError(TraceanaError):
    """A workload does not take its options; the message carries its own words."""

    exit_code = ExitCode.USAGE


class BadSweepError(TraceanaError):
    """The axes of a sweep cannot be read, or are others than those of the sweep to go on with."""

    exit_code = ExitCode.USAGE
