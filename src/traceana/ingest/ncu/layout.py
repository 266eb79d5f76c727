"""Where the rows of a quoted CSV table are, and which of them are plain.

The bytes of the file are compared all at once, and a bit for each says whether it is a quote; a
table of Nsight Compute has some hundred quotes in every kilobyte, and a loop over rows in Python
takes longer than the decoder of CSV.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

_QUOTE, _COMMA, _NEWLINE, _ZERO = b'",\n\0'
_WORD: Final = 64
"""Bytes whose bits are in one number."""
_SHIFT: Final = np.uint64(6)
_ONE: Final = np.uint64(1)
_BLOCK: Final = 1 << 21
"""Bytes that are compared at once; larger blocks do not fit the processor's cache."""
_ROW_START: Final = re.compile(rb'"\d*","')
"""The number of the launch; empty in the row of units."""
_WINDOW: Final = 24
"""Bytes of a line that are looked at together: numbers of launches are shorter."""

Numbers = NDArray[np.int64]
Marks = NDArray[np.uint64]
Flags = NDArray[np.bool_]


class Layout:
    """The rows of ``content`` between ``begin`` and ``end``.

    A row begins at one of ``starts``, with a line that begins with the number of a launch in
    quotes, and includes all lines up to the next row. ``bounds`` are the starts and the end of
    the last row.
    """

    def __init__(self, content: bytes, begin: int, end: int) -> None:
        """Find the rows."""
        self._content = content
        self._bytes = np.frombuffer(content, np.uint8)
        lines = self._lines(begin, end)
        self.starts = lines[self._are_starts(lines)]
        self.bounds = np.append(self.starts, end)

    def rows(self, first: int, after: int) -> memoryview:
        """Return the text of rows ``first`` to ``after - 1``, without the newline at its end."""
        last = after == len(self.starts)
        return memoryview(self._content)[self.bounds[first] : self.bounds[after] - (not last)]

    def plain_rows(self, widths: range) -> Flags:
        """Return which rows have one of ``widths`` cells, all quoted, and no other quotes.

        A row with a zero byte, or with anything behind its last quote, is not plain.
        """
        quotes, ends, odd = self._counts()
        cells = ends + 1
        plain: Flags = (
            (quotes == 2 * cells) & (cells >= widths.start) & (cells < widths.stop) & (odd == 0)
        )
        last = self.bounds[1:] - 2
        last[-1:] += 1
        plain &= self._bytes[last] == _QUOTE
        return plain

    def _counts(self) -> NDArray[np.int64]:
        """Return how many quotes, ends of cells before another, and odd bytes are in each row.

        A zero byte is odd, and so is a cell of one comma: it looks like the end of a cell and like
        the beginning of the next.
        """
        before = np.zeros((3, len(self.bounds)), np.int64)
        total = np.zeros(3, np.int64)
        has_zeros = b"\0" in self._content
        for at in range(0, len(self._bytes) + 1, _BLOCK):
            some = self._bytes[at : at + _BLOCK + _WORD]
            quotes = _marks(some, _QUOTE)
            ends = quotes & _next(_marks(some, _COMMA), 1) & _next(quotes, 2)
            odd = ends & _next(ends, 2)
            if has_zeros:
                odd |= _marks(some, _ZERO)
            first, after = np.searchsorted(self.bounds, (at, at + _BLOCK))
            within = (self.bounds[first:after] - at).view(np.uint64)
            word, below = within >> _SHIFT, (_ONE << (within & (_WORD - 1))) - _ONE
            for count, marks in enumerate((quotes, ends, odd)):
                if marks is odd and not odd.any():
                    before[count, first:after] = total[count]
                    continue
                sums = np.concatenate(([0], np.cumsum(_ones(marks))))
                before[count, first:after] = total[count] + sums[word] + _ones(marks[word] & below)
                total[count] += sums[-2]
        return np.diff(before)

    def _lines(self, begin: int, end: int) -> Numbers:
        """Return where the lines between ``begin`` and ``end`` begin."""
        behind = [
            np.flatnonzero(self._bytes[at : min(at + _BLOCK, end)] == _NEWLINE) + (at + 1)
            for at in range(begin, end, _BLOCK)
        ]
        lines = np.concatenate(([begin], *behind))
        return lines[lines < end]

    def _are_starts(self, lines: Numbers) -> Flags:
        """Return which of ``lines`` begin with the number of a launch."""
        found = np.zeros(len(lines), np.bool_)
        # Lines so near the end that they have no whole window are matched one by one.
        windowed = int(np.searchsorted(lines, len(self._content) - _WINDOW))
        windows = np.ndarray(
            max(0, len(self._content) - _WINDOW), f"V{_WINDOW}", self._content, strides=(1,)
        )
        text = windows[lines[:windowed]].view(np.uint8).reshape(-1, _WINDOW)
        unsure = np.flatnonzero(text[:, 0] == _QUOTE)
        for at in range(1, _WINDOW - 2):
            character = text[unsure, at]
            ended = unsure[character == _QUOTE]
            found[ended] = (text[ended, at + 1] == _COMMA) & (text[ended, at + 2] == _QUOTE)
            unsure = unsure[(character >= ord("0")) & (character <= ord("9"))]
            if not len(unsure):
                break
        for line in (*unsure.tolist(), *range(windowed, len(lines))):
            found[line] = _ROW_START.match(self._content, lines[line]) is not None
        return found


def _marks(some: NDArray[np.uint8], byte: int) -> Marks:
    """Return a bit for each byte of a block and of the word behind it, whether it is ``byte``."""
    packed = np.zeros((_BLOCK + _WORD) // 8, np.uint8)
    marked = np.packbits(some == byte, bitorder="little")
    packed[: len(marked)] = marked
    return packed.view("<u8")


def _next(marks: Marks, places: int) -> Marks:
    """Return ``marks`` such that each has the bit of the byte ``places`` behind it."""
    shifted = marks >> np.uint64(places)
    shifted[:-1] |= marks[1:] << np.uint64(64 - places)
    return shifted


def _ones(words: Marks) -> Numbers:
    """Return how many bits of each word are set."""
    # Sums of neighbours, of twice as many bits in each line; numpy 1 has no function for it.
    ones = words - ((words >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = np.uint64(0x3333333333333333)
    ones = (ones & fours) + ((ones >> np.uint64(2)) & fours)
    ones = (ones + (ones >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    sums: Numbers = ((ones * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)
    return sums
