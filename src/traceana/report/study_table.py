"""The rows of a study as columns of text: a row a run, or a row an item and the runs beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from traceana.report.columns import Shown, show
from traceana.report.grid import GAP
from traceana.report.study_columns import Layout

RUN: Final = "run"


def shown(frame: pl.DataFrame, layout: Layout, width: int | None = None) -> list[Shown]:
    """Return the columns of ``frame`` as ``layout`` has them; figures that ``width`` takes.

    A cell of a figure is that of its item and run; of several rows of both the cells are joined.
    """
    known = [column for column in layout.columns if column in frame.columns]
    if not layout.figures or frame.is_empty():
        return show(frame, {}, known)
    figures = [figure for figure in layout.figures if figure in frame.columns]
    whole = _beside(frame, known, figures)
    while width is not None and len(figures) > 1 and _width(whole) > width:
        figures.pop()
        whole = _beside(frame, known, figures)
    return whole


def _beside(frame: pl.DataFrame, keys: list[str], figures: list[str]) -> list[Shown]:
    items = frame.unique(keys, keep="first", maintain_order=True)
    place = {item: at for at, item in enumerate(items.select(keys).iter_rows())}
    rows = [place[item] for item in frame.select(keys).iter_rows()]
    runs = _series(frame)
    columns = show(items, {}, keys)
    for figure in figures:
        # Shown together, all runs have one unit.
        for whole in show(frame, {}, [figure]):
            for run in dict.fromkeys(runs):
                cells: list[list[str]] = [[] for _ in place]
                for row, own, cell in zip(rows, runs, whole.cells, strict=True):
                    if own == run and cell and cell not in cells[row]:
                        cells[row].append(cell)
                columns.append(
                    replace(
                        whole,
                        title=run,
                        cells=[", ".join(cell) for cell in cells],
                        unit=f"{whole.title} {whole.unit}".rstrip(),
                    )
                )
    return columns


def _series(frame: pl.DataFrame) -> list[str]:
    """Return the label of each row's run; a printed one says where it stands."""
    if "source" not in frame.columns:
        return frame[RUN].to_list()
    return [
        run if source is None else f"{run} ({source})"
        for run, source in frame.select(RUN, "source").iter_rows()
    ]


def _width(columns: list[Shown]) -> int:
    return sum(
        max(map(len, (column.title, column.unit, *column.cells))) + GAP for column in columns
    )
