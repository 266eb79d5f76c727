"""The rows of a study as tables of text: a row a run, or a row an item and the runs beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from traceana.report.columns import Shown, show, title_of
from traceana.report.grid import GAP, narrowed
from traceana.report.study.columns import Layout

RUN: Final = "run"
SOURCE: Final = "source"
_IN_HEADING: Final = "network"
"""Named above the tables where it is one."""
_STATUS: Final = "status"
_ENDLESS: Final = 10_000
_HEADER_LINES: Final = 4

Table = list[Shown]


def tables(frame: pl.DataFrame, layout: Layout, width: int | None = None) -> list[Table]:
    """Return the runs' rows of ``frame`` as ``layout`` has them; none where there are no rows.

    With figures they are side by side, in as many tables below each other as ``width`` makes of
    them, or a row a run and item where that takes half the lines. A cell is that of its item and
    run; of several rows of both the cells are joined.
    """
    own = frame.filter(pl.col(SOURCE).is_null()) if SOURCE in frame.columns else frame
    known = [column for column in layout.columns if column in own.columns]
    if own[_IN_HEADING].n_unique() == 1 and own[_IN_HEADING][0] is not None:
        known.remove(_IN_HEADING)
    if own.is_empty():
        return []
    if _STATUS in known and (own[_STATUS] == "ok").all():
        known.remove(_STATUS)
    optional = [title_of(column) for column in layout.optional]
    if not layout.figures:
        columns = show(own, {}, known)
        return [columns if width is None else narrowed(columns, width, optional)]
    beside = _side_by_side(own, known, layout, optional, width)
    listed = narrowed(_listed(own, known, layout), width or _ENDLESS, optional)
    fits = width is None or _width(listed) <= width
    return [listed] if fits and 2 * _lines([listed]) <= _lines(beside) else beside


def _side_by_side(
    own: pl.DataFrame, known: list[str], layout: Layout, optional: list[str], width: int | None
) -> list[Table]:
    keys = show(own.unique(known, keep="first", maintain_order=True), {}, known)
    figures = [table for figure in layout.figures if (table := _beside(own, known, figure))]
    fewer = [key for key in keys if key.title not in optional]
    whole, short = _fitting(keys, figures, width), _fitting(fewer, figures, width)
    return short if len(short) < len(whole) else whole


def _listed(own: pl.DataFrame, known: list[str], layout: Layout) -> Table:
    """Return a row a run and item, the runs of an item below each other."""
    items = own.select(known).unique(keep="first", maintain_order=True).with_row_index("_item")
    rows = own.join(items, on=known, how="left", nulls_equal=True, maintain_order="left")
    return show(rows.sort("_item", maintain_order=True), {}, [*known, RUN, *layout.figures])


def _lines(tables: Sequence[Table]) -> int:
    return sum(_HEADER_LINES + len(table[0].cells) for table in tables)


def printed(frame: pl.DataFrame, layout: Layout) -> dict[str, Table]:
    """Return what papers printed, by where it stands: a row a run and item."""
    if SOURCE not in frame.columns:
        return {}
    columns = [RUN, *(name for name in (*layout.columns, *layout.figures) if name != RUN)]
    theirs = frame.filter(pl.col(SOURCE).is_not_null())
    return {
        str(source): show(rows, {}, [name for name in columns if name != SOURCE])
        for (source,), rows in theirs.group_by(SOURCE, maintain_order=True)
    }


def _beside(frame: pl.DataFrame, keys: list[str], figure: str) -> Table:
    """Return a column a run of ``figure``, all in one unit; nothing where no run tells it."""
    place = {
        item: at
        for at, item in enumerate(
            frame.unique(keys, keep="first", maintain_order=True).select(keys).iter_rows()
        )
    }
    rows = [place[item] for item in frame.select(keys).iter_rows()]
    columns = []
    for whole in show(frame, {}, [figure]):
        for run in frame[RUN].unique(maintain_order=True):
            cells: list[list[str]] = [[] for _ in place]
            for row, own, cell in zip(rows, frame[RUN], whole.cells, strict=True):
                if own == run and cell:
                    cells[row].append(cell)
            unit = f"{whole.title} {whole.unit}".rstrip()
            joined = [", ".join(cell) for cell in cells]
            if any(joined):
                columns.append(replace(whole, title=run, cells=joined, unit=unit))
    return columns


def _fitting(keys: Table, figures: Sequence[Table], width: int | None) -> list[Table]:
    tables: list[Table] = []
    for columns in figures:
        if tables and (width is None or _width([*tables[-1], *columns]) <= width):
            tables[-1] += columns
        else:
            tables.append([*keys, *columns])
    return tables or [keys]


def _width(columns: Sequence[Shown]) -> int:
    widths = [max(map(len, (column.title, column.unit, *column.cells))) for column in columns]
    return sum(widths) + GAP * (len(widths) - 1)
