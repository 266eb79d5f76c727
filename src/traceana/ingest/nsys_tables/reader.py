"""A directory of tables that nsys exported to the canonical tables."""

from __future__ import annotations

from pathlib import Path

from traceana.ingest.nsys.reader import read_tables
from traceana.ingest.nsys_tables.directory import TableDirectory
from traceana.ingest.progress import Progress
from traceana.trace import Trace


def read(path: Path, progress: Progress) -> Trace:
    """Read the tables in ``path``, as the SQLite export of the same report is read.

    Raises ``CorruptError``.
    """
    return read_tables(TableDirectory(path), progress)
