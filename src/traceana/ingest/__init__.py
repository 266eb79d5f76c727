"""Reads a profiler's file in any supported format into a :class:`traceana.trace.Trace`."""

from __future__ import annotations

import sys
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


def _read(path: Path, progress: Progress) -> Trace:
    # Imported on demand: each reader brings its own decoder.
    match detect(path):
        case Format.XPLANE:
            from traceana.ingest.xplane.reader import read as read_xplane

            return read_xplane(path, progress)
        case Format.XPLANE_JSON | Format.CHROME_JSON:
            from traceana.ingest.chrome.reader import read as read_chrome

            return read_chrome(path, progress)
        case Format.MXNET:
            from traceana.ingest.chrome.reader import read_mxnet as read_mxnet

            return read_mxnet(path, progress)
        case Format.KINETO:
            from traceana.ingest.kineto.reader import read as read_kineto

            return read_kineto(path, progress)
        case Format.SQLITE:
            return _read_sqlite(path, progress)
        case Format.NSYS_REPORT | Format.NSYS_STREAM as kind:
            from traceana.ingest.nsys.nsys_rep import read as read_report

            return read_report(path, progress, stream=kind is Format.NSYS_STREAM)
        case Format.NSYS_TABLES:
            from traceana.ingest.nsys.directory import read as read_directory

            return read_directory(path, progress)
        case Format.NVPROF_PRINTED:
            from traceana.ingest.nvprof.printed import read as read_printed

            return read_printed(path, progress)
        case Format.NVPROF_METRICS:
            from traceana.ingest.nvprof.metrics import read as read_metrics

            return read_metrics(path, progress)
        case Format.ROCPROF_CSV:
            from traceana.ingest.rocprof.reader import read as read_rocprof

            return read_rocprof(path, progress)
        case Format.PFTRACE:
            from traceana.ingest.rocprof.pftrace import read as read_pftrace

            return read_pftrace(path, progress)
        case Format.SUMMARY:
            from traceana.ingest.summary.reader import read as read_summary

            return read_summary(path, progress)
        case Format.NCU_CSV:
            from traceana.ingest.ncu.reader import read as read_ncu

            return read_ncu(path, progress)


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
