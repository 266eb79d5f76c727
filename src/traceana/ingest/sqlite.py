"""Reads SQLite databases of nsys and nvprof, opened read-only and immutable.

Large tables are read page by page on several threads. ADBC's SQLite driver passes Arrow data to
polars, so that no row becomes a Python object, and releases the interpreter's lock. A page is one
query and one Arrow batch: the driver derives a column's type from its first batch, and fails where
a later one disagrees.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import polars as pl

from traceana.errors import CorruptError, UnreadableError
from traceana.ingest.source import Progress
from traceana.ingest.table_source import Bytes, Integer, Query

_HEADER: Final = 100
"""Bytes of the database header, https://www.sqlite.org/fileformat2.html section 1.3."""
PAGE_ROWS: Final = 1 << 16
_PART_ROWS: Final = 4 * PAGE_ROWS
_MOST_PARTS: Final = 256
_MOST_THREADS: Final = 4
_ROW: Final = "_row"


class Database:
    """The tables of one SQLite file; a :class:`~traceana.ingest.table_source.TableSource`.

    ``tables`` maps each table to its columns, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path``.

        Raises ``UnreadableError`` while another program writes it and ``CorruptError`` where it
        is truncated or its schema cannot be read.
        """
        self.path = path
        self.uri = read_only_uri(path)
        _refuse_unfinished(path)
        self.size_bytes = _whole_size(path)
        try:
            self._connection = sqlite3.connect(self.uri, uri=True)
        except sqlite3.Error as error:
            raise UnreadableError(
                f"{path} cannot be opened ({error}): check the file and its permissions"
            ) from error
        # Text in a trace may hold any bytes.
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            self.tables = self._schema()
        except CorruptError:
            self.close()
            raise

    def _schema(self) -> dict[str, tuple[str, ...]]:
        # Virtual tables need the module that created them.
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
        """Return the rows of a small table as dictionaries, empty when the table is missing."""
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
        """Return one frame per query, rows in the order of the file; ``progress`` counts rows."""
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


def read_only_uri(path: Path) -> str:
    """Return the SQLite URI that opens ``path`` read-only, without a lock or a new file.

    Every byte outside the unreserved set is escaped: ``?``, ``#``, ``%`` and spaces of a path
    would otherwise end it or begin the options.
    """
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"


def _refuse_unfinished(path: Path) -> None:
    # Opened immutable, SQLite would ignore these files and read an intermediate state.
    for suffix in ("-journal", "-wal"):
        beside = path.with_name(path.name + suffix)
        if beside.is_file() and beside.stat().st_size:
            raise UnreadableError(
                f"{path} is being written, or was not completed ({beside.name} exists): "
                "wait for the export to end, or export it again"
            )


def _whole_size(path: Path) -> int:
    """Return the size of ``path`` in bytes; raises ``CorruptError`` where the file is truncated."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise UnreadableError(
            f"{path} cannot be read ({error.strerror}): check the file and its permissions"
        ) from error
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    # The header's page count is valid only where the same version of SQLite wrote both.
    if len(header) < _HEADER or (header[24:28] == header[92:96] and size < page * pages):
        whole = max(page * pages, _HEADER)
        raise CorruptError(
            f"{path} is truncated ({size:,} of {whole:,} bytes): copy or export it again"
        )
    return size


def identifier(name: str) -> str:
    """Return ``name`` quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def damaged(path: Path, error: Exception) -> CorruptError:
    """Return the error for a database ``path`` that SQLite cannot read."""
    what = " ".join(str(error).split())
    return CorruptError(f"{path} is damaged ({what}): copy or export it again")


