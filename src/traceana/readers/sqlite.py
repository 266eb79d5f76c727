"""Reads SQLite databases of profilers, opened read-only and immutable.

Large tables are read page by page on several threads. ADBC's SQLite driver passes Arrow data to
polars, so that no row becomes a Python object, and releases the interpreter's lock. A page is one
query and one Arrow batch: the driver derives a column's type from its first batch, and fails where
a later one disagrees. Tables without row numbers, and those of a damaged database, are scanned from
their first page to the last: a lookup by row number loses all rows behind a wrong one.

SQLite's integrity check, ``PRAGMA quick_check``, runs before, limited to a share of the time that
reading takes. It first walks the pages of all tables and indexes, then decodes every row. Of an
export of 494 MB the pages take 0.3 s of CPU time, the rows 1.4 s; reading takes 7 s. The walk finds
damage that makes a query lose rows: pages that no table has or that two have, row numbers out of
order, cells outside their page. A row that cannot be decoded makes reading fail.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec
import polars as pl

from traceana.errors import CorruptError, NotFoundError
from traceana.readers.source import Progress
from traceana.readers.sqlite_driver import Connection, FetchError, connected
from traceana.readers.table_source import Bytes, Integer, Query
from traceana.trace import Ledger

_HEADER: Final = 100
"""Bytes of the database header, https://www.sqlite.org/fileformat2.html section 1.3."""
PAGE_ROWS: Final = 1 << 16
_PART_ROWS: Final = 4 * PAGE_ROWS
_MOST_PARTS: Final = 256
_MOST_THREADS: Final = 4
_ROW: Final = "_row"
_NOTHING: Final = "_nothing"
"""Stands for the columns of a table that has none of those that a query asks for."""
_ROW_NUMBERS: Final = ("rowid", "_rowid_", "oid")
"""SQLite's names of the row number; a column of the same name hides it."""
_LARGEST_PAGE: Final = 65536
_SMALLEST_ROW: Final = 4
"""Bytes of a row and of its place in the page."""
_LONGEST_VALUE: Final = 64 << 20
"""Bytes of a text or blob in a small table; an expression in the schema can make it any length."""


