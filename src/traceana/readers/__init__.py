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
    trace = _read(path, progress)
    trace.tables.join_pieces()
    if (trace.meta.bytes_read or 0) >= _LARGE:
        _give_back()
    return trace


def _give_back() -> None:
    """Give the memory that reading has freed back to the system, where the C library is glibc.

    The pieces of the tables are too small for it to do so itself, and arrays of whole tables, which
    attribution needs, do not fit between what is left: they would come on top.
    """
    if sys.platform == "linux":
        import ctypes

        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)


def _read(path: Path, progress: Progress) -> Trace:
    # `traceana --version` asks for the compiled scanner alone.
    from traceana.readers.detect import detect

    found = detect(path)
    module, _, name = found.reader.partition(":")
    # Imported when a file needs it, with its decoder.
    reader = getattr(import_module(f"traceana.readers.{module}"), name)
    trace: Trace
    if found.is_database:
        from traceana.readers.sqlite import Database

        with Database(path) as database:
            trace = reader(database, progress)
    else:
        trace = reader(path, progress)
    return trace


def read_counters(path: Path, progress: Progress = silent) -> Trace:
    """Return the counters of a table of Nsight Compute, nvprof's metrics or rocprof.

    Raises the errors of :func:`read`, and :class:`~traceana.errors.InvalidInputError` for any other
    file, and for a table without kernel launches.
    """
    from traceana.readers.detect import detect

    try:
        found = detect(path)
    except UnknownFormatError as error:
        raise InvalidInputError(
            f"{path} has no table of counters: write one with 'ncu --csv --page raw', "
            "'nvprof --metrics ... --csv' or 'rocprofv3 --pmc ...'"
        ) from error
    if not found.has_counters:
        raise InvalidInputError(
            f"{path} is a {found.name} file, not a table of counters: write one with "
            "'ncu --csv --page raw', 'nvprof --metrics ... --csv' or 'rocprofv3 --pmc ...'"
        )
    trace = read(path, progress)
    if trace.tables.counters.is_empty():
        raise InvalidInputError(
            f"{path} has no counters of kernel launches: check the profiler's options and its "
            "kernel filter"
        )
    return trace
