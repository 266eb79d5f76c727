"""A file's bytes in memory, and the integers in them: many at once, none of them an object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.signedinteger[Any]]
"""Row numbers of 32 bits, times of 64."""
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

PADDING: Final = 32
"""Zero bytes behind the content: whoever reads a whole word at its end reads no other memory."""

_MORE: Final = np.uint64(0x8080808080808080)
_PAYLOAD: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONES: Final = np.uint64(0x0101010101010101)
_EVEN_7: Final = np.uint64(0x007F007F007F007F)
_ODD_7: Final = np.uint64(0x7F007F007F007F00)
_EVEN_14: Final = np.uint64(0x00003FFF00003FFF)
_ODD_14: Final = np.uint64(0x3FFF00003FFF0000)
_EVEN_28: Final = np.uint64(0x000000000FFFFFFF)
_ODD_28: Final = np.uint64(0x0FFFFFFF00000000)
_ONE_BYTE: Final = np.uint64(0x7F)
_TWO_BYTES: Final = np.uint64(0x7FFF)
_1, _2, _4, _7, _56 = (np.uint64(bits) for bits in (1, 2, 4, 7, 56))


@dataclass(frozen=True, slots=True)
class Buffer:
    """``size`` bytes of content in ``data``, and the 8-byte word that begins at each of them.

    ``view`` is the same as Python sees single bytes fastest.
    """

    data: Bytes
    words: Words
    size: int
    view: memoryview

    @classmethod
    def of(cls, parts: Iterable[bytes], expected: int = 0) -> Buffer:
        """Gather ``parts``; ``expected`` bytes are set aside at first."""
        store = np.zeros(expected + PADDING, dtype=np.uint8)
        size = 0
        for part in parts:
            end = size + len(part)
            if end + PADDING > len(store):
                store = np.concatenate((store, np.zeros(max(end, len(store)), dtype=np.uint8)))
            store[size:end] = np.frombuffer(part, dtype=np.uint8)
            size = end
        words = np.ndarray((size + PADDING - 7,), dtype="<u8", buffer=store, strides=(1,))
        return cls(store, words, size, memoryview(store.data))

    def varints(self, at: Ints) -> tuple[Words, Ints]:
        """Return the varints that begin at ``at``, as unsigned 64-bit integers, and their lengths.

        A varint has 1 to 10 bytes; one that goes on behind the tenth has length 11.
        """
        word = self.words[at]
        stops = ~word & _MORE
        low = stops & (~stops + _1)
        below = low - _1
        if len(below) and below.max() <= _TWO_BYTES:
            value = word & below
            short = (value & _EVEN_7) | ((value & _ODD_7) >> _1)
            return short, np.where(below > _ONE_BYTE, 2, 1)
        length = (((below & _ONES) * _ONES) >> _56).view(np.int64)
        value = _packed(word & below & _PAYLOAD)
        if not low.all():
            self._finish(at, np.flatnonzero(low == 0), value, length)
        return value, length

    def _finish(self, at: Ints, long: Ints, value: Words, length: Ints) -> None:
        """Complete the varints of nine and more bytes, whose first eight are in ``value``."""
        ninth, tenth = self.data[at[long] + 8], self.data[at[long] + 9]
        value[long] |= (ninth & 0x7F).astype(np.uint64) << _56
        goes_on = ninth >= 0x80
        value[long] |= np.where(goes_on, tenth & 1, 0).astype(np.uint64) << (_56 + _7)
        length[long] = np.where(goes_on, np.where(tenth >= 0x80, 11, 10), 9)


def _packed(groups: Words) -> Words:
    """Close the gaps between groups of 7 bits, one a byte, in three halvings."""
    pairs = (groups & _EVEN_7) | ((groups & _ODD_7) >> _1)
    fours = (pairs & _EVEN_14) | ((pairs & _ODD_14) >> _2)
    return (fours & _EVEN_28) | ((fours & _ODD_28) >> _4)
