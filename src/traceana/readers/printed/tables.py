"""Text that profilers printed as lines, tables and cells.

A table is the lines below a header, whatever program's output precedes it. Its rows are CSV
(:func:`csv_rows`), columns two spaces apart (:func:`padded_rows`) or columns below a ruler
(:func:`ruled_rows`).
"""

from __future__ import annotations

import csv
import io
import re
from itertools import pairwise
from math import ceil
from typing import Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.trace import Ledger

_QUOTED: Final = '"(?:[^"]|"")*"'
_CELL: Final = "\x01"
"""In place of a quoted text; no line has this character."""
_WITHIN: Final = "[^,]\x01|\x01[^,]"


def printed_lines(content: bytes) -> pl.DataFrame:
    """Return the lines of ``content`` without quote marks and indents of a paste."""
    line = pl.col("line")
    return raw_lines(content).select(
        line.str.strip_chars_start(" \t#>|").str.strip_chars_end("\r ")
    )


def raw_lines(content: bytes) -> pl.DataFrame:
    """Return the lines of ``content``."""
    lines = pl.read_csv(
        io.BytesIO(content.replace(b"\x01", b"?") if b"\x01" in content else content),
        has_header=False,
        separator="\x01",
        quote_char=None,
        schema={"line": pl.String},
        encoding="utf8-lossy",
        raise_if_empty=False,
    )
    return lines.fill_null("")


class PrintedTable(msgspec.Struct):
    """A printed table: its line of titles, and the lines below it up to the next header.

    ``below`` is the line of units or the ruler between ``header`` and ``rows``, empty without one.
    ``at`` is the number of the header's line, and ``is_last`` whether the text ends in ``rows``.
    """

    header: str
    below: str
    rows: pl.Series
    at: int
    is_last: bool


def find_tables(lines: pl.Series, header: str, below: str | None = None) -> list[PrintedTable]:
    """Return the tables in ``lines``.

    ``header`` is the pattern of a line of titles, ``below`` that of a line of units or a ruler.
    """
    tables = []
    for at, end in pairwise([*lines.str.contains(header).arg_true(), len(lines)]):
        second = lines[at + 1] if below is not None and at + 1 < end else ""
        if below is None or not re.search(below, second):
            second = ""
        rows = lines[at + 1 + bool(second) : end]
        tables.append(PrintedTable(lines[at], second, rows, at, is_last=end == len(lines)))
    return tables


def merge_tables(tables: list[PrintedTable]) -> list[PrintedTable]:
    """Return ``tables`` that have rows, those with the same titles and units as one.

    Titles in columns may be padded by other widths, unless the position of what is below counts.
    """
    tables_of_titles: dict[tuple[str, str], list[PrintedTable]] = {}
    for table in tables:
        if len(table.rows):
            titles = table.header if table.below else re.sub(" {2,}", "  ", table.header)
            tables_of_titles.setdefault((titles, table.below), []).append(table)
    return [
        replace(
            parts[0],
            rows=pl.concat(part.rows for part in parts),
            is_last=parts[-1].is_last,
        )
        for parts in tables_of_titles.values()
    ]


def split_csv(line: str, *, strict: bool = False) -> list[str]:
    """Return the cells of ``line``; none where one has more than 128 KiB or a line's end.

    ``strict`` lines have nothing but commas between two quoted cells.
    """
    try:
        return next(csv.reader([line], strict=strict), [])
    except csv.Error:
        return []


def joined(cells: list[str], width: int, at: int, separator: str = ",") -> list[str] | None:
    """Return ``width`` cells: those of a name at ``at``, which has separators, joined to one.

    None where the cells are too few.
    """
    end = len(cells) - (width - 1 - at)
    return [*cells[:at], separator.join(cells[at:end]), *cells[end:]] if end > at else None


