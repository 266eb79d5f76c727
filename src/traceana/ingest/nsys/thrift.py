"""Structs of Thrift's compact protocol, as the footer and the pages of a Parquet file have them.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any, Final

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
