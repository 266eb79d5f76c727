"""Columns side by side: numbers whole, long text cut to the width that is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from traceana.report.columns import Shown
from traceana.report.kinds import Kind
from traceana.report.text import cut_end, cut_start

GAP: Final = 2
WIDEST_TEXT: Final = 28
NARROWEST_LONG: Final = 16
COMFORTABLE_LONG: Final = 34

_CUT: Final[dict[Kind, Callable[[str, int], str]]] = {
    Kind.TEXT: cut_end,
    Kind.LONG: cut_end,
    Kind.KERNEL: cut_end,
    Kind.PATH: cut_start,
}


def compact(columns: Sequence[Shown], width: int, optional: Sequence[str] = ()) -> list[Text]:
    """Return the lines of a table that has one line of header, units in it, and no rules.

    ``optional`` as in :func:`narrowed`.
    """
    kept = narrowed([_with_unit(column) for column in columns], width, optional)
    widths = _widths(kept, width)
    return [_header(kept, widths), *_rows(kept, widths)]


def grid(
    columns: Sequence[Shown],
    width: int,
    *,
    footer: bool = False,
    groups: Sequence[tuple[str, int]] = (),
) -> list[Text]:
    """Return the lines of a table: its header, a rule, the rows, and the totals in the end.

    ``groups`` are titles above the header, each with the number of columns that it is of.
    Long columns share what the others leave of ``width``, none getting fewer than 16 characters:
    in a space too narrow for that the lines are longer than it.
    """
    widths = _widths(columns, width)
    rule = Text("─" * (sum(widths) + GAP * (len(widths) - 1)), style="dim", no_wrap=True)
    lines = [_over(groups, widths)] if groups else []
    lines.append(_header(columns, widths))
    units = [column.unit for column in columns]
    if any(units):
        lines.append(_line(columns, units, widths, "dim"))
    lines += [rule, *_rows(columns, widths)]
    if footer:
        totals = [column.total for column in columns]
        totals[0] = totals[0] or "total"
        lines += [rule, _line(columns, totals, widths, "bold")]
    return lines


def room(columns: Sequence[Shown], width: int) -> int:
    """Return how many characters of ``width`` are left; negative where ``columns`` do not fit.

    Long columns are given 34 characters, or all they need.
    """
    needed = [
        min(_natural(column), COMFORTABLE_LONG) if column.long else _natural(column)
        for column in columns
    ]
    return width - sum(needed) - GAP * (len(columns) - 1)


def _over(groups: Sequence[tuple[str, int]], widths: Sequence[int]) -> Text:
    """Return a line with the title of each group, and a rule as wide as its columns."""
    line = Text(style="bold", no_wrap=True)
    at = 0
    for title, count in groups:
        wide = sum(widths[at : at + count]) + GAP * (count - 1)
        shown = cut_end(title, wide)
        rule = "─" * (wide - cell_len(shown) - 1) if shown else " " * wide
        line.append(" " * GAP if at else "")
        line.append(f"{shown} {rule}" if shown and rule else shown or rule)
        at += count
    line.rstrip()
    return line


def _header(columns: Sequence[Shown], widths: Sequence[int]) -> Text:
    titles = [cut_end(column.title, width) for column, width in zip(columns, widths, strict=True)]
    return _line(columns, titles, widths, "bold")


def _rows(columns: Sequence[Shown], widths: Sequence[int]) -> list[Text]:
    rows = zip(*(column.cells for column in columns), strict=True)
    return [_line(columns, cells, widths) for cells in rows]


def narrowed(columns: Sequence[Shown], width: int, optional: Sequence[str]) -> list[Shown]:
    """Return ``columns`` without as many of ``optional`` (titles, the first goes first) as it
    takes for the lines to fit, with 34 characters for long columns or all they need."""
    kept = list(columns)
    for title in optional:
        widths = _widths(kept, width)
        cramped = any(
            column.long and got < min(COMFORTABLE_LONG, _natural(column))
            for column, got in zip(kept, widths, strict=True)
        )
        if not cramped and sum(widths) + GAP * (len(widths) - 1) <= width:
            break
        kept = [column for column in kept if column.title != title]
    return kept


def _with_unit(column: Shown) -> Shown:
    return replace(column, title=f"{column.title} {column.unit}".rstrip(), unit="")


def _natural(column: Shown) -> int:
    return max(map(cell_len, (column.title, column.unit, column.total, *column.cells)))


def _widths(columns: Sequence[Shown], width: int) -> list[int]:
    natural = [_natural(column) for column in columns]
    if columns[0].total == "":
        natural[0] = max(natural[0], len("total"))
    widths = [
        min(wide, max(WIDEST_TEXT, cell_len(column.title))) if column.kind is Kind.TEXT else wide
        for column, wide in zip(columns, natural, strict=True)
    ]
    long = [number for number, column in enumerate(columns) if column.long]
    taken = sum(widths) - sum(widths[number] for number in long) + GAP * (len(columns) - 1)
    left = width - taken
    # The narrowest first: what it does not need is the others'.
    for done, number in enumerate(sorted(long, key=lambda number: widths[number])):
        widths[number] = min(widths[number], max(NARROWEST_LONG, left // (len(long) - done)))
        left -= widths[number]
    return widths


def _line(
    columns: Sequence[Shown], cells: Sequence[str], widths: Sequence[int], style: str = ""
) -> Text:
    line = Text(style=style, no_wrap=True)
    for number, (column, cell, width) in enumerate(zip(columns, cells, widths, strict=True)):
        shown = _CUT[column.kind](cell, width) if column.kind in _CUT else cell
        space = " " * (width - cell_len(shown))
        line.append(" " * GAP if number else "")
        line.append(space + shown if column.right else shown + space)
    line.rstrip()
    return line
