"""Decodes the data of a pickle: dictionaries, lists, tuples, texts and numbers, and nothing else.

Python's own unpickler calls the functions that a file names. This decoder has no opcode that names
a module, class or function: a pickle with one is refused. It reads the file in blocks and hands
over the items of long lists as they come, so that they need the memory of their columns alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from traceana.errors import CorruptError, NotATraceError
from traceana.readers.source import ByteSource

PROTOCOLS: Final = (2, 3, 4, 5)
_LOOK_AHEAD: Final = 2 + 255
"""Bytes of the longest opcode whose argument has a length of one byte."""
_BLOCK: Final = 1 << 20
"""Bytes after which what was made is compared with the length."""
_LONGEST: Final = 16 << 20
"""Bytes of a text; a frame's file and function have some hundred."""
_MOST_KEYS: Final = 256
"""Keys of a dictionary: numbers can be chosen so that all of them collide."""
_LEAST_BYTES: Final = 4
"""Bytes of a snapshot for each list, dictionary and mark. An empty one takes one byte of a file,
and 64 of memory."""
_FEW: Final = 1 << 20
"""So many lists, dictionaries and marks are made of any file."""
_INVALID: Final = (
    *(IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError),
    struct.error,
)
"""What invalid data raises: an empty stack, an unknown reference, an item of another type."""

_int32: Final = struct.Struct("<i").unpack_from
_uint32: Final = struct.Struct("<I").unpack_from
_uint64: Final = struct.Struct("<Q").unpack_from
_float64: Final = struct.Struct(">d").unpack_from

TakeItems = Callable[[list[Any]], int]
"""Takes items of a list, and returns their number, which the list keeps in their place."""


def decode(source: ByteSource, key: str, take: TakeItems) -> Any:
    """Return the object that the pickle in ``source`` describes.

    Items that a list appends at once are given to ``take`` if the first is a dictionary with
    ``key``. Raises ``NotATraceError`` on an opcode that is not plain data, and ``CorruptError``
    where the pickle is truncated or invalid.
    """
    decoder = _Decoder(source)
    try:
        return decoder.decode(key, take)
    except _INVALID as error:
        if decoder.is_cut():
            raise decoder.truncated() from error
        raise CorruptError(
            f"{source.path} is not a valid pickle, near byte {decoder.before + decoder.at:,}: copy "
            "it again, or write it again with torch.cuda.memory._dump_snapshot()"
        ) from error


