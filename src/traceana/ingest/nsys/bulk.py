"""Large tables of an SQLite file to polars, page by page, on several threads.

ADBC's SQLite driver hands Arrow to polars, so that no Python object is made a row; the
interpreter's lock is free meanwhile. A page is one query and one Arrow batch: the driver takes a
column's type from its first batch, and fails where a later one disagrees.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import polars as pl

from traceana.ingest.nsys.database import Database, damaged, identifier
from traceana.ingest.progress import Progress

PAGE_ROWS: Final = 1 << 16
_PART_ROWS: Final = 4 * PAGE_ROWS
_MOST_PARTS: Final = 256
_MOST_THREADS: Final = 4
_ROW: Final = "_row"


@dataclass(frozen=True)
class Column:
    """An SQL expression over a table's columns, and the type of its result."""

    sql: str
    dtype: pl.DataType | type[pl.DataType]


@dataclass(frozen=True)
class Query:
    """The columns to read of one table, and what to make of a page of them at once.

    ``columns`` are made by :func:`integer` and :func:`text`, by the name of their result.
    ``shape`` turns a page (int64 and binary columns) into what is kept, small.
    """

    table: str
    columns: dict[str, Column]
    shape: Callable[[pl.DataFrame], pl.DataFrame]


def integer(database: Database, table: str, *columns: str) -> Column:
    """Return the first of ``columns`` that ``table`` has and that is not null in the row.

    The cast makes an integer of whatever a row holds there; SQLite's columns are typed by row.
    """
    present = [
        f"CAST({identifier(column)} AS INTEGER)"
        for column in columns
        if column in database.tables[table]
    ]
    several = len(present) > 1
    sql = f"coalesce({', '.join(present)})" if several else next(iter(present), "NULL")
    return Column(sql, pl.Int64)


def text(database: Database, table: str, column: str) -> Column:
    """Return the bytes of a text column, empty where it is null or missing.

    Never null, so that a page that begins with nulls is of no other type.
    """
    known = column in database.tables[table]
    raw = f"CAST({identifier(column)} AS BLOB)" if known else "NULL"
    return Column(f"coalesce({raw}, x'')", pl.Binary)


def decoded(raw: pl.Series) -> pl.Series:
    """Return the text of a binary column; bytes that are no UTF-8 become U+FFFD."""
    try:
        return raw.cast(pl.String)
    except pl.exceptions.PolarsError:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in raw]
        return pl.Series(raw.name, texts, dtype=pl.String)


def read_tables(
    database: Database, queries: Sequence[Query], progress: Progress
) -> list[pl.DataFrame]:
    """Return one frame a query, rows in the order of the file.

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
    # SQLite steps through a page on one core; a third and fourth thread hide the shaping.
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
    schema = {name: column.dtype for name, column in query.columns.items()}
    return query.shape(pl.DataFrame(schema=schema))


def _parts(database: Database, table: str) -> list[tuple[int, int]]:
    """Cut the row numbers of ``table`` into stretches (first, last) of some pages each."""
    name = identifier(table)
    # Two queries: SQLite looks up one end of the index at once, both ends by a scan.
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

    listed = ", ".join(
        f"{column.sql} AS {identifier(name)}" for name, column in query.columns.items()
    )
    typed = [pl.col(name).cast(column.dtype) for name, column in query.columns.items()]
    pages = []
    try:
        with (
            adbc_driver_sqlite.connect(database.uri) as driver,
            adbc_driver_manager.AdbcConnection(driver) as connection,
        ):
            # Row numbers may have gaps: a page begins where the one before it really ended.
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
    # A column that is kept as the driver made it holds on to its whole batch: copied, the pages
    # free their memory.
    return _concat(query, pages, copy=True)


def _fetch(connection: object, sql: str) -> pl.DataFrame:
    import adbc_driver_manager
    from adbc_driver_sqlite import StatementOptions

    with adbc_driver_manager.AdbcStatement(connection) as statement:
        statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(PAGE_ROWS)})
        statement.set_sql_query(sql)
        stream, _ = statement.execute_query()
        return pl.DataFrame(stream)
