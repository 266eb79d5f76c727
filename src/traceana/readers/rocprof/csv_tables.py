"""The tables of rocprof's CSV: their kind and cells, whichever version wrote them.

Each version has other titles in another order (``KernelName``, ``Kernel_Name``; ``BeginNs``,
``Start_Timestamp``; ``LDS_Block_Size``, ``Lds_Block_Size``), quotes or none, and columns that only
it has. A table is therefore known by the titles that it must have, and a cell by its title without
case and underscores.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import msgspec
import polars as pl

from traceana.readers.printed.tables import (
    csv_rows,
    distinct,
    find_tables,
    merge_tables,
    printed_lines,
    split_csv,
)
from traceana.readers.printed.text import ROCPROF_TITLES, SUMMARY_TITLES, plain_text, rocprof_title
from traceana.readers.printed.titles import titles

_TITLES: Final = titles("rocprof")
COUNTER: Final = "counter "
"""Before the name of a counter in the title of its column."""
_BEGIN: Final = r'^(?:"|\d|[A-Z][A-Z_]{3,},)'
"""How a row begins: with a quoted text, a number, or a kind of rocprofv3's without its quotes."""
_PAIRS: Final = [[rocprof_title(words) for words in pair] for pair in ROCPROF_TITLES]
_HEADER: Final = "|".join(
    (
        *(rf"(?i:{one}.*{other}|{other}.*{one})" for one, other in _PAIRS),
        f"^(?:{SUMMARY_TITLES})",
    )
)
_MOST_LAYOUTS: Final = 64
_MOST_TITLES: Final = 2000
_LONGEST_HEADER: Final = 1 << 16


class Kind(Enum):
    """The kinds of tables that have a reader, and others. Launches are kernels without times."""

    KERNELS = "kernels"
    LAUNCHES = "launches"
    COUNTERS = "counters"
    COPIES = "copies"
    CALLS = "calls"
    AGENTS = "agents"
    OTHER = "other"


_NEEDED: Final = {
    # the first kind whose cells a table has
    Kind.COUNTERS: {"name", "counter", "value"},
    Kind.COPIES: {"direction", "start", "end"},
    Kind.CALLS: {"function", "start", "end"},
    Kind.OTHER: {"operation", "start"},
    Kind.AGENTS: {"node", "agent_type"},
    Kind.KERNELS: {"name", "start", "end"},
    Kind.LAUNCHES: {"name"},
}


class Table(msgspec.Struct, frozen=True):
    """One table: ``cells`` has a column of texts for each known title, by the name of its cell.

    Columns of counters are named by :data:`COUNTER` and their title. ``version`` is the profiler.
    """

    kind: Kind
    version: str
    cells: pl.DataFrame


class CsvTables(msgspec.Struct, frozen=True):
    """The tables of a file. ``malformed`` lines begin as rows do, and have other cells;
    ``not_utf8`` rows have bytes that are not UTF-8, ``zeros`` counts zero bytes. ``cut`` is whether
    the last line is part of a row.
    """

    tables: list[Table]
    malformed: int
    not_utf8: int
    zeros: int
    cut: bool


def tables_of(content: bytes) -> CsvTables:
    """Return the tables in ``content``; other lines are those of a log or a paste."""
    content = plain_text(content)
    lines = printed_lines(content)["line"]
    found: list[Table] = []
    malformed = cut = 0
    for number, table in enumerate(merge_tables(find_tables(lines.filter(lines != ""), _HEADER))):
        begins = table.rows.str.contains(_BEGIN)
        header = table.header if len(table.header) <= _LONGEST_HEADER else ""
        titles = [one.strip() for one in split_csv(header)]
        kind, named = _layout(titles)
        if kind is None or number >= _MOST_LAYOUTS:
            # The rows of a summary, which repeat those of the traces, are not looked for.
            lost = begins & (re.match(SUMMARY_TITLES, header) is None)
        else:
            columns = distinct([one or f"({number})" for number, one in enumerate(named)])
            text = "name" if "name" in named else "function"
            rows, lost = csv_rows(table.rows, columns, begins, text)
            kept = [column for column, name in zip(columns, named, strict=True) if name == column]
            of_v2 = "rocprofv2" if "GPU_ID" in titles else "rocprofv3"
            version = "rocprof" if "KernelName" in titles else of_v2
            found.append(Table(kind, version, rows.select(kept)))
        malformed += int(lost.sum())
        if table.is_last and not content.endswith(b"\n"):
            cut = int(lost[-1])
    not_utf8 = int(lines.str.contains("\ufffd", literal=True).sum())
    return CsvTables(found, malformed - cut, not_utf8, content.count(b"\0"), cut=cut > 0)


def named_cells(texts: pl.DataFrame) -> tuple[Kind | None, pl.DataFrame]:
    """Return the kind of a table whose columns are the titles, and its cells by their name."""
    kind, named = _layout(texts.columns)
    cells = {one: texts[title] for title, one in zip(texts.columns, named, strict=True) if one}
    return kind, pl.DataFrame(cells)


def _layout(titles: list[str]) -> tuple[Kind | None, list[str]]:
    """Return the kind of a table with ``titles``, and the cell of each, empty for others."""
    plain = [re.sub("[^a-z0-9]", "", title.lower()) for title in titles]
    cells = [_TITLES[title].column if title in _TITLES else "" for title in plain]
    kind = next((kind for kind, needed in _NEEDED.items() if needed <= {*cells}), None)
    if "sample" in cells:
        kind = Kind.OTHER
    if len(titles) > _MOST_TITLES:
        kind = None
    wide = kind in (Kind.KERNELS, Kind.LAUNCHES)
    return kind, [
        cell or (f"{COUNTER}{title}" if wide and title and name not in _TITLES else "")
        for cell, title, name in zip(cells, titles, plain, strict=True)
    ]
