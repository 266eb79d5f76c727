"""An SQLite file that somebody else wrote, opened so that it cannot change."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import polars as pl

from traceana.errors import CorruptError, UnreadableError
from traceana.ingest.progress import Progress
from traceana.ingest.sqlite.bulk import read_tables
from traceana.ingest.sqlite.sql import damaged, identifier, read_only_uri
from traceana.ingest.tables import Query

_HEADER: Final = 100
"""Bytes of the database header, https://www.sqlite.org/fileformat2.html section 1.3."""


class Database:
    """The tables of one SQLite file; a :class:`~traceana.ingest.tables.TableSource`.

    ``tables`` maps each table to its columns, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path``.

        Raises ``UnreadableError`` while another program writes it and ``CorruptError`` where it
        ends early or its schema cannot be read.
        """
        self.path = path
        self.uri = read_only_uri(path)
        _refuse_unfinished(path)
        self.size_bytes = _whole_size(path)
        try:
            self._connection = sqlite3.connect(self.uri, uri=True)
        except sqlite3.Error as error:
            raise UnreadableError(f"{path} cannot be opened: {error}") from error
        # Text of a trace may be of any bytes.
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            self.tables = self._schema()
        except CorruptError:
            self.close()
            raise

    def _schema(self) -> dict[str, tuple[str, ...]]:
        # Virtual tables need the module that made them.
        names = self.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        return {
            name: tuple(row[1] for row in self.rows(f"PRAGMA table_info({identifier(name)})"))
            for (name,) in names
        }

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a small query; raises ``CorruptError`` where the file is damaged."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dictionaries; none when the table is missing."""
        if table not in self.tables:
            return []
        columns = self.tables[table]
        listed = ", ".join(map(identifier, columns))
        rows = self.rows(f"SELECT {listed} FROM {identifier(table)}")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def count(self, table: str) -> int:
        """Return how many rows ``table`` has, 0 when it is missing."""
        if table not in self.tables:
            return 0
        return int(self.rows(f"SELECT count(*) FROM {identifier(table)}")[0][0])

    def read(self, queries: Sequence[Query], progress: Progress) -> list[pl.DataFrame]:
        """Return one frame a query, rows in the order of the file; ``progress`` counts rows."""
        return read_tables(self, queries, progress)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _refuse_unfinished(path: Path) -> None:
    # Opened immutable, SQLite would not look at these files and would read a state in between.
    for suffix in ("-journal", "-wal"):
        beside = path.with_name(path.name + suffix)
        if beside.is_file() and beside.stat().st_size:
            raise UnreadableError(
                f"{path} is being written, or its writer was stopped ({beside.name} lies beside "
                "it): wait for the export to end, or export it again"
            )


def _whole_size(path: Path) -> int:
    """Return the size of ``path`` in bytes; raises ``CorruptError`` where some are missing."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    # The page count in the header counts only when the same version of SQLite wrote both.
    if len(header) < _HEADER or (header[24:28] == header[92:96] and size < page * pages):
        whole = max(page * pages, _HEADER)
        raise CorruptError(
            f"{path} ends after {size:,} of {whole:,} bytes: copy or export it again"
        )
    return size
