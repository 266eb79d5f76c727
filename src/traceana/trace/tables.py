"""The canonical tables of a recording, as attributes and by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.errors import CorruptError, suggested
from traceana.trace.schema import SCHEMA, TABLES, conform, empty, join_pieces

_NONE: Final[Mapping[str, pl.DataFrame]] = MappingProxyType({})


class Tables(Mapping[str, pl.DataFrame]):
    """The canonical tables (:mod:`traceana.trace.schema`), as attributes and by name.

    Each is a clone: who changes it does not change the Trace. Tables of a reopened bundle, which
    are given as a ``LazyFrame``, are read on first access.
    """

    __slots__ = ("_heights", "_tables", "derived")

    activities: pl.DataFrame
    names: pl.DataFrame
    classes: pl.DataFrame
    episodes: pl.DataFrame
    calls: pl.DataFrame
    ops: pl.DataFrame
    instructions: pl.DataFrame
    ranges: pl.DataFrame
    frames: pl.DataFrame
    links: pl.DataFrame
    layers: pl.DataFrame
    graph_calls: pl.DataFrame
    graph_dependencies: pl.DataFrame
    operations: pl.DataFrame
    steps: pl.DataFrame
    memory: pl.DataFrame
    memory_blocks: pl.DataFrame
    process_groups: pl.DataFrame
    devices: pl.DataFrame
    counters: pl.DataFrame
    samples: pl.DataFrame
    summary: pl.DataFrame
    ledger: pl.DataFrame

    def __init__(
        self,
        tables: Mapping[str, pl.DataFrame | pl.LazyFrame] = _NONE,
        others: Tables | None = None,
        *,
        heights: Mapping[str, int] | None = None,
    ) -> None:
        """Hold ``tables``, else those of ``others``, else empty ones.

        ``heights`` are the rows of each table, with which the row numbers in tables that are read
        later are checked.

        Raises ``KeyError`` on a table or a column that the schema does not declare.
        """
        self._heights: Mapping[str, int] | None
        self._heights = heights if others is None else others._heights
        self.derived: dict[str, Any] = {}
        """What follows from the tables alone and is made once, by name."""
        # Those of others have the declared columns already: to compare them takes long.
        self._tables: dict[str, pl.DataFrame | pl.LazyFrame]
        self._tables = {} if others is None else dict(others._tables)
        for name, table in tables.items():
            self._tables[_known(name)] = (
                table if isinstance(table, pl.LazyFrame) else conform(name, table).clone()
            )

    def __getitem__(self, name: str) -> pl.DataFrame:
        table = self._tables.get(_known(name))
        if table is None:
            table = empty(name)
        if isinstance(table, pl.LazyFrame):
            try:
                table = table.collect()
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                raise CorruptError(_damaged(name)) from error
            self._check_rows(name, table)
        self._tables[name] = table
        return table.clone()

    def _check_rows(self, name: str, table: pl.DataFrame) -> None:
        """Raise ``CorruptError`` where a row number is beyond the rows of the table it is of."""
        if self._heights is None:
            return
        for column, described in SCHEMA[name].columns.items():
            most = None if described.row_of is None else table[column].max()
            if isinstance(most, int) and most >= self._heights[str(described.row_of)]:
                raise CorruptError(_damaged(name))

    if not TYPE_CHECKING:  # type checkers would otherwise accept any attribute

        def __getattr__(self, name: str) -> pl.DataFrame:
            try:
                return self[name]
            except KeyError as error:
                raise AttributeError(*error.args) from None

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES)

    def __len__(self) -> int:
        return len(TABLES)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *TABLES]

    def join_pieces(self) -> None:
        """Make each column one piece of memory; the values stay."""
        for table in self._tables.values():
            if isinstance(table, pl.DataFrame):
                join_pieces(table)

    def __repr__(self) -> str:
        return (
            f"Tables({', '.join(f'{name}: {table.height:,} rows' for name, table in self.items())})"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td>{table.height:,}</td>"
            f"<td style='text-align:left'>{escape(', '.join(table.columns))}</td></tr>"
            for name, table in self.items()
        )
        return f"<table><tr><th>table</th><th>rows</th><th>columns</th></tr>{rows}</table>"


def _damaged(name: str) -> str:
    return f"table {name} of the bundle is damaged: save it again from the original trace"


def _known(name: str) -> str:
    if name not in TABLES:
        raise KeyError(f"no table {name!r}{suggested(name, TABLES)}; tables: {', '.join(TABLES)}")
    return name
