"""The rows of the traces that nvprof prints: ``--print-gpu-trace``, ``--print-api-trace``.

A log has the program's own output before, between and behind them, several tables where several
processes ran, lines that are indented or coloured, and cells in two layouts: padded columns, and
CSV with a line of units. Rows are therefore found by their beginning, a time, behind a header.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import msgspec
import polars as pl

from traceana.ingest.detect import NVPROF_TITLES
from traceana.ingest.printed_text import csv_rows, distinct, printed_lines, split_csv

_HEADER: Final = f"^{NVPROF_TITLES}"
_FIRST_TIME: Final = r'^(?:"?[\d.]+"?,|[\d.]+(?:ns|us|ms|s) )'
_UNITS: Final = r"^(?:[a-zA-Z/%]*,)+[a-zA-Z/%]*$"
_NAME: Final = "Name"
_OWN_UNIT: Final = re.compile(r"(.*?) ?\((ns|us|ms|s|bytes)\)")
"""A title of the Visual Profiler: ``Duration(ns)``."""
_MOST_LAYOUTS: Final = 64
"""Layouts of a file that are read; a log has one or two."""
_LONGEST_HEADER: Final = 1 << 16
_MOST_TITLES: Final = 500
"""Columns of a table that is read; the Visual Profiler's has one for each of a hundred counters."""


class Rows(msgspec.Struct, frozen=True):
    """The rows of one layout: ``cells`` has a column of texts per title, null where it is empty.

    ``units`` has the unit of the columns whose cells are numbers without one.
    """

    cells: pl.DataFrame
    units: dict[str, str]


class Printed(msgspec.Struct, frozen=True):
    """All rows of a file. ``malformed`` lines begin as rows do, and have other cells;
    ``not_utf8`` rows have bytes that are not UTF-8.
    """

    layouts: list[Rows]
    malformed: int
    not_utf8: int


def printed_rows(content: bytes) -> Printed:
    """Return the rows of all tables in ``content``."""
    lines = printed_lines(content)
    # An eager query searches a text again for each column that asks: what begins a table first.
    found = lines.with_columns(_starts()).select(_parts()).filter(_of_table())
    layouts, malformed = [], 0
    known = found.lazy().select("header", "units").unique(maintain_order=True).collect()
    for header, units in known.head(_MOST_LAYOUTS).iter_rows():
        rows = found if known.height == 1 else found.filter(header=header, units=units)
        separator = "," if "," in header else "\t"
        if header.count(separator) >= _MOST_TITLES or len(header) > _LONGEST_HEADER:
            malformed += rows.height
            continue
        read = _csv if separator == "," else _columns
        part, lost = read(rows["line"], header, units)
        malformed += lost
        if part.cells.width:
            layouts.append(part)
    if known.height > _MOST_LAYOUTS:
        others = known.slice(_MOST_LAYOUTS)
        malformed += found.join(others, on=["header", "units"], how="semi").height
    not_utf8 = 0
    if not content.isascii():
        not_utf8 = int(found["line"].str.contains("\ufffd", literal=True).sum())
    return Printed(layouts, malformed, not_utf8)


@cache
def _starts() -> list[pl.Expr]:
    """Return whether a line is a header, and whether it could be the units below one.

    The expressions are made once: a sweep has hundreds of small files.
    """
    line = pl.col("line")
    return [
        line.str.contains(_HEADER).alias("is_header"),
        line.str.contains(_UNITS).alias("like_units"),
    ]


@cache
def _parts() -> list[pl.Expr]:
    """Return each line, the header and the units that it is below, and whether it is neither."""
    line, is_header = pl.col("line"), pl.col("is_header")
    is_units = is_header.shift(1, fill_value=False) & pl.col("like_units")
    # Of the headers alone, not of all lines: each line has the number of the last one.
    titles = line.filter(is_header).str.replace_all(" {2,}", "\t")
    number = is_header.cum_sum().cast(pl.Int64)
    units = pl.when(is_units).then(line).when(is_header).then(pl.lit(""))
    return [
        line,
        titles.gather(pl.when(number > 0).then(number - 1)).alias("header"),
        units.forward_fill().alias("units"),
        (is_header | is_units).not_().alias("row"),
    ]


@cache
def _of_table() -> pl.Expr:
    return pl.col("row") & pl.col("header").is_not_null()


def _columns(lines: pl.Series, header: str, _: str) -> tuple[Rows, int]:
    """Return the rows of padded columns, at least two spaces apart, and the number of others."""
    titles = distinct(header.split("\t"))
    cells = (
        lines.str.replace_all(" {2,}", "\t")
        .str.splitn("\t", len(titles))
        .struct.rename_fields(titles)
        .struct.unnest()
    )
    whole = cells[titles[-1]].is_not_null()
    empty = pl.when(pl.all() != "-").then(pl.all())
    restored = cells.filter(whole).with_columns(pl.col(titles[-1]).str.replace_all("\t", "  "))
    lost = int((~whole & lines.str.contains(_FIRST_TIME)).sum())
    return Rows(restored.select(empty), {}), lost


def _csv(lines: pl.Series, header: str, units: str) -> tuple[Rows, int]:
    """Return the rows of CSV, and the number of lines with other cells."""
    titles = distinct(split_csv(header.replace("\t", "  ")))
    if not titles:
        return Rows(pl.DataFrame(), {}), len(lines)
    begins = lines.str.contains(_FIRST_TIME if titles[0] != _NAME else ",")
    cells, lost = csv_rows(lines, titles, begins, _NAME)
    own = {title: _OWN_UNIT.fullmatch(title) for title in titles}
    given = dict(zip(titles, units.split(","), strict=False)) if units else {}
    for match in own.values():
        if match:
            given[match[1]] = match[2]
    renamed = cells.rename({title: match[1] for title, match in own.items() if match})
    return Rows(renamed, {t: u for t, u in given.items() if u}), lost