class _Decoder:
    """Decodes one pickle; ``at`` is the opcode in ``buffer``, behind ``before`` bytes."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._blocks = source.blocks(_BLOCK)
        self._is_last = False
        self.buffer = b""
        self.before = self.at = self.end = 0

    def decode(self, key: str, take: TakeItems) -> Any:
        """Return the object. Each turn decodes one opcode; the frequent ones are asked first."""
        from_bytes = int.from_bytes
        memo: list[Any] = []
        # Items since the last mark, and since each mark before it.
        stack: list[Any] = []
        outer: list[list[Any]] = []
        made = 0
        buffer, at, end = self.buffer, 0, 0
        try:
            while True:
                if at >= end:
                    if made > _FEW + (self.before + at) // _LEAST_BYTES:
                        raise ValueError(made)
                    buffer, end = self._more(at)
                    at = 0
                opcode = buffer[at]
                if opcode == 0x6A:  # LONG_BINGET
                    stack.append(memo[_uint32(buffer, at + 1)[0]])
                    at += 5
                elif opcode == 0x68:  # BINGET
                    stack.append(memo[buffer[at + 1]])
                    at += 2
                elif opcode == 0x94:  # MEMOIZE
                    memo.append(stack[-1])
                    at += 1
                elif opcode == 0x4B:  # BININT1
                    stack.append(buffer[at + 1])
                    at += 2
                elif opcode == 0x8A:  # LONG1
                    begin = at + 2
                    at = begin + buffer[at + 1]
                    stack.append(from_bytes(buffer[begin:at], "little", signed=True))
                elif opcode == 0x28:  # MARK
                    outer.append(stack)
                    stack = []
                    made += 1
                    at += 1
                elif opcode == 0x75:  # SETITEMS
                    items, stack = stack, outer.pop()
                    _set_items(stack[-1], items)
                    at += 1
                elif opcode == 0x7D:  # EMPTY_DICT
                    stack.append({})
                    made += 1
                    at += 1
                elif opcode == 0x4A:  # BININT
                    stack.append(_int32(buffer, at + 1)[0])
                    at += 5
                elif opcode == 0x65:  # APPENDS
                    items, stack = stack, outer.pop()
                    _append(stack[-1], items, key, take)
                    at += 1
                elif opcode == 0x5D:  # EMPTY_LIST
                    stack.append([])
                    made += 1
                    at += 1
                elif opcode == 0x4D:  # BININT2
                    stack.append(buffer[at + 1] | buffer[at + 2] << 8)
                    at += 3
                elif opcode == 0x4E:  # NONE
                    stack.append(None)
                    at += 1
                elif opcode in (0x71, 0x72):  # BINPUT, LONG_BINPUT
                    is_long = opcode == 0x72
                    place = _uint32(buffer, at + 1)[0] if is_long else buffer[at + 1]
                    # Writers count the places: one far away would take the memory of all others.
                    if place == len(memo):
                        memo.append(stack[-1])
                    else:
                        memo[place] = stack[-1]
                    at += 5 if is_long else 2
                elif opcode == 0x61:  # APPEND
                    item = stack.pop()
                    _append(stack[-1], [item], key, take)
                    at += 1
                elif opcode == 0x73:  # SETITEM
                    items = stack[-2:]
                    del stack[-2:]
                    _set_items(stack[-1], items)
                    at += 1
                elif opcode == 0x8C:  # SHORT_BINUNICODE
                    begin = at + 2
                    at = begin + buffer[at + 1]
                    stack.append(buffer[begin:at].decode("utf-8", "surrogatepass"))
                elif opcode in (0x58, 0x8D):  # BINUNICODE, BINUNICODE8
                    is_long = opcode == 0x8D
                    length = (_uint64 if is_long else _uint32)(buffer, at + 1)[0]
                    begin = at + (9 if is_long else 5)
                    if length > _LONGEST:
                        raise ValueError(length)
                    if begin + length > end:
                        buffer, end = self._more(begin, length)
                        begin = 0
                    at = begin + length
                    stack.append(buffer[begin:at].decode("utf-8", "surrogatepass"))
                elif opcode in (0x88, 0x89):  # NEWTRUE, NEWFALSE
                    stack.append(opcode == 0x88)
                    at += 1
                elif opcode == 0x47:  # BINFLOAT
                    stack.append(_float64(buffer, at + 1)[0])
                    at += 9
                elif opcode == 0x29:  # EMPTY_TUPLE
                    stack.append(())
                    at += 1
                elif opcode in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
                    size = opcode - 0x84
                    if len(stack) < size:
                        raise IndexError(size)
                    stack[-size:] = [tuple(stack[-size:])]
                    at += 1
                elif opcode == 0x74:  # TUPLE
                    items, stack = stack, outer.pop()
                    stack.append(tuple(items))
                    at += 1
                elif opcode == 0x95:  # FRAME
                    at += 9
                elif opcode == 0x80:  # PROTO
                    if buffer[at + 1] not in PROTOCOLS:
                        raise self._refused(f"protocol {buffer[at + 1]}")
                    at += 2
                elif opcode == 0x2E:  # STOP
                    (result,) = stack
                    if outer:
                        raise ValueError(len(outer))
                    return result
                else:
                    raise self._refused(f"the opcode {_described(opcode)[0]}")
        finally:
            self.buffer, self.at, self.end = buffer, at, end

    def _more(self, begin: int, length: int = 0) -> tuple[bytes, int]:
        """Return the buffer from ``begin`` on, with ``length`` bytes and more, and its safe end.

        Before the safe end every opcode is complete; the last buffer has zeros behind it. Raises
        ``CorruptError`` where the file ends.
        """
        if self._is_last:
            raise self.truncated()
        self.before += begin
        parts = [self.buffer[begin:]]
        size = len(parts[0])
        for block in self._blocks:
            parts.append(block)
            size += len(block)
            if size > length + _LOOK_AHEAD:
                self.buffer = b"".join(parts)
                return self.buffer, size - _LOOK_AHEAD
        self._is_last = True
        if size <= length:
            raise self.truncated()
        self.buffer = b"".join(parts) + bytes(_LOOK_AHEAD)
        return self.buffer, size

    def is_cut(self) -> bool:
        """Return whether the end of the file cuts the opcode that was decoded last."""
        if not self._is_last or self.at >= self.end:
            return self._is_last
        return self.at + 1 + _described(self.buffer[self.at])[1] > self.end

    def truncated(self) -> CorruptError:
        """Return the error for a pickle without an end."""
        source = self._source
        size = f"{source.bytes_read:,} bytes" + ", inflated" * source.compressed
        return CorruptError(
            f"{source.path} is truncated: the pickle does not end within {size}; copy it again, or "
            "write it again"
        )

    def _refused(self, what: str) -> NotATraceError:
        return NotATraceError(
            f"{self._source.path} is a pickle with {what}, which no memory snapshot has: pass the "
            "file that torch.cuda.memory._dump_snapshot() wrote (traceana runs no pickle)"
        )


def _set_items(target: Any, items: list[Any]) -> None:
    """Set the keys and values of ``items``, which has them in turn."""
    if type(target) is not dict or len(items) % 2:
        raise TypeError
    in_turn = iter(items)
    target.update(zip(in_turn, in_turn, strict=True))
    if len(target) > _MOST_KEYS:
        raise ValueError(len(target))


def _append(target: Any, items: list[Any], key: str, take: TakeItems) -> None:
    """Append ``items``, or in their place the number that ``take`` took."""
    if type(target) is not list:
        raise TypeError
    first = items[0] if items else None
    if type(first) is dict and key in first:
        target.append(take(items))
    else:
        target.extend(items)


def _described(opcode: int) -> tuple[str, int]:
    """Return the name of ``opcode`` and the bytes of its argument, 0 where they vary."""
    # For errors alone: the module takes long to import.
    from pickletools import opcodes

    described = next((each for each in opcodes if each.code == chr(opcode)), None)
    if described is None:
        return f"0x{opcode:02X}", 0
    return described.name, 0 if described.arg is None else max(described.arg.n, 0)
