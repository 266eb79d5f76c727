"""The tables of rocprof's CSV: their kind and cells, whichever version wrote them.

Each version has other titles in another order (``KernelName``, ``Kernel_Name``; ``BeginNs``,
``Start_Timestamp``; ``LDS_Block_Size``, ``Lds_Block_Size``), quotes or none, and columns that only
it has. A table is therefore known by the titles that it must have, and a cell by its title without
case and underscores.
"""

from __future__ import annotations

import re
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
from traceana.readers.rocprof.columns import COUNTER, CSV, Kind

_BEGIN: Final = r'^(?:"|\d|[A-Z][A-Z_]{3,},)'
"""How a row begins: with a quoted text, a number, or a kind of rocprofv3's without its quotes."""
_PAIRS: Final = [[rocprof_title(words) for words in pair] for pair in ROCPROF_TITLES]
_HEADER: Final = "|".join(
    (
        *(rf"(?i:{first}.*{second}|{second}.*{first})" for first, second in _PAIRS),
        f"^(?:{SUMMARY_TITLES})",
    )
)
_MOST_LAYOUTS: Final = 64
_MOST_TITLES: Final = 2000
_LONGEST_HEADER: Final = 1 << 16


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
    """The rows of one table."""

    kind: Kind
    version: str
    """The profiler that wrote it: ``rocprof``, ``rocprofv2`` or ``rocprofv3``."""
    cells: pl.DataFrame
    """A column of texts for each known title, by the name of its cell. Columns of counters are
    named by :data:`COUNTER` and their title."""


class FileTables(msgspec.Struct, frozen=True):
    """The tables of a file, and its damage."""

    tables: list[Table]
    malformed: int
    """Lines that begin as rows do, and have other cells."""
    not_utf8: int
    """Rows with bytes that are not UTF-8."""
    zeros: int
    """Zero bytes."""
    cut: bool
    """Whether the file ends within a row."""


def csv_tables(content: bytes) -> FileTables:
    """Return the tables in ``content``; other lines are those of a log or a paste."""
    content = plain_text(content)
    lines = printed_lines(content)["line"]
    tables: list[Table] = []
    malformed = cut = 0
    for number, table in enumerate(merge_tables(find_tables(lines.filter(lines != ""), _HEADER))):
        begins = table.rows.str.contains(_BEGIN)
        header = table.header if len(table.header) <= _LONGEST_HEADER else ""
        titles = [title.strip() for title in split_csv(header)]
        kind, names = _layout(titles)
        if kind is None or number >= _MOST_LAYOUTS:
            # The rows of a summary, which repeat those of the traces, are not looked for.
            lost = begins & (re.match(SUMMARY_TITLES, header) is None)
        else:
            columns = distinct([name or f"({at})" for at, name in enumerate(names)])
            unquoted = "name" if "name" in names else "function"
            rows, lost = csv_rows(table.rows, columns, begins, unquoted)
            # The first of several columns with one name is read.
            kept = [column for column, name in zip(columns, names, strict=True) if name == column]
            version = "rocprofv2" if "GPU_ID" in titles else "rocprofv3"
            if "KernelName" in titles:
                version = "rocprof"
            tables.append(Table(kind, version, rows.select(kept)))
        malformed += int(lost.sum())
        if table.is_last and not content.endswith(b"\n"):
            cut = int(lost[-1])
    not_utf8 = int(lines.str.contains("\ufffd", literal=True).sum())
    return FileTables(tables, malformed - cut, not_utf8, content.count(b"\0"), cut=cut > 0)


def named_cells(texts: pl.DataFrame) -> tuple[Kind | None, pl.DataFrame]:
    """Return the kind of a table whose columns are the titles, and its cells by name."""
    kind, names = _layout(texts.columns)
    columns = zip(texts.columns, names, strict=True)
    return kind, pl.DataFrame({name: texts[title] for title, name in columns if name})


def _layout(titles: list[str]) -> tuple[Kind | None, list[str]]:
    """Return the kind of a table with ``titles``, and the cell of each title, else empty."""
    plain = [re.sub("[^a-z0-9]", "", title.lower()) for title in titles]
    names = [CSV[title].column if title in CSV else "" for title in plain]
    kind = next((kind for kind, needed in _NEEDED.items() if needed <= {*names}), None)
    if "sample" in names:
        kind = Kind.OTHER
    if len(titles) > _MOST_TITLES:
        kind = None
    if kind in (Kind.KERNELS, Kind.LAUNCHES):
        # rocprof and rocprofv2 print a column for each counter.
        for at, title in enumerate(titles):
            if title and plain[at] not in CSV:
                names[at] = f"{COUNTER}{title}"
    return kind, names
