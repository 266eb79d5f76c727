"""Lengths in an Arrow stream, checked against the file before it is decoded.

A decoder allocates what a length asks for, and aborts the process where memory is short. The stream
is a sequence of messages, https://arrow.apache.org/docs/format/Columnar.html: the size of a
flatbuffer, the flatbuffer, and a body, whose length is in the flatbuffer.
"""

from __future__ import annotations

import struct
from enum import Enum
from operator import add
from os import SEEK_END
from pathlib import Path
from typing import Final

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
            some = stream.read(_AHEAD)
            begin = 8 if some[:4] == _CONTINUATION else 4
            (length,) = struct.unpack("<i", some[begin - 4 : begin].ljust(4, b"\0"))
            if length == 0:
                return End.MARK if at + begin >= size else End.DATA
            if not 0 < length <= size - at - begin:
                raise ValueError("a message is longer than the file")
            if len(some) < begin + length:
                some += stream.read(begin + length - len(some))
            try:
                body = _body_length(some[begin : begin + length], size - at - begin - length)
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
            _check_batch(message, batch, body)
    return body


def _check_batch(message: bytes, batch: int, body: int) -> None:
    place = _field(message, batch, _LENGTH)
    lengths = [_i64(message, place)] if place else []
    lengths += _pairs(message, batch, _NODES)[::2]
    buffers = _pairs(message, batch, _BUFFERS)
    # Columns of nulls have rows without a byte.
    if body and any(not 0 <= length <= _MOST_BITS * body for length in lengths):
        raise ValueError("a batch has more rows than bits")
    offsets, sizes = buffers[::2], buffers[1::2]
    if min((*offsets, *sizes), default=0) < 0 or max(map(add, offsets, sizes), default=0) > body:
        raise ValueError("a buffer is outside its body")


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
