"""Blocks of a page as HTML elements, and panels as charts; text from the trace is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from markupsafe import Markup

from traceana.report import numbers
from traceana.report.cells import BAR, Cells, cells_of
from traceana.report.columns import Kind
from traceana.report.html.pictures import PALETTE
from traceana.report.page import Axis, Block, Chart, Column, Marks, Table
from traceana.report.panels import Axis as PanelAxis
from traceana.report.panels import Line, Panel, Panels
from traceana.report.text import cut_distinct, cut_end, cut_path, plain

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_CHARACTERS: Final = 2_000
"""Characters of a text; a longer one is cut with an ellipsis."""

LONGEST_KERNEL: Final = 64
"""Characters of a kernel's name, about two lines; its exact value is shown on demand."""

LONGEST_PATH: Final = 28
"""Characters of a layer's path in a table of many columns: its end distinguishes layers."""

LONGEST_UNBROKEN: Final = 24
"""Characters of text that no table breaks into lines for lack of width."""

_LONGEST_WORDS: Final = 14
"""Characters of text that a table of many columns does not break."""

_MANY: Final = 11
_STYLES: Final = {8: "tight", _MANY: "many", 15: "most"}
"""What a table of more columns is called in the style sheet, beside the names above it."""


@cache
def environment() -> Environment:
    """Return the templates, which escape every text that they insert."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("traceana.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters["kind"] = _kind
    made.filters["grid"] = grid
    made.filters["command"] = command
    made.filters["charts"] = charts
    return made


def _shown(value: Any) -> Any:
    """Return text as one line without invisible and control characters, cut if it is very long."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _cut(plain(value))


def command(text: str) -> str:
    """Return the command that ``text`` begins with.

    It is empty for a machine format: that has what the page leaves out.
    """
    if "--format" in text:
        return ""
    return text.strip("()").removeprefix("traceana ").split(" ", 1)[0].rstrip(":")


def _kind(block: Block) -> str:
    """Return the name of the template's macro for ``block``."""
    return type(block).__name__.lower()


class Cell(msgspec.Struct, frozen=True):
    """A cell: its text, and its exact value where the text is rounded or cut, else empty."""

    text: str
    exact: str = ""


class Grid(msgspec.Struct, frozen=True):
    """The cells of a table: its columns, the rows, the totals, and the share of each bar.

    ``style`` has the classes of the table in the style sheet, ``styles`` those of a column's cells.
    """

    columns: list[Cells]
    rows: list[list[Cell]]
    totals: list[str]
    bars: list[float]
    style: str
    styles: list[str]


def grid(table: Table) -> Grid:
    """Return the cells of ``table``, without the column of bars, whose lengths are numbers here."""
    columns = [column for column in cells_of(table) if column.name != BAR]
    exact = [list(_exact(table, column)) for column in columns]
    crowded = len(columns) > _MANY
    shown = [_distinct(column, crowded=crowded) for column in columns]
    cells = zip(*shown, strict=True)
    rows = [
        [Cell(text, "" if value == text else value) for text, value in zip(*pair, strict=True)]
        for pair in zip(cells, zip(*exact, strict=True), strict=True)
    ]
    totals: list[str] = []
    if columns and table.totals and table.layout == "ruled":
        totals = [column.total for column in columns]
        totals[0] = totals[0] or "total"
    style = " ".join(["data", *(name for most, name in _STYLES.items() if len(columns) > most)])
    styles = [_style(column, crowded=crowded) for column in columns]
    # A table of many columns has no room for bars that can be seen.
    bars = [] if crowded or table.bars is None else table.bars_of(table.bars)
    return Grid(columns, rows, totals, bars, style, styles)


def _style(column: Cells, *, crowded: bool) -> str:
    """Return the class of the cells of ``column`` in the style sheet."""
    if column.right:
        return "n"
    longest = max(map(len, column.cells), default=0)
    if longest > LONGEST_UNBROKEN:
        return "long path" if crowded and column.kind is Kind.PATH else "long"
    return "words" if crowded and longest > _LONGEST_WORDS else ""


def _distinct(column: Cells, *, crowded: bool) -> list[str]:
    """Return the cells of ``column``, long names and paths cut so that they stay different."""
    if column.kind is Kind.KERNEL:
        return cut_distinct(column.cells, LONGEST_KERNEL, cut_end)
    if column.kind is Kind.PATH:
        width = LONGEST_PATH if crowded else LONGEST_KERNEL
        return cut_distinct(column.cells, width, cut_path)
    return column.cells


def _exact(table: Table, column: Cells) -> Iterable[str]:
    return ("" if value is None else plain(str(value)) for value in table.frame[column.name])


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