class Database:
    """The tables of one SQLite file; a :class:`~traceana.readers.table_source.TableSource`.

    ``tables`` maps each table to its columns, in the order of the file. Generated columns are left
    out, because their expressions can need any amount of time and memory.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path``.

        Raises ``NotFoundError`` while another program writes it and ``CorruptError`` where it
        is truncated or its schema cannot be read.
        """
        self.path = path
        self.uri = read_only_uri(path)
        # Opened immutable, SQLite would ignore these files and read an intermediate state.
        real = path.resolve()
        for suffix in ("-journal", "-wal"):
            beside = real.with_name(real.name + suffix)
            if beside.is_file() and beside.stat().st_size:
                raise NotFoundError(
                    f"{path} is being written, or was not completed ({beside.name} exists): "
                    "wait for the export to end, or export it again"
                )
        self._header, self.size_bytes = _whole_file(path)
        try:
            self._connection = sqlite3.connect(self.uri, uri=True)
        except sqlite3.Error as error:
            raise NotFoundError(
                f"{path} cannot be opened ({error}): check the file and its permissions"
            ) from error
        # Text in a trace may hold any bytes.
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        self._unreadable_names = self._two_names = 0
        try:
            self.tables = self._schema()
        except CorruptError:
            self.close()
            raise

    def _schema(self) -> dict[str, tuple[str, ...]]:
        # Virtual tables need the module that created them.
        names = self.rows(
            "SELECT name, tbl_name FROM sqlite_master "
            "WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        readable = [name for name, _ in names if _can_be_named(name)]
        self._unreadable_names = len(names) - len(readable)
        # Both names of a table are equal; SQLite compares them without case.
        self._two_names = sum(name != table_name for name, table_name in names)
        return {
            name: tuple(
                row[1]
                for row in self.rows(f"PRAGMA table_info({identifier(name)})")
                if _can_be_named(row[1])
            )
            for name in readable
        }

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a small query; raises ``CorruptError`` where the file is damaged."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise damaged(self.path, error) from error

    @cached_property
    def damage(self) -> str | None:
        """What SQLite's integrity check finds first, None if nothing.

        Raises ``CorruptError`` if the database is too damaged for it.
        """
        pages = self.size_bytes // _page_bytes(self._header)
        try:
            return first_problem(self._connection, self.path, pages)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise damaged(self.path, error) from error

    def count_damage(self, ledger: Ledger) -> None:
        """Count in ``ledger`` the damage that SQLite finds, and tables without a readable name."""
        for count, detail in (
            (int(self.damage is not None), self.damage),
            (self._unreadable_names, "names of tables that are not UTF-8"),
            (self._two_names, "tables with two names"),
        ):
            ledger.add("damaged", count, table="-", kept=True, detail=detail)

    @property
    def most_rows(self) -> int:
        """How many rows the file can have; damaged pages that form a cycle have more."""
        return self.size_bytes // _SMALLEST_ROW

    def row_number(self, table: str) -> str | None:
        """Return the name of the row numbers of ``table``, None if queries by them lose rows."""
        if self.damage is not None:
            return None
        taken = {row[1].lower() for row in self.rows(f"PRAGMA table_xinfo({identifier(table)})")}
        free = next((name for name in _ROW_NUMBERS if name not in taken), None)
        if free is None:
            return None
        try:
            self._connection.execute(f"SELECT {free} FROM {identifier(table)} LIMIT 0")
        except sqlite3.OperationalError:  # the table is WITHOUT ROWID
            return None
        return free

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dictionaries, empty when the table is missing."""
        if table not in self.tables:
            return []
        columns = self.tables[table]
        listed = ", ".join(map(identifier, columns))
        rows = self.rows(f"SELECT {listed} FROM {identifier(table)} LIMIT {self.most_rows}")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def count(self, table: str) -> int:
        """Return how many rows ``table`` has, 0 when it is missing."""
        if table not in self.tables:
            return 0
        rows = identifier(table)
        if self.damage is not None:
            rows = f"(SELECT 1 FROM {rows} LIMIT {self.most_rows})"
        return int(self.rows(f"SELECT count(*) FROM {rows}")[0][0])

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


def _can_be_named(name: Any) -> bool:
    """Return whether a query can have ``name``, which a damaged schema gives any type and bytes."""
    return isinstance(name, str) and "\ufffd" not in name and "\0" not in name


def _page_bytes(header: bytes) -> int:
    written = int.from_bytes(header[16:18], "big")
    return _LARGEST_PAGE if written <= 1 else written


def _whole_file(path: Path) -> tuple[bytes, int]:
    """Return the header of ``path`` and the size in bytes.

    Raises ``CorruptError`` where the file is truncated.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise _unreadable(path, error) from error
    page = _page_bytes(header)
    pages = int.from_bytes(header[28:32], "big")
    # The header's page count is valid only where the same version of SQLite wrote both.
    if len(header) < _HEADER or (header[24:28] == header[92:96] and size < page * pages):
        whole = max(page * pages, _HEADER)
        raise CorruptError(
            f"{path} is truncated ({size:,} of {whole:,} bytes): copy or export it again"
        )
    return header, size


def _unreadable(path: Path, error: OSError) -> NotFoundError:
    return NotFoundError(
        f"{path} cannot be read ({error.strerror}): check the file and its permissions"
    )


def identifier(name: str) -> str:
    """Return ``name`` quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def damaged(path: Path, error: Exception) -> CorruptError:
    """Return the error for a database ``path`` that SQLite cannot read."""
    is_text = isinstance(error, UnicodeDecodeError)
    reason = "the schema is not UTF-8" if is_text else " ".join(str(error).split())
    return CorruptError(f"{path} is damaged ({reason}): copy or export it again")


def read_tables(
    database: Database, queries: Sequence[Query], progress: Progress
) -> list[pl.DataFrame]:
    """Return one frame per query, rows in the order of the file.

    ``progress`` counts row numbers. Raises ``CorruptError`` where the file is damaged.
    """
    parts = [
        (index, part)
        for index, query in enumerate(queries)
        for part in _parts(database, query.table)
    ]
    total = sum(part.rows for _, part in parts)
    done = 0
    progress(done, total)
    read: dict[int, pl.DataFrame] = {}
    # SQLite reads a page on one core; a third and fourth thread overlap the shaping.
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="traceana-sqlite") as pool:
        futures: dict[Future[pl.DataFrame], int] = {
            pool.submit(_read_part, database, queries[index], part): number
            for number, (index, part) in enumerate(parts)
        }
        try:
            for future in as_completed(futures):
                number = futures[future]
                read[number] = future.result()
                done += parts[number][1].rows
                progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    frames: list[list[pl.DataFrame]] = [[] for _ in queries]
    for number, (index, _) in enumerate(parts):
        frames[index].append(read[number])
    return [_concat(query, pages) for query, pages in zip(queries, frames, strict=True)]


def _concat(query: Query, frames: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames) if frames else query.nothing()


class _Part(msgspec.Struct, frozen=True):
    """Rows ``first`` to ``last`` of a table by the column ``number``; all rows if it is None."""

    first: int
    last: int
    number: str | None

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


def _parts(database: Database, table: str) -> list[_Part]:
    """Return the rows of ``table`` in parts of some pages each."""
    number = database.row_number(table)
    if number is None:
        return [_Part(1, database.count(table), None)]
    name = identifier(table)
    # Two queries: SQLite finds one end of the index by a lookup, both ends by a scan.
    low = database.rows(f"SELECT min({number}) FROM {name}")[0][0]
    high = database.rows(f"SELECT max({number}) FROM {name}")[0][0]
    if low is None:
        return []
    count = min(-(-(high - low + 1) // _PART_ROWS), _MOST_PARTS)
    edges = [low + (high - low + 1) * i // count for i in range(count + 1)]
    return [_Part(first, after - 1, number) for first, after in pairwise(edges)]


def _read_part(database: Database, query: Query, part: _Part) -> pl.DataFrame:
    source = identifier(query.table)
    pages = []
    try:
        with connected(database.uri) as connection:
            table = _Fetched(connection, query, database.tables[query.table])
            if part.number is None:
                scanned = table.cast("", f"FROM {source} LIMIT {database.most_rows}")
                pages = [
                    query.shape(page.select(*query.columns))
                    for page in scanned.iter_slices(PAGE_ROWS)
                ]
            # Row numbers may have gaps: a page begins after the last row of the one before it.
            first = part.first
            while part.number is not None and first <= part.last:
                page = table.fetched(
                    f"{part.number} AS {_ROW}, ",
                    f"FROM {source} WHERE {part.number} BETWEEN {first} AND {part.last} "
                    f"ORDER BY {part.number} LIMIT {PAGE_ROWS}",
                )
                if page.is_empty():
                    break
                first = int(page[_ROW][-1]) + 1
                pages.append(query.shape(page.select(*query.columns)))
    except (FetchError, pl.exceptions.ComputeError, UnicodeDecodeError) as error:
        raise damaged(database.path, error) from error
    # An unchanged column keeps its whole batch alive: copying frees the pages.
    return _concat(query, pages).rechunk()


class _Fetched:
    """Fetches the columns of a query as int64 and binary; missing ones are null or empty.

    Each cell of SQLite has its own type, and a cast of each takes a fifth of the time. Cells are
    cast only from the first page on that has others than integers and nulls.
    """

    def __init__(self, connection: Connection, query: Query, present: Collection[str]) -> None:
        self._connection = connection
        stored = {
            name: column
            for name, column in query.columns.items()
            if any(
                source in present
                for source in (column.columns if isinstance(column, Integer) else [column.column])
            )
        }
        self._integers = [name for name, column in stored.items() if isinstance(column, Integer)]
        self._listed, self._cast = (
            ", ".join(
                f"{_sql(column, present, cast=cast)} AS {identifier(name)}"
                for name, column in stored.items()
            )
            or f"NULL AS {_NOTHING}"
            for cast in (False, True)
        )
        self._only_integers = True
        # A page that holds only nulls has no type.
        self._typed = [
            (pl.col(name) if name in stored else pl.lit(None if is_integer else b""))
            .cast(pl.Int64 if is_integer else pl.Binary)
            .alias(name)
            for name, column in query.columns.items()
            for is_integer in [isinstance(column, Integer)]
        ]

    def fetched(self, before: str, rows: str) -> pl.DataFrame:
        """Return the page of SQL ``rows`` with the columns ``before`` the others."""
        if self._only_integers:
            try:
                page = self._connection.fetch(f"SELECT {before}{self._listed} {rows}", PAGE_ROWS)
                types = {page.schema[name] for name in self._integers}
                if types <= {pl.Int64(), pl.Null()}:
                    return self._complete(page)
            except FetchError:  # blobs among integers
                pass
            self._only_integers = False
        return self.cast(before, rows)

    def cast(self, before: str, rows: str) -> pl.DataFrame:
        """Return what :meth:`fetched` does, with every cell cast."""
        return self._complete(
            self._connection.fetch(f"SELECT {before}{self._cast} {rows}", PAGE_ROWS)
        )

    def _complete(self, page: pl.DataFrame) -> pl.DataFrame:
        return page.with_columns(self._typed)


def _sql(column: Integer | Bytes, present: Collection[str], *, cast: bool) -> str:
    """Return the SQL of ``column`` over a table with the columns ``present``.

    A cast gives all cells one type. Bytes are always cast.
    """
    if isinstance(column, Bytes):
        return f"coalesce(CAST({identifier(column.column)} AS BLOB), x'')"
    cells = [
        f"CAST({identifier(name)} AS INTEGER)" if cast else identifier(name)
        for name in column.columns
        if name in present
    ]
    return f"coalesce({', '.join(cells)})" if len(cells) > 1 else cells[0]


_OPERATIONS_PER_PAGE: Final = 200
_LEAST_OPERATIONS: Final = 2_000_000
"""All rows of a database of some 10 MB."""
_MOST_OPERATIONS: Final = 2**31 - 1
_MAPPED: Final = 16 << 20
"""Bytes of the largest database that is mapped into memory."""
_BLOCK: Final = 1 << 18


def first_problem(connection: sqlite3.Connection, path: Path, pages: int) -> str | None:
    """Return what SQLite finds wrong with the database ``path`` of ``pages`` pages, None if nothing
    is.

    All pages are checked, and as many rows as :data:`_OPERATIONS_PER_PAGE` allows. Raises
    ``OSError``, ``sqlite3.Error`` and ``UnicodeDecodeError`` if the check cannot be run.
    """
    operations = min(max(_OPERATIONS_PER_PAGE * pages, _LEAST_OPERATIONS), _MOST_OPERATIONS)
    # Expressions in the schema of the file are not evaluated.
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.set_progress_handler(lambda: True, operations)
    try:
        with _mapped(connection, path):
            (report,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        # Problems of pages are returned before the first row is decoded.
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return None
        raise
    finally:
        connection.set_progress_handler(None, 0)
    lines = [line for line in str(report).splitlines() if not line.startswith("***")]
    problem = " ".join(" ".join(lines).split())
    return None if problem == "ok" else problem


@contextmanager
def _mapped(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Map a small database into memory, which takes a fifth off the time of its check."""
    if path.stat().st_size > _MAPPED:
        yield
        return
    # Read once before: an error of the disk is an exception here and a signal in mapped memory.
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(_BLOCK)
        while file.readinto(buffer):
            pass
    connection.execute(f"PRAGMA mmap_size = {_MAPPED}")
    try:
        yield
    finally:
        connection.execute("PRAGMA mmap_size = 0")