def read_tables(
    database: Database, queries: Sequence[Query], progress: Progress
) -> list[pl.DataFrame]:
    """Return one frame per query, rows in the order of the file.

    ``progress`` counts row numbers. Raises ``CorruptError`` where the file is damaged.
    """
    parts = [
        (index, first, last)
        for index, query in enumerate(queries)
        for first, last in _parts(database, query.table)
    ]
    total = sum(last - first + 1 for _, first, last in parts)
    done = 0
    progress(done, total)
    read: dict[int, pl.DataFrame] = {}
    # SQLite reads a page on one core; a third and fourth thread overlap the shaping.
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="traceana-sqlite") as pool:
        futures: dict[Future[pl.DataFrame], int] = {
            pool.submit(_read_part, database, queries[index], first, last): number
            for number, (index, first, last) in enumerate(parts)
        }
        try:
            for future in as_completed(futures):
                number = futures[future]
                read[number] = future.result()
                done += parts[number][2] - parts[number][1] + 1
                progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [
        _concat(query, [read[n] for n, (of, _, _) in enumerate(parts) if of == i])
        for i, query in enumerate(queries)
    ]


def _concat(query: Query, frames: list[pl.DataFrame], *, copy: bool = False) -> pl.DataFrame:
    if frames:
        return pl.concat(frames, rechunk=copy)
    return query.nothing()


def _parts(database: Database, table: str) -> list[tuple[int, int]]:
    """Return the row numbers of ``table`` in parts (first, last) of some pages each."""
    name = identifier(table)
    # Two queries: SQLite finds one end of the index by a lookup, both ends by a scan.
    low = database.rows(f"SELECT min(rowid) FROM {name}")[0][0]
    high = database.rows(f"SELECT max(rowid) FROM {name}")[0][0]
    if low is None:
        return []
    count = min(-(-(high - low + 1) // _PART_ROWS), _MOST_PARTS)
    edges = [low + (high - low + 1) * i // count for i in range(count + 1)]
    return [(first, after - 1) for first, after in pairwise(edges)]


def _read_part(database: Database, query: Query, first: int, last: int) -> pl.DataFrame:
    import adbc_driver_manager
    import adbc_driver_sqlite

    present = database.tables[query.table]
    listed = ", ".join(
        f"{_sql(column, present)} AS {identifier(name)}" for name, column in query.columns.items()
    )
    # A page that holds only nulls has no type.
    typed = [
        pl.col(name).cast(pl.Int64 if isinstance(column, Integer) else pl.Binary)
        for name, column in query.columns.items()
    ]
    pages = []
    try:
        with (
            adbc_driver_sqlite.connect(database.uri) as driver,
            adbc_driver_manager.AdbcConnection(driver) as connection,
        ):
            # Row numbers may have gaps: a page begins after the last row of the one before it.
            while first <= last:
                sql = (
                    f"SELECT rowid AS {_ROW}, {listed} FROM {identifier(query.table)} "
                    f"WHERE rowid BETWEEN {first} AND {last} ORDER BY rowid LIMIT {PAGE_ROWS}"
                )
                page = _fetch(connection, sql)
                if page.is_empty():
                    break
                first = int(page[_ROW][-1]) + 1
                pages.append(query.shape(page.select(typed)))
    except (adbc_driver_manager.Error, pl.exceptions.ComputeError) as error:
        raise damaged(database.path, error) from error
    # An unchanged column keeps its whole batch alive: copying frees the pages.
    return _concat(query, pages, copy=True)


def _fetch(connection: object, sql: str) -> pl.DataFrame:
    import adbc_driver_manager
    from adbc_driver_sqlite import StatementOptions

    with adbc_driver_manager.AdbcStatement(connection) as statement:
        statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(PAGE_ROWS)})
        statement.set_sql_query(sql)
        stream, _ = statement.execute_query()
        return pl.DataFrame(stream)


def _sql(column: Integer | Bytes, present: Collection[str]) -> str:
    """Return the SQL of ``column`` over a table that has the columns ``present``.

    Each cell of SQLite has its own type: the casts give a column one type.
    """
    if isinstance(column, Bytes):
        known = column.column in present
        return f"coalesce({f'CAST({identifier(column.column)} AS BLOB)' if known else 'NULL'}, x'')"
    casts = [f"CAST({identifier(name)} AS INTEGER)" for name in column.columns if name in present]
    return f"coalesce({', '.join(casts)})" if len(casts) > 1 else next(iter(casts), "NULL")
