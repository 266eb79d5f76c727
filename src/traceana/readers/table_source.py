"""Queries over the tables that a profiler exported, for any store (SQLite, Parquet, Arrow)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import polars as pl

from traceana.readers.source import Progress
from traceana.trace import Ledger


class Integer:
    """The first of ``columns`` that exists and is not null in the row, as int64, else null.

    In SQLite, where each cell has its own type, text that begins with a number is that number.
    """

    __slots__ = ("columns",)

    def __init__(self, *columns: str) -> None:
        self.columns = columns


class Bytes(msgspec.Struct, frozen=True):
    """The bytes of a text or binary column, empty where it is null or missing.

    Never null, so that a page that begins with nulls has the same type as the others.
    """

    column: str


class Query(msgspec.Struct, frozen=True):
    """The columns to read from one table, by the name of their result.

    ``shape`` converts a page (int64 and binary columns) to its compact form.
    """

    table: str
    columns: Mapping[str, Integer | Bytes]
    shape: Callable[[pl.DataFrame], pl.DataFrame]

    def nothing(self) -> pl.DataFrame:
        """Return the result of the query over an empty table."""
        schema = {
            name: pl.Int64 if isinstance(column, Integer) else pl.Binary
            for name, column in self.columns.items()
        }
        return self.shape(pl.DataFrame(schema=schema))


class TableSource(Protocol):
    """Named tables with named columns.

    All methods raise ``CorruptError`` where the store is damaged.
    """

    @property
    def path(self) -> Path:
        """The file or folder of the tables."""

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of each table."""

    @property
    def size_bytes(self) -> int:
        """The size of the store."""

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dictionaries, empty when the table is missing."""

    def count(self, table: str) -> int:
        """Return how many rows ``table`` has, 0 when it is missing."""

    def count_damage(self, ledger: Ledger) -> None:
        """Count in ``ledger`` the damage of the store that reading does not raise for."""

    def read(self, queries: Sequence[Query], progress: Progress) -> list[pl.DataFrame]:
        """Return one frame per query, rows in the order of the store; each table must exist."""


def decoded(raw: pl.Series) -> pl.Series:
    """Return the text of a binary column; bytes that are not UTF-8 become U+FFFD."""
    try:
        return raw.cast(pl.String)
    except pl.exceptions.PolarsError:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in raw]
        return pl.Series(raw.name, texts, dtype=pl.String)


def as_int(value: Any) -> int | None:
    """Return an untyped cell's ``value`` as an integer, None for other values and beyond int64."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else None


def texts_query(table: str, number: str, text: str) -> Query:
    """Return the query for the strings in ``table``, which must exist, by its column names."""
    return Query(
        table,
        {"id": Integer(number), "text": Bytes(text)},
        lambda page: page.with_columns(decoded(page["text"]).alias("text")),
    )


def has_texts(source: TableSource, table: str, number: str, text: str) -> bool:
    """Return whether ``source`` has the strings that :func:`texts_query` asks for."""
    return {number, text} <= set(source.tables.get(table, ()))


class Texts:
    """Looks up the strings of a database by their id."""

    def __init__(self, table: pl.DataFrame | None) -> None:
        """Take the result of :func:`texts_query`, None without that table."""
        if table is None:
            table = pl.DataFrame(schema={"id": pl.Int64, "text": pl.String})
        self._table = table.unique("id", keep="first")

    def of(self, ids: pl.Series) -> pl.Series:
        """Return the strings of ``ids`` as Categorical, null for unknown ids.

        Only distinct ids are looked up as text.
        """
        wanted = ids.drop_nulls().unique().alias("id").to_frame()
        found = wanted.join(self._table, on="id", how="inner").with_columns(
            pl.col("text").cast(pl.Categorical)
        )
        return (ids.alias("id").to_frame().join(found, on="id", how="left", maintain_order="left"))[
            "text"
        ]
