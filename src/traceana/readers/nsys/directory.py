"""Reads exports of nsys to a directory with one Parquet file or Arrow stream per table.

A decoder allocates what a length in the file asks for, and aborts the process where memory is
short. Lengths in an Arrow stream are checked against the file before it is decoded.
The stream is a sequence of messages, https://arrow.apache.org/docs/format/Columnar.html: the size
of a flatbuffer, the flatbuffer, and a body, whose length is in the flatbuffer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from os import SEEK_END
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.readers.nsys.reader import read_tables
from traceana.readers.parquet import ParquetFiles, damage
from traceana.readers.source import Progress
from traceana.readers.table_source import Bytes, Integer, Query
from traceana.trace import Ledger, Trace

PAGE_ROWS: Final = 1 << 20
_PARQUET: Final = ".parquet"
_ARROW: Final = ".arrow"


class TableDirectory:
    """The tables of one directory; a :class:`~traceana.readers.table_source.TableSource`."""

    def __init__(self, path: Path) -> None:
        """List the tables in ``path``; other files are ignored."""
        self.path = path
        entries = [file for file in sorted(path.iterdir()) if file.suffix in (_PARQUET, _ARROW)]
        self._files = {file.stem: file for file in entries if file.is_file()}
        self._ends: dict[str, End] = {}
        self._parquet = ParquetFiles()
        self._not_files = [file.name for file in entries if not file.is_file()]
        self.size_bytes = sum(file.stat().st_size for file in self._files.values())

    @cached_property
    def tables(self) -> dict[str, tuple[str, ...]]:
        """The columns of each table; raises ``CorruptError`` where a file is damaged."""
        return {table: self._columns(table) for table in self._files}

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dictionaries, empty when the table is missing."""
        return self._frame(table).to_dicts() if table in self.tables else []

    def count(self, table: str) -> int:
        """Return how many rows ``table`` has, 0 when it is missing."""
        if table not in self.tables:
            return 0
        # One column is enough to count the rows.
        return self._frame(table, list(self.tables[table][:1])).height

    def count_damage(self, ledger: Ledger) -> None:
        """Count in ``ledger`` the tables that are cut or missing.

        A stream may end without a mark, but a program writes all its streams alike.
        """
        marked = End.MARK in self._ends.values()
        for table, end in self._ends.items():
            if end is End.DATA or (end is End.NOTHING and marked):
                detail = f"{self._files[table].name}: {end.value}"
                ledger.add("damaged", 1, table="-", kept=True, detail=detail)
        for name in self._not_files:
            detail = f"{name} is not a file"
            ledger.add("missing_table", 1, table="-", kept=True, detail=detail)

    def read(self, queries: Sequence[Query], progress: Progress) -> list[pl.DataFrame]:
        """Return one frame per query, rows in the order of the file; ``progress`` counts bytes."""
        sizes = [self._files[query.table].stat().st_size for query in queries]
        frames = []
        progress(0, sum(sizes))
        for number, query in enumerate(queries, 1):
            frames.append(self._shaped(query))
            progress(sum(sizes[:number]), sum(sizes))
        return frames

    def _shaped(self, query: Query) -> pl.DataFrame:
        present = self.tables[query.table]
        wanted = {
            name
            for column in query.columns.values()
            for name in (column.columns if isinstance(column, Integer) else [column.column])
        }
        stored = [name for name in present if name in wanted]
        # Where the query has no column in the file, one is read for the number of rows.
        raw = self._frame(query.table, stored or list(present[:1]))
        expressions = [_expression(c, raw.schema).alias(name) for name, c in query.columns.items()]
        pages = []
        for page in raw.iter_slices(PAGE_ROWS):
            with damage(self._files[query.table]):
                selected = page.select(expressions)
            pages.append(query.shape(selected))
        return pl.concat(pages) if pages else query.nothing()

    def _columns(self, table: str) -> tuple[str, ...]:
        file = self._files[table]
        if file.suffix == _PARQUET:
            return self._parquet.columns(file)
        with damage(file), file.open("rb") as opened:
            self._ends[table] = check_lengths(file)
            return tuple(pl.read_ipc_stream(opened, n_rows=0).columns)

    def _frame(self, table: str, columns: list[str] | None = None) -> pl.DataFrame:
        file = self._files[table]
        if file.suffix == _PARQUET:
            return self._parquet.read(file, columns)
        with damage(file), file.open("rb") as opened:
            return pl.read_ipc_stream(opened, columns=columns)


