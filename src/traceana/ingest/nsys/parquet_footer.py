"""The footer of a Parquet file, compared with its pages and with the columns as read.

The footer has the place, the number of values and of nulls, the minimum and the maximum of each
column chunk, https://parquet.apache.org/docs/file-format/metadata/. A decoder allocates what a page
header asks for, and aborts the process where memory is short. A byte that changed in a page without
a checksum decodes to another number, which only the minimum and the maximum show.

Structs of Thrift's compact protocol, as the footer and the pages of a Parquet file have them.
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from io import FileIO
from os import SEEK_END
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

_LAST: Final = 8
"""Bytes behind the footer: its length and ``PAR1``."""
_LONGEST: Final = 16 << 20
"""Bytes of a footer; that of an nsys table has 5 kB for each million rows."""
_AHEAD: Final = 1 << 16
"""Bytes that a page header is decoded from; one has some hundred."""
_MOST_BITS: Final = 8
"""Rows for each byte of a file, a bit each: every event has a time of its own."""
_SCHEMA, _ROW_GROUPS, _COLUMNS, _META_DATA = 2, 4, 1, 3
"""Fields of FileMetaData (two), RowGroup and ColumnChunk."""
_NAME, _CHILDREN = 4, 5
"""Fields of SchemaElement."""
_PATH, _VALUES, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE, _STATISTICS = 3, 5, 7, 9, 11, 12
"""Fields of ColumnMetaData."""
_NULLS, _MAXIMUM, _MINIMUM = 3, 5, 6
"""Fields of Statistics."""
_PAGE_TYPE, _PAGE_COMPRESSED = 1, 3
"""Fields of PageHeader."""
_DATA_PAGES: Final = {0: 5, 3: 8}
"""The types of a page with values, and the field of a PageHeader that describes it."""
_PAGE_VALUES: Final = 1
"""Field of DataPageHeader and DataPageHeaderV2."""


class _Chunk(msgspec.Struct, frozen=True):
    """A column's part of a row group."""

    begin: int
    data: int
    end: int
    values: int
    nulls: int | None
    bounds: tuple[bytes, bytes] | None
    """The minimum and the maximum, None where the footer does not have them."""


class Footer:
    """The footer of one file; ``columns`` are the names of its columns."""

    def __init__(self, file: Path) -> None:
        """Decode the footer of ``file``.

        Raises ``ValueError`` where it cannot be decoded, or a number in it is beyond the file.
        """
        self._file = file
        self._chunks: dict[str, list[_Chunk]] = {}
        """By column, those of lists and structs left out."""
        with file.open("rb", buffering=0) as opened:
            size = opened.seek(0, SEEK_END)
            length = int.from_bytes(_at(opened, size - _LAST, 4), "little")
            if not 0 < length <= size - _LAST:
                raise ValueError("the footer is longer than the file")
            if length > _LONGEST:
                raise ValueError(f"the footer has {length:,} bytes")
            footer, _ = decoded(_at(opened, size - _LAST - length, length))
        try:
            self.columns = tuple(_columns(footer[_SCHEMA]))
            for name, chunk in _chunks(footer):
                self._chunks.setdefault(name, []).append(chunk)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError("the footer cannot be decoded") from error
        for name, chunks in self._chunks.items():
            if min(chunk.values for chunk in chunks) < 0 or _values(chunks) > _MOST_BITS * size:
                raise ValueError(f"column {name} has more rows than bits")
            if not all(0 <= chunk.begin <= chunk.end <= size for chunk in chunks):
                raise ValueError(f"column {name} is outside the file")

    def check_pages(self, columns: Collection[str] | None) -> None:
        """Raise ``ValueError`` where pages of ``columns``, of all if None, are not as described."""
        with self._file.open("rb", buffering=0) as opened:
            for name in self._chunks if columns is None else columns:
                for chunk in self._chunks.get(name, ()):
                    try:
                        values = _values_of_pages(opened, chunk)
                    except (LookupError, TypeError) as error:
                        raise ValueError(f"a page of {name} cannot be decoded") from error
                    if values != chunk.values:
                        raise ValueError(f"the pages of {name} have another number of values")

    def contradiction(self, read: pl.DataFrame) -> str | None:
        """Return how the columns ``read``, with all rows, differ from the footer; None if not."""
        for column in read:
            chunks = self._chunks.get(column.name)
            if chunks and (problem := _difference(column, chunks)):
                return f"{column.name} {problem}"
        return None


def _at(file: FileIO, begin: int, size: int) -> bytes:
    file.seek(max(begin, 0))
    return file.read(size)


def _columns(schema: Sequence[dict[int, Any]]) -> Iterator[str]:
    """Yield the names of the columns in ``schema``: a root, and its children depth first."""
    within = 0
    for element in schema[1:]:
        if within == 0:
            yield element[_NAME].decode("utf-8", "replace")
            within = 1
        within += element.get(_CHILDREN, 0) - 1


