"""Reads a profiler's file in any supported format into a :class:`traceana.trace.Trace`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from traceana.errors import InvalidInputError, UnknownFormatError
from traceana.readers.source import Progress, silent

if TYPE_CHECKING:
    from pathlib import Path

    from traceana.trace import Trace


_LARGE: Final = 32 << 20
"""Bytes of a file from which memory is given back after reading."""


def read(path: Path, progress: Progress = silent) -> Trace:
    """Return the canonical tables of the file ``path``, neither attributed nor classified.

    Raises the errors of :mod:`traceana.errors`.
    """
    # `traceana --version` asks for the compiled scanner alone.
    from traceana.readers.detect import detect

    format_ = detect(path)
    module, _, name = format_.reader.partition(":")
    # Imported when a file needs it, with its decoder.
    reader = getattr(import_module(f"traceana.readers.{module}"), name)
    trace: Trace
    if format_.is_database:
        from traceana.readers.sqlite import Database

        with Database(path) as database:
            trace = reader(database, progress)
    else:
        trace = reader(path, progress)
    trace.tables.join_pieces()
    if (trace.meta.bytes_read or 0) >= _LARGE and sys.platform == "linux":
        # The pieces of the tables are too small for glibc to give their memory back to the system,
        # and the arrays of whole tables that attribution needs do not fit between them.
        import ctypes

        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)
    return trace


def read_counters(path: Path, progress: Progress = silent) -> Trace:
    """Return the counters of a table of Nsight Compute, nvprof's metrics or rocprof.

    Raises the errors of :func:`read`, and :class:`~traceana.errors.InvalidInputError` for any other
    file, and for a table without kernel launches.
    """
    from traceana.readers.detect import detect

    try:
        format_ = detect(path)
    except UnknownFormatError as error:
        raise InvalidInputError(
            f"{path} has no table of counters: write one with 'ncu --csv --page raw', "
            "'nvprof --metrics ... --csv' or 'rocprofv3 --pmc ...'"
        ) from error
    if not format_.has_counters:
        raise InvalidInputError(
            f"{path} is a {format_.name} file, not a table of counters: write one with "
            "'ncu --csv --page raw', 'nvprof --metrics ... --csv' or 'rocprofv3 --pmc ...'"
        )
    trace = read(path, progress)
    if trace.tables.counters.is_empty():
        raise InvalidInputError(
            f"{path} has no counters of kernel launches: check the profiler's options and its "
            "kernel filter"
        )
    return trace
