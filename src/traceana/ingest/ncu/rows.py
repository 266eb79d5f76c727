"""The complete rows of a table of Nsight Compute, and the count of the others.

A decoder of CSV fills up a row of too few cells with nulls, and takes all rows behind a lost quote
for one. Rows are therefore found by their beginning, the launch's number in quotes, and each must
have the cells of its page: ``raw`` as many as the header, ``details`` those up to the metric's
value, for its rows end there, and at most one more than the header, as some of advice have.

Quotes and cells are counted in the whole table first, and compared with what the decoder read. Only
where they differ, the rows are counted, all at once, and those with other quotes than those around
cells decoded here.
"""

from __future__ import annotations

import csv
from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.ingest.ncu.layout import Layout
from traceana.ingest.source import is_text

_PROFILER: Final = b"="
"""Begins a line that the profiler prints beside the table: ``==PROF== …``."""


LAST_OF_DETAILS: Final = "Metric Value"
"""The last column that every metric's row of the page ``details`` has."""
_QUOTE, _COMMA, _NEWLINE = b'",\n'
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
    return b"\n".join(row), all(map(_beside, rest))


def _beside(line: bytes) -> bool:
    return not line.strip() or line.startswith(_PROFILER)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