_LINES_HEIGHT = 240
_AROUND = 40
_BAR = 13
_BETWEEN = 8
_POINTS = {"x": pl.Float64, "y": pl.Float64, "series": pl.String}


def charts(picture: Panels) -> list[Chart]:
    """Return a chart for each panel of ``picture``; a series has one colour in all of them."""
    labels = [
        label
        for panel in picture.panels
        for label in (
            *(line.label for line in panel.lines if line.dash is None),
            *(bars.label for bars in panel.bars),
        )
    ]
    distinct = dict.fromkeys(labels)
    colours = {label: PALETTE[at % len(PALETTE)] for at, label in enumerate(distinct)}
    return [
        (_bars if panel.rows else _lines)(panel, panel.title or picture.title, colours)
        for panel in picture.panels
    ]


def _bars(panel: Panel, title: str, colours: Mapping[str, str]) -> Chart:
    rows = [
        (float(value), row, bars.label)
        for at, row in enumerate(panel.rows)
        for bars in panel.bars
        if (value := bars.values[at]) is not None
    ]
    frame = pl.DataFrame(rows, schema=["x", "y", "series"], orient="row")
    thick = len(rows) * _BAR + len(panel.rows) * _BETWEEN
    marks = _marks(frame, "bar", panel.x.label, colours, grouped=not frame["y"].is_unique().all())
    return Chart(
        title,
        f"Bars of {numbers.counted(len(panel.rows), 'row')}, "
        f"{len(panel.bars)} series: {', '.join(bars.label for bars in panel.bars)}.",
        _axis(panel.x),
        Axis("", Kind.TEXT),
        (marks,),
        height=_AROUND + thick,
    )


def _lines(panel: Panel, title: str, colours: Mapping[str, str]) -> Chart:
    measured = [line for line in panel.lines if line.dash is None]
    models = [line for line in panel.lines if line.dash is not None]
    y = panel.y or PanelAxis("")
    marks = []
    if models:
        marks.append(_marks(_points(models), "rule", y.label, {}))
        ends = [(line.x[-1], line.y[-1], line.label) for line in models if line.x]
        named = pl.DataFrame(ends, schema=_POINTS, orient="row")
        marks.append(Marks(named, "text", "x", "y", label="series"))
    bounds = [
        (x, low, line.label, high)
        for line in measured
        if line.low is not None and line.high is not None
        for x, low, high in zip(line.x, line.low, line.high, strict=True)
    ]
    if bounds:
        band = pl.DataFrame(bounds, schema={**_POINTS, "high": pl.Float64}, orient="row")
        marks.append(Marks(band, "band", "x", "y", y_end="high", colour="series", colours=colours))
    marks.append(_marks(_points(measured), "line", y.label, colours))
    failed = list(_failures(measured))
    if failed:
        frame = pl.DataFrame(failed, schema=_POINTS, orient="row")
        marks.append(Marks(frame, "text", "x", "y", label="series"))
    return Chart(
        title,
        f"{y.label} by {panel.x.label}: {', '.join(line.label for line in panel.lines)}.",
        _axis(panel.x, (x for line in measured for x in line.x)),
        _axis(y),
        tuple(marks),
        height=_LINES_HEIGHT,
    )


def _points(lines: Iterable[Line]) -> pl.DataFrame:
    rows = [(x, y, line.label) for line in lines for x, y in zip(line.x, line.y, strict=True)]
    return pl.DataFrame(rows, schema=_POINTS, orient="row")


def _failures(lines: Iterable[Line]) -> Iterator[tuple[float, float, str]]:
    """Yield where each line's runs failed, at the height of its largest value, and why."""
    for line in lines:
        top = max(line.y, default=1.0)
        yield from ((one.x, top, f"{line.label}: {one.reason}") for one in line.failures)


def _marks(
    frame: pl.DataFrame, shape: str, title: str, colours: Mapping[str, str], grouped: bool = False
) -> Marks:
    value = "x" if shape == "bar" else "y"
    return Marks(
        frame,
        shape,  # type: ignore[arg-type]
        "x",
        "y",
        colour="series",
        label="series",
        shown=(Column(value, title, Kind.RATIO),),
        colours=colours,
        grouped=grouped,
    )


def _axis(axis: PanelAxis, values: Iterable[float] = ()) -> Axis:
    """Return the axis; one in base 2 has a tick at each of ``values``."""
    ticks = tuple(sorted(set(values))) if axis.log == 2 else ()
    return Axis(axis.label, Kind.NUMBER, log=axis.log is not None, ticks=ticks)
