"""Fetches the rows of a query as a frame: by ADBC, or by Python's own driver where ADBC is missing.

ADBC has no wheels for musl. Python's driver makes an object of each cell, so it is slower, with the
same frames.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Protocol

import polars as pl


class FetchError(Exception):
    """A query failed, or a column has cells of several types."""


class Connection(Protocol):
    """An open database."""

    def fetch(self, sql: str, batch_rows: int) -> pl.DataFrame:
        """Return the rows of ``sql``. Raises :class:`FetchError`."""


@contextmanager
def connected(uri: str) -> Iterator[Connection]:
    """Yield a connection to the database ``uri``. Raises :class:`FetchError`."""
    try:
        import adbc_driver_manager
        import adbc_driver_sqlite
    except ImportError:
        try:
            opened = sqlite3.connect(uri, uri=True)
        except sqlite3.Error as error:
            raise FetchError(str(error)) from error
        with closing(opened):
            yield _Rows(opened)
        return
    try:
        with (
            adbc_driver_sqlite.connect(uri) as driver,
            adbc_driver_manager.AdbcConnection(driver) as connection,
        ):
            yield _Arrow(connection)
    except adbc_driver_manager.Error as error:
        raise FetchError(str(error)) from error


class _Arrow:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def fetch(self, sql: str, batch_rows: int) -> pl.DataFrame:
        import adbc_driver_manager
        from adbc_driver_sqlite import StatementOptions

        try:
            with adbc_driver_manager.AdbcStatement(self._connection) as statement:
                statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(batch_rows)})
                statement.set_sql_query(sql)
                stream, _ = statement.execute_query()
                return pl.DataFrame(stream)
        except adbc_driver_manager.Error as error:
            raise FetchError(str(error)) from error


class _Rows:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def fetch(self, sql: str, batch_rows: int) -> pl.DataFrame:
        del batch_rows
        try:
            cursor = self._connection.execute(sql)
            names = [column[0] for column in cursor.description]
            cells = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
        except sqlite3.Error as error:
            raise FetchError(str(error)) from error
        columns = []
        for name, values in zip(names, cells, strict=True):
            types = {type(value) for value in values} - {type(None)}
            if types not in (set(), {int}, {bytes}):
                raise FetchError(f"column {name} has cells of other types")
            dtype = pl.Int64 if int in types else pl.Binary if bytes in types else pl.Null
            columns.append(pl.Series(name, values, dtype))
        return pl.DataFrame(columns)
