"""Several runs side by side on the screen."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from rich.text import Text

from traceana.comparison.run_tables import Table
from traceana.report import human
from traceana.report.columns import Shown
from traceana.report.compare.beside import (
    DROPPED,
    DROPPED_ITEMS,
    Beside,
    OfRun,
    item_columns,
    legend,
    run_columns,
    summary_columns,
)
from traceana.report.document import Document, Paper
from traceana.report.grid import grid, narrowed, room
from traceana.report.terminal import draw
from traceana.report.text import plain

MOST_CLASSES: Final = 12
_OPTIONAL: Final = ("copies", "launches", "kernels")


def render(document: Document, facts: Beside, paper: Paper) -> str:
    """Return who the runs are, then their table; of the summary also the time by class."""
    shown = document.table
    parts: list[Any] = [*(Text(line) for line in legend(facts)), Text("")]
    if facts.classes is None:
        parts += _side_by_side(facts.table, shown.frame, facts.by, paper.width)
    else:
        columns = narrowed(summary_columns(shown.frame), paper.width, _OPTIONAL)
        parts += [*grid(columns, paper.width), Text("")]
        parts.append(Text("Time by class", style="bold"))
        top = facts.classes.pivot().head(MOST_CLASSES)
        parts += _side_by_side(facts.classes, top, "class", paper.width)
    if shown.hidden:
        parts.append(Text(f"… {human.counted(shown.hidden, 'row')} more (--limit 0 shows all)"))
    parts += [Text(plain(note), style="dim") for note in shown.notes]
    return draw(parts, paper)


def _side_by_side(table: Table, wide: pl.DataFrame, by: str, width: int) -> list[Text]:
    """Return the table, or several below each other where not all runs fit beside each other.

    As few columns are dropped as it takes for as few tables as possible.
    """
    if wide.is_empty():
        return []
    items, runs = item_columns(wide, by), run_columns(table, wide)
    ways = [(items, _blocks(items, runs, width))]
    for name in DROPPED:
        if name in DROPPED_ITEMS:
            items = [one for one in items if one.title != name] or items
        else:
            runs = [run.without(name) for run in runs]
        ways.append((items, _blocks(items, runs, width)))
    fitting = [way for way in ways if _fits(*way, width)] or ways[-1:]
    items, blocks = min(fitting, key=lambda way: len(way[1]))
    lines: list[Text] = []
    for block in blocks:
        groups = [("", len(items)), *((run.title, len(run.columns)) for run in block)]
        lines += [Text(""), *grid(_all(items, block), width, groups=groups)]
    return lines[1:]


def _blocks(items: list[Shown], runs: list[OfRun], width: int) -> list[list[OfRun]]:
    """Return the runs that stand beside each other, in their order."""
    blocks: list[list[OfRun]] = []
    for run in runs:
        if blocks and _fits(items, [[*blocks[-1], run]], width):
            blocks[-1].append(run)
        else:
            blocks.append([run])
    return blocks


def _fits(items: list[Shown], blocks: list[list[OfRun]], width: int) -> bool:
    return all(room(_all(items, block), width) >= 0 for block in blocks)


def _all(items: list[Shown], runs: list[OfRun]) -> list[Shown]:
    return [*items, *(column for run in runs for column in run.columns)]