def _chunks(footer: dict[int, Any]) -> Iterator[tuple[str, _Chunk]]:
    for group in footer[_ROW_GROUPS]:
        for column in group[_COLUMNS]:
            described = column[_META_DATA]
            path = described[_PATH]
            if len(path) > 1:  # a column within a column
                continue
            data = described[_DATA_PAGE]
            # Writers leave out the dictionary page, or write 0.
            begin = described.get(_DICTIONARY_PAGE) or data
            statistics = described.get(_STATISTICS, {})
            bounded = _MINIMUM in statistics and _MAXIMUM in statistics
            chunk = _Chunk(
                begin=begin,
                data=data,
                end=begin + described[_COMPRESSED],
                values=described[_VALUES],
                nulls=statistics.get(_NULLS),
                bounds=(statistics[_MINIMUM], statistics[_MAXIMUM]) if bounded else None,
            )
            yield path[0].decode("utf-8", "replace"), chunk


def _values(chunks: Sequence[_Chunk]) -> int:
    return sum(chunk.values for chunk in chunks)


def _values_of_pages(file: FileIO, chunk: _Chunk) -> int:
    """Return how many values the pages of ``chunk`` have, by their headers.

    Raises ``ValueError``, ``LookupError`` or ``TypeError`` where they cannot be decoded, or do not
    fill the chunk.
    """
    at, values, first = chunk.begin, 0, 0
    while at < chunk.end:
        header, length = decoded(_at(file, at, min(_AHEAD, chunk.end - at)))
        if described := _DATA_PAGES.get(header[_PAGE_TYPE]):
            count = header[described][_PAGE_VALUES]
            first = first or at
            if count < 0:
                raise ValueError("a page has a negative number of values")
            values += count
        at += length + header[_PAGE_COMPRESSED]
        if header[_PAGE_COMPRESSED] < 0 or at > chunk.end:
            raise ValueError("a page is outside its column")
    if values and first != chunk.data:
        raise ValueError("the first page is not where the footer has it")
    return values


def _difference(read: pl.Series, chunks: Sequence[_Chunk]) -> str | None:
    if _values(chunks) != len(read):
        return "has another number of rows than in the footer"
    nulls = [chunk.nulls for chunk in chunks if chunk.nulls is not None]
    if len(nulls) == len(chunks) and sum(nulls) != read.null_count():
        return "has another number of nulls than in the footer"
    bounds = [chunk.bounds for chunk in chunks if chunk.nulls != chunk.values]
    stated = [bound for bound in bounds if bound is not None]
    if not read.dtype.is_integer() or not stated or len(stated) < len(bounds):
        return None
    signed = read.dtype.is_signed_integer()
    least = min(int.from_bytes(bound, "little", signed=signed) for bound, _ in stated)
    most = max(int.from_bytes(bound, "little", signed=signed) for _, bound in stated)
    found_least, found_most = read.min(), read.max()
    if (found_least, found_most) == (least, most):
        return None
    return f"is {found_least!r} to {found_most!r}, in the footer {least} to {most}"


_DEEPEST: Final = 16
"""Structs and lists within each other; a Parquet footer has six."""
_LONGEST_VARINT: Final = 64
"""Bits of an integer."""
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    9,
    10,
    12,
)
_FIXED: Final = {_BYTE: 1, _DOUBLE: 8}
_LONG_LIST: Final = 15


def decoded(data: bytes) -> tuple[dict[int, Any], int]:
    """Return the fields of the struct at the beginning of ``data`` by number, and its length.

    Integers are ``int``, booleans ``bool``, texts and doubles ``bytes``. Raises ``ValueError``
    where ``data`` is not a struct, ends before it does, or has a map; Parquet's structs have none.
    """
    try:
        return _struct(data, 0, 0)
    except IndexError:
        raise ValueError("it ends before its last field") from None


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the struct of ``data`` at ``at``, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:
            number, at = _signed(data, at)
        if _I16 <= kind <= _I64:
            # Most integers have one byte.
            value = data[at]
            if value < 128:
                at += 1
                fields[number] = value >> 1 ^ -(value & 1)
            else:
                fields[number], at = _signed(data, at)
        elif kind <= _FALSE:
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == _BINARY or kind in _FIXED:
        size, at = _unsigned(data, at) if kind == _BINARY else (_FIXED[kind], at)
        if size > len(data) - at:
            raise ValueError("a text is longer than the file")
        return data[at : at + size], at + size
    if _I16 <= kind <= _I64:
        return _signed(data, at)
    if depth == _DEEPEST:
        raise ValueError("structs are nested too deep")
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_LIST, _SET):
        return _list(data, at, depth + 1)
    raise ValueError(f"a field has the type {kind}")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == _LONG_LIST:
        size, at = _unsigned(data, at)
    # An element has a byte at least.
    if size > len(data) - at:
        raise ValueError("a list is longer than the file")
    if kind in (_TRUE, _FALSE):
        kind = _BYTE
    values = []
    for _ in range(size):
        value, at = _value(data, at, kind, depth)
        values.append(value)
    return values, at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value, shift = byte & 127, 7
    while byte > 127:
        if shift > _LONGEST_VARINT:
            raise ValueError("an integer has more than 64 bits")
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        shift += 7
    return value, at + 1


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at
