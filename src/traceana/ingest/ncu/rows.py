"""The complete rows of a table of Nsight Compute, and the count of the others.

A decoder of CSV fills up a row of too few cells with nulls, and takes all rows behind a lost quote
for one. Rows are therefore found by their beginning, the launch's number in quotes, and each must
have the cells of its page: ``raw`` as many as the header, ``details`` those up to the metric's
value, for its rows end there, and at most one more than the header, as some of advice have.
"""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from typing import Final

import msgspec

_ROW_START: Final = re.compile(rb'"\d*","')
"""The number of the launch; empty in the row of units."""
_PROFILER: Final = b"="
"""Begins a line that the profiler prints beside the table: ``==PROF== …``."""


LAST_OF_DETAILS: Final = "Metric Value"
"""The last column that every metric's row of the page ``details`` has."""


class Rows(msgspec.Struct, frozen=True):
    """The ``table`` as CSV, without its ``malformed`` rows.

    ``truncated`` is whether the file ends within a row, ``not_utf8`` the number of rows whose text
    is not UTF-8.
    """

    table: bytes
    malformed: int
    truncated: bool
    not_utf8: int


def complete_rows(content: bytes) -> Rows:
    """Return the rows of ``content``, which begins with the header of a table.

    Lines that the profiler prints after the table are left out. Raises ``csv.Error`` if the header
    is incomplete, and ``StopIteration`` without one.
    """
    lines = content.split(b"\n")
    while lines and _beside(lines[-1]):
        lines.pop()
    header = next(csv.reader(map(_text, lines[:1]), strict=True))
    widths = (
        range(header.index(LAST_OF_DETAILS) + 1, len(header) + 2)
        if LAST_OF_DETAILS in header
        else range(len(header), len(header) + 1)
    )
    starts = [number for number, line in enumerate(lines) if number and _ROW_START.match(line)]
    first, *others = [lines[a:b] for a, b in pairwise([1, *starts, len(lines)])]
    found = [_row(piece, widths) for piece in others]
    rows = [lines[0], *(row for row, _ in found if row is not None)]
    whole = [all(map(_beside, first)), *(whole for _, whole in found)]
    truncated = not whole[-1] and not content.endswith(b"\n")
    return Rows(
        table=b"\n".join(rows),
        malformed=whole.count(False) - truncated,
        truncated=truncated,
        not_utf8=0 if content.isascii() else sum(map(_is_not_utf8, rows)),
    )


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


def _is_not_utf8(row: bytes) -> bool:
    try:
        row.decode()
    except UnicodeDecodeError:
        return True
    return False