def _expression(column: Integer | Bytes, schema: pl.Schema) -> pl.Expr:
    if isinstance(column, Bytes):
        if column.column not in schema:
            return pl.repeat(b"", pl.len(), dtype=pl.Binary)
        # A dictionary's labels become text again.
        return pl.col(column.column).cast(pl.String).cast(pl.Binary).fill_null(b"")
    # SQLite has no unsigned integers: the same bits, as in its exports.
    numbers = [
        pl.col(name).reinterpret(signed=True)
        if schema[name] == pl.UInt64
        else pl.col(name).cast(pl.Int64, strict=False)
        for name in column.columns
        if name in schema
    ]
    return pl.coalesce(numbers) if numbers else pl.repeat(None, pl.len(), dtype=pl.Int64)


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of the tables in ``path``, equal to that of the report's SQLite export.

    Raises ``CorruptError``.
    """
    return read_tables(TableDirectory(path), progress)


_AHEAD: Final = 4096
"""Bytes of a message that are read at once."""
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
"""Fields of a Message."""
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
"""Types of a Message's header."""
_LENGTH, _NODES, _BUFFERS = 0, 1, 2
"""Fields of a RecordBatch."""
_DATA: Final = 1
"""Field of a DictionaryBatch: a RecordBatch."""
_MOST_BITS: Final = 8
"""Rows for each byte of a body: a bit each."""


class End(Enum):
    """What follows the last message of a stream."""

    MARK = "the mark of its end"
    NOTHING = "cut before the mark of its end"
    DATA = "data behind the mark of its end"


def check_lengths(file: Path) -> End:
    """Return what follows the last message of the Arrow stream ``file``.

    Raises ``ValueError`` where a length in it is beyond the file.
    """
    with file.open("rb", buffering=0) as stream:
        size = stream.seek(0, SEEK_END)
        at = 0
        while at < size:
            stream.seek(at)
            # Enough for the message of most tables.
            content = stream.read(_AHEAD)
            begin = 8 if content[:4] == _CONTINUATION else 4
            (length,) = struct.unpack("<i", content[begin - 4 : begin].ljust(4, b"\0"))
            if length == 0:
                return End.MARK if at + begin >= size else End.DATA
            if not 0 < length <= size - at - begin:
                raise ValueError("a message is longer than the file")
            if len(content) < begin + length:
                content += stream.read(begin + length - len(content))
            try:
                body = _body_length(content[begin : begin + length], size - at - begin - length)
            except struct.error as error:
                raise ValueError("a message cannot be decoded") from error
            at += begin + length + body
    return End.NOTHING


def _body_length(message: bytes, left: int) -> int:
    """Return the length of the body of ``message``; ``left`` bytes of the file follow it."""
    root = _u32(message, 0)
    place = _field(message, root, _BODY_LENGTH)
    body = _i64(message, place) if place else 0
    if not 0 <= body <= left:
        raise ValueError("a body is longer than the file")
    kind, header = _field(message, root, _HEADER_TYPE), _field(message, root, _HEADER)
    if kind and header:
        batch = header + _u32(message, header)
        (kind,) = struct.unpack_from("<B", message, kind)
        if kind == _DICTIONARY_BATCH and (data := _field(message, batch, _DATA)):
            batch = data + _u32(message, data)
        if kind in (_DICTIONARY_BATCH, _RECORD_BATCH):
            place = _field(message, batch, _LENGTH)
            lengths = [_i64(message, place)] if place else []
            lengths += _pairs(message, batch, _NODES)[::2]
            # Columns of nulls have rows without a byte.
            if body and any(not 0 <= length <= _MOST_BITS * body for length in lengths):
                raise ValueError("a batch has more rows than bits")
            buffers = _pairs(message, batch, _BUFFERS)
            for at, size in zip(buffers[::2], buffers[1::2], strict=True):
                if not 0 <= at <= at + size <= body:
                    raise ValueError("a buffer is outside its body")
    return body


def _pairs(message: bytes, table: int, number: int) -> tuple[int, ...]:
    """Return a vector of structs of two integers, one after the other."""
    place = _field(message, table, number)
    if not place:
        return ()
    vector = place + _u32(message, place)
    count = _u32(message, vector)
    if 16 * count > len(message):
        raise ValueError("a list is longer than its message")
    return struct.unpack_from(f"<{2 * count}q", message, vector + 4)


def _field(message: bytes, table: int, number: int) -> int:
    """Return the place of a field of a flatbuffer's table, 0 if it is not there."""
    (back,) = struct.unpack_from("<i", message, table)
    descriptions = table - back
    if descriptions < 0:
        raise ValueError("a message cannot be decoded")
    (size,) = struct.unpack_from("<H", message, descriptions)
    if 6 + 2 * number > size:
        return 0
    (offset,) = struct.unpack_from("<H", message, descriptions + 4 + 2 * number)
    return table + offset if offset else 0


def _u32(message: bytes, at: int) -> int:
    (value,) = struct.unpack_from("<I", message, at)
    return int(value)


def _i64(message: bytes, at: int) -> int:
    (value,) = struct.unpack_from("<q", message, at)
    return int(value)
