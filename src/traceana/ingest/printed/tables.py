"""Text that profilers printed: lines without what a log or a paste puts around them, and cells.

Shared by the readers of nvprof's and rocprof's traces and of all profilers' summaries.
"""

from __future__ import annotations

import csv
import io
from math import ceil
from typing import Final

import polars as pl

from traceana.trace import Ledger

_QUOTED: Final = '"[^"]*"'
_CELL: Final = "\x01"
"""In place of a quoted text; no line has this character."""
_WITHIN: Final = "[^,]\x01|\x01[^,]"


def printed_lines(content: bytes) -> pl.DataFrame:
    """Return the lines of ``content`` without what a paste puts before them."""
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


def split_csv(line: str, *, strict: bool = False) -> list[str]:
    """Return the cells of ``line``; none where one has more than 128 KiB or a line's end.

    ``strict`` lines have nothing but commas between two quoted cells.
    """
    try:
        return next(csv.reader([line], strict=strict), [])
    except csv.Error:
        return []


def joined(cells: list[str], width: int, at: int) -> list[str] | None:
    """Return ``cells`` as ``width`` cells, those of a name at ``at`` without quotes as one.

    None where they are too few.
    """
    end = len(cells) - (width - 1 - at)
    return [*cells[:at], ",".join(cells[at:end]), *cells[end:]] if end > at else None


def csv_rows(
    lines: pl.Series,
    titles: list[str],
    begins: pl.Series,
    name: str = "",
    widths: range | None = None,
) -> tuple[pl.DataFrame, pl.Series]:
    """Return the cells of ``lines``, a column of texts for each title, and which lines are lost.

    ``begins`` are the lines that begin as rows do; those of them with other cells are lost. The
    column ``name``, if it is one of ``titles``, may have commas without quotes. ``widths`` are the
    numbers of cells that a row may have, those of its titles if there is none.
    """
    widths = widths or range(len(titles), len(titles) + 1)
    schema = dict.fromkeys(titles, pl.String)
    separators = lines.str.count_matches('","', literal=True)
    if (
        separators.is_between(widths.start - 1, widths.stop - 2).all()
        and (lines.str.count_matches('"', literal=True) == 2 * separators + 2).all()
        and (lines.str.starts_with('"') & lines.str.ends_with('"')).all()
    ):
        return _parsed(lines, titles), pl.zeros(len(lines), pl.Boolean, eager=True)
    # Commas outside quotes, whether quotes are paired, and whether they are around cells.
    bare = lines.str.replace_all(_QUOTED, _CELL)
    commas = bare.str.count_matches(",", literal=True)
    paired = ~bare.str.contains('"', literal=True)
    plain = paired & ~bare.str.contains(_WITHIN)
    fits = commas.is_between(widths.start - 1, widths.stop - 2)
    whole = plain & fits
    # Names without quotes have commas of their own, and quotes may stand within a name.
    other = paired & begins & ~whole & (fits if name not in titles else commas + 1 >= widths.start)
    cells = _parsed(lines.filter(whole), titles)
    if not other.any():
        return cells, begins & ~whole
    rows: dict[int, list[str | None]] = {}
    for at in other.arg_true():
        row = split_csv(lines[at], strict=name not in titles)
        if len(row) not in widths:
            row = joined(row, len(titles), titles.index(name)) or [] if name in titles else []
        if row:
            rows[at] = [cell or None for cell in [*row, *[""] * len(titles)][: len(titles)]]
    at_number = pl.Series("at", range(len(lines)), dtype=pl.UInt32)
    rest = pl.DataFrame([*rows.values()], schema, orient="row").with_columns(
        pl.Series("at", [*rows], dtype=pl.UInt32)
    )
    lost = begins & ~whole & ~at_number.is_in([*rows])
    cells = pl.concat([cells.with_columns(at_number.filter(whole)), rest]).sort("at").drop("at")
    return cells, lost


def _parsed(lines: pl.Series, titles: list[str]) -> pl.DataFrame:
    """Return the cells of ``lines``, each a row of ``titles``; what a row lacks is null."""
    # The decoder takes the number of cells from the header; a row may have fewer.
    header = ",".join(map(str, range(len(titles))))
    text = io.BytesIO("\n".join([header, *lines]).encode())
    try:
        cells = pl.read_csv(text, infer_schema=False, truncate_ragged_lines=True)
        if cells.height == len(lines):
            cells.columns = titles
            return cells
    except pl.exceptions.PolarsError:
        pass
    # The decoder takes some damaged text for more cells or rows: line by line it is what it is.
    rows = [split_csv(line) for line in lines]
    texts = {
        title: [row[i] or None if i < len(row) else None for row in rows]
        for i, title in enumerate(titles)
    }
    return pl.DataFrame(texts, dict.fromkeys(titles, pl.String))


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
    """Return ``titles`` with a number behind those that repeat an earlier one."""
    seen: dict[str, int] = {}
    found = []
    for title in titles:
        again = seen.get(title, 0)
        seen[title] = again + 1
        found.append(f"{title} ({again})" if again else title)
    return found
