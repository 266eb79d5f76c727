"""An SQLite database to the canonical tables, by the reader of the program that wrote it."""

from __future__ import annotations

from pathlib import Path

from traceana.errors import ForeignDatabaseError
from traceana.ingest.dialect import Dialect, dialect
from traceana.ingest.progress import Progress
from traceana.ingest.sqlite.database import Database
from traceana.trace import Trace


def read(path: Path, progress: Progress) -> Trace:
    """Read an SQLite database of nsys or nvprof; it is opened read-only and immutable.

    Raises ``ForeignDatabaseError`` when another program wrote it, ``CorruptError`` and
    ``UnreadableError``.
    """
    with Database(path) as database:
        match dialect(database.tables):
            case Dialect.NSYS:
                from traceana.ingest.nsys.reader import read_tables

                return read_tables(database, progress)
            case Dialect.NVPROF:
                from traceana.ingest.nvprof.reader import read_database

                return read_database(database, progress)
    raise ForeignDatabaseError(
        f"{path} is an SQLite database that no profiler wrote: "
        "give the file of 'nsys export --type sqlite' or of 'nvprof -o'"
    )