def csv_rows(
    lines: pl.Series,
    titles: list[str],
    begins: pl.Series,
    name: str = "",
    widths: range | None = None,
) -> tuple[pl.DataFrame, pl.Series]:
    """Return the cells of ``lines``, a column of texts for each title, and which lines are lost.

    ``begins`` are the lines that begin as rows do; those of them with too few or too many cells are
    lost. The column ``name``, if it is one of ``titles``, may have commas without quotes.
    ``widths`` are the numbers of cells that a row may have, by default one for each title.
    """
    widths = widths or range(len(titles), len(titles) + 1)
    named = name in titles
    # Commas outside quotes, and whether quotes are around cells: in most files, all of them.
    commas = lines.str.count_matches('","', literal=True)
    plain = lines.str.starts_with('"') & lines.str.ends_with('"')
    plain &= lines.str.count_matches('"', literal=True) == 2 * commas + 2
    unquoted = (~plain).arg_true()
    bare = lines[unquoted].str.replace_all(_QUOTED, _CELL)
    commas = commas.scatter(unquoted, bare.str.count_matches(",", literal=True))
    paired = plain.clone().scatter(unquoted, ~bare.str.contains('"', literal=True))
    plain = plain.scatter(unquoted, ~bare.str.contains(f'"|{_WITHIN}'))
    fits = commas.is_between(widths.start - 1, widths.stop - 2)
    whole = plain & fits
    # The decoder takes the number of cells from the first line; a row may have fewer.
    header = pl.Series([",".join(map(str, range(len(titles))))])
    text = pl.concat([header, lines.filter(whole)]).str.join("\n").cast(pl.Binary).item()
    cells = pl.read_csv(text, infer_schema=False, truncate_ragged_lines=True)
    cells.columns = titles
    lost = begins & ~whole
    # Names without quotes have commas of their own, and quotes may stand within a name.
    rows: dict[int, list[str | None]] = {}
    has_cells = commas + 1 >= widths.start if named else fits
    for at in (lost & paired & has_cells).arg_true():
        row = split_csv(lines[at], strict=not named)
        if named and len(row) not in widths:
            row = joined(row, len(titles), titles.index(name)) or []
        if len(row) in widths:
            rows[at] = [cell or None for cell in [*row, *[""] * len(titles)][: len(titles)]]
    if rows:
        split = pl.DataFrame([*rows.values()], dict.fromkeys(titles, pl.String), orient="row")
        order = pl.Series([*whole.arg_true(), *rows]).arg_sort()
        cells = pl.concat([cells, split])[order]
        lost = lost.scatter([*rows], False)
    return cells, lost


def padded_rows(lines: pl.Series, titles: list[str]) -> tuple[pl.DataFrame, pl.Series]:
    """Return the cells of columns at least two spaces apart, and which lines have fewer cells."""
    cells = (
        lines.str.replace_all(" {2,}", "\t")
        .str.splitn("\t", len(titles))
        .struct.rename_fields(titles)
        .struct.unnest()
    )
    last = pl.col(titles[-1])
    whole = cells[titles[-1]].is_not_null()
    restored = cells.filter(whole).with_columns(last.str.replace_all("\t", "  "))
    return restored.select(pl.when(pl.all() != "-").then(pl.all())), ~whole


def ruled_rows(lines: pl.Series, titles: list[str], ruler: str) -> pl.DataFrame | None:
    """Return the cells of columns below a ruler, empty text for empty ones; None: no such ruler.

    The ruler may stand farther to the right than the titles, whose first space a paste has lost.
    """
    columns = [dashes.span() for dashes in re.finditer("-+", ruler)]
    if len(columns) != len(titles) or len(set(titles)) != len(titles):
        return None
    lengths = [end - start for start, end in columns[:-1]]
    return lines.to_frame("line").select(
        pl.col("line").str.slice(start, length).str.strip_chars(" \r").alias(title)
        for title, (start, _), length in zip(titles, columns, [*lengths, None], strict=True)
    )


def count_few_digits(ledger: Ledger, table: str, column: str, unit: str, steps: pl.Series) -> None:
    """Count values of ``column`` in ``ledger`` whose last printed digit is worth more than 1.

    ``steps`` has the worth of the last digit of each of them.
    """
    coarse = steps.filter(steps > 1)
    if coarse.is_empty():
        return
    off = f"to {ceil(float(str(coarse.max()))):,} {unit} at worst"
    if column not in ("start", "calls"):
        off += f", their sum to {ceil(coarse.sum() / 2):,} {unit}"
    ledger.add("few_digits", len(coarse), table=table, kept=True, detail=f"{column} {off}")


def distinct(titles: list[str]) -> list[str]:
    """Return ``titles`` with a number behind each title that occurred before."""
    seen: dict[str, int] = {}
    unique_titles = []
    for title in titles:
        again = seen.get(title, 0)
        seen[title] = again + 1
        unique_titles.append(f"{title} ({again})" if again else title)
    return unique_titles
