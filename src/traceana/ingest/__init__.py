"""Reads a profiler's file in any supported format into a :class:`traceana.trace.Trace`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from traceana.errors import InvalidInputError, UnknownFormatError
from traceana.ingest.detect import Dialect, Format, detect, dialect
from traceana.ingest.source import Progress, silent

if TYPE_CHECKING:
    from pathlib import Path

    from traceana.trace import Trace


_COUNTERS: Final = (Format.NCU_CSV, Format.NVPROF_METRICS, Format.ROCPROF_CSV)
"""The formats that can be tables of counters."""

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


_READERS: Final[dict[Format, str]] = {
    Format.XPLANE: "xplane.reader:read",
    Format.XPLANE_JSON: "chrome.reader:read",
    Format.CHROME_JSON: "chrome.reader:read",
    Format.MXNET: "chrome.reader:read_mxnet",
    Format.KINETO: "kineto.reader:read",
    Format.NSYS_REPORT: "nsys.nsys_rep:read",
    Format.NSYS_STREAM: "nsys.nsys_rep:read_stream",
    Format.NSYS_TABLES: "nsys.directory:read",
    Format.NVPROF_PRINTED: "printed.timelines:read",
    Format.NVPROF_METRICS: "printed.metrics:read",
    Format.ROCPROF_CSV: "rocprof.reader:read",
    Format.PFTRACE: "rocprof.pftrace:read",
    Format.SUMMARY: "printed.summaries:read",
    Format.NCU_CSV: "printed.ncu:read",
}
"""Where the reader of each format is; it is imported when a file needs it, with its decoder."""


def _read(path: Path, progress: Progress) -> Trace:
    found = detect(path)
    if found is Format.SQLITE:
        return _read_sqlite(path, progress)
    module, _, name = _READERS[found].partition(":")
    trace: Trace = getattr(import_module(f"traceana.ingest.{module}"), name)(path, progress)
    return trace


def _is_of_rocprof(path: Path) -> bool:
    """Return whether a profiler whose databases have counters wrote the database ``path``."""
    from traceana.ingest.sqlite import Database

    with Database(path) as database:
        return dialect(database.tables) in (Dialect.ROCPD, Dialect.ROCPROF)


def _read_sqlite(path: Path, progress: Progress) -> Trace:
    """Return the tables of an SQLite database of a profiler, opened read-only and immutable.

    Raises ``UnknownFormatError`` when another program wrote it, ``CorruptError`` and
    ``NotFoundError``.
    """
    from traceana.ingest.sqlite import Database

    with Database(path) as database:
        match dialect(database.tables):
            case Dialect.NSYS:
                from traceana.ingest.nsys.reader import read_tables

                return read_tables(database, progress)
            case Dialect.NVPROF:
                from traceana.ingest.nvprof.reader import read_database

                return read_database(database, progress)
            case Dialect.ROCPD | Dialect.ROCPROF as written_by:
                from traceana.ingest.rocprof.databases import read_database as read_rocprof

                return read_rocprof(database, written_by, progress)
    raise UnknownFormatError(
        f"{path} is an SQLite database, but not one of nsys, nvprof or "
        "rocprof: pass the output of 'nsys export --type sqlite', 'nvprof -o' or 'rocprofv3'"
    )


def read_counters(path: Path, progress: Progress = silent) -> Trace:
    """Return the counters of a table of Nsight Compute, nvprof's metrics or rocprof.

    Raises the errors of :func:`read`, and :class:`~traceana.errors.InvalidInputError` for any other
    file, and for a table without kernel launches.
    """
    try:
        found = detect(path)
    except UnknownFormatError as error:
        raise InvalidInputError(
            f"{path} has no table of counters: write one with 'ncu --csv --page raw', "
            "'nvprof --metrics ... --csv' or 'rocprofv3 --pmc ...'"
        ) from error
    if found not in _COUNTERS and not (found is Format.SQLITE and _is_of_rocprof(path)):
        raise InvalidInputError(
            f"{path} is a {found.value} file, not a table of counters: write one with "
            "'ncu --csv --page raw', 'nvprof --metrics ... --csv' or 'rocprofv3 --pmc ...'"
        )
    trace = read(path, progress)
    if trace.tables.counters.is_empty():
        raise InvalidInputError(
            f"{path} has no counters of kernel launches: check the profiler's options and its "
            "kernel filter"
        )
    return trace
