"""The rows of a table of Nsight Compute: where they are, which are complete, and the others.

Where the rows of a quoted CSV table are, and which of them are plain. The bytes of the file are
compared all at once, and a bit for each is whether it is a quote; a table of Nsight Compute has
some hundred quotes in every kilobyte, and a loop over rows in Python takes longer than the decoder
of CSV.

The complete rows of a table of Nsight Compute, and the count of the others. A decoder of CSV fills
up a row of too few cells with nulls, and takes all rows behind a lost quote for one. Rows are
therefore found by their beginning, the launch's number in quotes, and each must have the cells of
its page: ``raw`` as many as the header, ``details`` those up to the metric's value, for its rows
end there, and at most one more than the header, as some of advice have.

Quotes and cells are counted in the whole table first, and compared with what the decoder read. Only
where they differ, the rows are counted, all at once, and those with other quotes than those around
cells decoded here.
"""

from __future__ import annotations

import csv
import re
from typing import Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceana.ingest.source import is_text

_QUOTE, _COMMA, _NEWLINE, _ZERO = b'",\n\0'
_WORD: Final = 64
"""Bytes whose bits are in one number."""
_SHIFT: Final = np.uint64(6)
_ONE: Final = np.uint64(1)
_STRETCH: Final = 1 << 21
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
        for at in range(0, len(self._bytes) + 1, _STRETCH):
            some = self._bytes[at : at + _STRETCH + _WORD]
            quotes = _marks(some, _QUOTE)
            ends = quotes & _next(_marks(some, _COMMA), 1) & _next(quotes, 2)
            odd = ends & _next(ends, 2)
            if has_zeros:
                odd |= _marks(some, _ZERO)
            first, after = np.searchsorted(self.bounds, (at, at + _STRETCH))
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
            np.flatnonzero(self._bytes[at : min(at + _STRETCH, end)] == _NEWLINE) + (at + 1)
            for at in range(begin, end, _STRETCH)
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
    packed = np.zeros((_STRETCH + _WORD) // 8, np.uint8)
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


_PROFILER: Final = b"="
"""Begins a line that the profiler prints beside the table: ``==PROF== …``."""


LAST_OF_DETAILS: Final = "Metric Value"
"""The last column that every metric's row of the page ``details`` has."""
_BLOCK: Final = 1 << 17
"""Bytes that are compared at once; larger blocks do not fit the processor's cache."""


class Rows(msgspec.Struct, frozen=True):
    """The ``table`` as CSV, without its ``malformed`` rows.

    ``truncated`` is whether the file ends within a row, ``not_utf8`` the number of rows whose text
    is not UTF-8.
    """

    table: bytes
    malformed: int
    truncated: bool
    not_utf8: int


def is_whole(table: bytes, cells: pl.DataFrame) -> bool:
    """Return whether ``cells``, read from ``table``, are all of it, and nothing else is in it.

    If so, all rows are complete: each cell has its two quotes, and between two of them is a comma
    or the end of a row. A table with other quotes or with lines beside it is not called whole.
    """
    titles = cells.columns
    header = '"' + '","'.join(titles) + '"'
    if table[: table.find(b"\n")] != header.encode() or not table.endswith((b'"', b'"\n')):
        return False
    if b"\0" in table or b"\r" in table:
        return False
    last = LAST_OF_DETAILS if LAST_OF_DETAILS in titles else titles[-1]
    if cells[last].null_count() or not is_text(table):
        return False
    found = len(titles) + sum(column.len() - column.null_count() for column in cells)
    return _counts(table) == (2 * found, found - 1)


def _counts(table: bytes) -> tuple[int, int]:
    """Return how many quotes ``table`` has, and commas or ends of lines between two quotes."""
    characters = np.frombuffer(table, np.uint8)
    # Memory that is used again stays in the cache.
    is_quote = np.empty(_BLOCK + 2, np.bool_)
    separates, ends_line = np.empty(_BLOCK, np.bool_), np.empty(_BLOCK, np.bool_)
    quotes = separators = 0
    for at in range(0, len(characters), _BLOCK):
        some = characters[at : at + _BLOCK + 2]
        between = some[1:-1]
        quote = np.equal(some, _QUOTE, out=is_quote[: len(some)])
        found = np.equal(between, _COMMA, out=separates[: len(between)])
        found |= np.equal(between, _NEWLINE, out=ends_line[: len(between)])
        found &= quote[:-2]
        found &= quote[2:]
        quotes += int(np.count_nonzero(quote[:_BLOCK]))
        separators += int(np.count_nonzero(found))
    return quotes, separators


def complete_rows(content: bytes) -> Rows:
    """Return the rows of ``content``, which begins with the header of a table.

    Lines that the profiler prints after the table are left out. Raises ``csv.Error`` if the header
    is incomplete, and ``StopIteration`` without one.
    """
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n")
    end = end_of_table(content)
    begin = content.find(b"\n", 0, end) + 1 or end
    lines = [content[:begin].removesuffix(b"\n")] if end else []
    header = next(csv.reader(map(_text, lines), strict=True))
    widths = (
        range(header.index(LAST_OF_DETAILS) + 1, len(header) + 2)
        if LAST_OF_DETAILS in header
        else range(len(header), len(header) + 1)
    )
    laid_out = Layout(content, begin, end)
    whole_text = is_text(content)
    # Row by row only where rows are to be counted.
    plain = laid_out.plain_rows(widths) if whole_text else np.zeros(len(laid_out.starts), bool)
    first = content[begin : laid_out.bounds[0]].split(b"\n")
    rows: list[bytes | memoryview] = [*lines]
    whole = [all(map(_beside, first))]
    after = 0
    for odd in [*np.flatnonzero(~plain).tolist(), len(plain)]:
        if after < odd:
            rows.append(laid_out.rows(after, odd))
            whole.append(True)
        if odd < len(plain):
            row, is_whole = _row(bytes(laid_out.rows(odd, odd + 1)).split(b"\n"), widths)
            rows += [] if row is None else [row]
            whole.append(is_whole)
        after = odd + 1
    truncated = not whole[-1] and not content.endswith(b"\n")
    # The table of a whole file is not copied.
    untouched = bool(plain.all()) and laid_out.bounds[0] == begin
    return Rows(
        table=_until(content, end) if untouched else b"\n".join(rows),
        malformed=whole.count(False) - truncated,
        truncated=truncated,
        not_utf8=0 if whole_text else sum(not is_text(bytes(row)) for row in rows),
    )


def _until(content: bytes, end: int) -> bytes:
    return content if content[end:] in (b"", b"\n") else content[:end]


def end_of_table(content: bytes) -> int:
    """Return where the last line ends that the profiler did not print, 0 where there is none."""
    end = len(content)
    while end > 0:
        begin = content.rfind(b"\n", 0, end) + 1
        if not _beside(content[begin:end]):
            return end
        end = begin - 1
    return 0


def _row(lines: list[bytes], widths: range) -> tuple[bytes | None, bool]:
    """Return the row that ``lines`` begin with, and whether there is nothing else in them.

    None where the number of its cells is not one of ``widths``.
    """
    joined = b"\n".join(lines).rstrip()
    has_zeros = b"\0" in joined
    cells_quoted = joined.count(b'","') + 1
    quoted = joined.count(b'"') == 2 * cells_quoted and joined.endswith(b'"')
    if quoted and cells_quoted in widths:
        return (None, False) if has_zeros else (joined, True)
    # A cell with quotes in it, or other lines after the row.
    reader = csv.reader((_text(line) + "\n" for line in lines), strict=True)
    try:
        cells = next(reader)
    except csv.Error:
        return None, False
    if cells[-1] == "" and joined.endswith(b","):
        cells.pop()
    row, rest = lines[: reader.line_num], lines[reader.line_num :]
    if len(cells) not in widths or has_zeros:
        return None, False
    # A row and the beginning of one have quotes; lines without are the program's.
    return b"\n".join(row), all(b'"' not in line or _beside(line) for line in rest)


def _beside(line: bytes) -> bool:
    return not line.strip() or line.startswith(_PROFILER)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
