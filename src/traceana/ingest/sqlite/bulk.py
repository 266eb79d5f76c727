"""Large tables of an SQLite file to polars, page by page, on several threads.

ADBC's SQLite driver hands Arrow to polars, so that no Python object is made a row; the
interpreter's lock is free meanwhile. A page is one query and one Arrow batch: the driver takes a
column's type from its first batch, and fails where a later one disagrees.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.ingest.progress import Progress
from traceana.ingest.sqlite.sql import damaged, identifier
from traceana.ingest.tables import Bytes, Integer, Query

if TYPE_CHECKING:
    from traceana.ingest.sqlite.database import Database

PAGE_ROWS: Final = 1 << 16
_PART_ROWS: Final = 4 * PAGE_ROWS
_MOST_PARTS: Final = 256
_MOST_THREADS: Final = 4
_ROW: Final = "_row"


def _sql(column: Integer | Bytes, present: Collection[str]) -> str:
    """Return the SQL of ``column`` over a table that has the columns ``present``.

    The casts make one type of whatever a row holds; SQLite's columns are typed by row.
    """
    if isinstance(column, Bytes):
        known = column.column in present
        return f"coalesce({f'CAST({identifier(column.column)} AS BLOB)' if known else 'NULL'}, x'')"
    casts = [f"CAST({identifier(name)} AS INTEGER)" for name in column.columns if name in present]
    return f"coalesce({', '.join(casts)})" if len(casts) > 1 else next(iter(casts), "NULL")


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
    return query.nothing()


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

    present = database.tables[query.table]
    listed = ", ".join(
        f"{_sql(column, present)} AS {identifier(name)}" for name, column in query.columns.items()
    )
    # A page of nulls only has no type of its own.
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
