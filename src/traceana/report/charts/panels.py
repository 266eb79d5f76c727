"""The panels of comparisons and studies as charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import polars as pl

from traceana.report import numbers
from traceana.report.charts.colours import PALETTE
from traceana.report.columns import Kind
from traceana.report.page import Axis, Chart, Column, Marks
from traceana.report.panels import Axis as PanelAxis
from traceana.report.panels import Line, Panel, Panels

_LINES_HEIGHT: Final = 240
_AROUND: Final = 40
_BAR: Final = 13
_BETWEEN: Final = 8
_ROOM: Final = 1.12
_MOST_VALUES: Final = 120
"""Bars with their values written at their ends."""
_POINTS: Final = {"x": pl.Float64, "y": pl.Float64, "series": pl.String}


def panel_charts(picture: Panels) -> list[Chart]:
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
    most = max((_most(panel) for panel in picture.panels), default=0.0)
    return [
        _bars(
            panel,
            panel.title or picture.title,
            colours,
            most if picture.one_scale else _most(panel),
        )
        if panel.rows
        else _lines(panel, panel.title or picture.title, colours)
        for panel in picture.panels
    ]


def _most(panel: Panel) -> float:
    """Return the end of an axis of bars, with room for the value of the longest."""
    return _ROOM * max(
        (value for bars in panel.bars for value in bars.values if value), default=0.0
    )


def _bars(panel: Panel, title: str, colours: Mapping[str, str], most: float) -> Chart:
    rows = [
        (float(value), row, bars.label, bars.printed)
        for at, row in enumerate(panel.rows)
        for bars in panel.bars
        if (value := bars.values[at]) is not None
    ]
    schema = {"x": pl.Float64, "y": pl.String, "series": pl.String, "printed": pl.Boolean}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    written = [(x, y, series, numbers.ratio(x)) for x, y, series, _ in rows]
    written = written if len(rows) <= _MOST_VALUES else []
    written += [
        (0.0, row, bars.label, note)
        for bars in panel.bars
        for row, note in zip(panel.rows, bars.notes, strict=False)
        if note is not None
    ]
    schema = {"x": pl.Float64, "y": pl.String, "series": pl.String, "text": pl.String}
    values = pl.DataFrame(written, schema=schema, orient="row")
    places = [frame, values] if values.height else [frame]
    grouped = not all(one["y"].is_unique().all() for one in places)
    marks = [
        Marks(
            *(frame, "bar", "x", "y"),
            colour="series",
            label="series",
            shown=(Column("x", panel.x.label, Kind.RATIO),),
            colours=colours,
            grouped=grouped,
            faint="printed" if frame["printed"].any() else "",
        ),
        Marks(values, "value", "x", "y", colour="series", label="text", grouped=grouped),
    ]
    if panel.mark is not None:
        marks.append(Marks(pl.DataFrame({"x": [panel.mark]}), "rule", "x"))
    thick = max(len(rows), values.height) * _BAR + len(panel.rows) * _BETWEEN
    return Chart(
        title,
        f"Bars of {numbers.counted(len(panel.rows), 'row')}, "
        f"{len(panel.bars)} series: {', '.join(bars.label for bars in panel.bars)}.",
        _axis(panel.x, most=most),
        Axis("", Kind.TEXT),
        tuple(marks),
        height=_AROUND + thick,
    )


def _lines(panel: Panel, title: str, colours: Mapping[str, str]) -> Chart:
    measured = [line for line in panel.lines if line.dash is None]
    models = [line for line in panel.lines if line.dash is not None]
    y = panel.y or PanelAxis("")
    marks = []
    if models:
        marks.append(Marks(_points(models), "rule", "x", "y", colour="series", label="series"))
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
    shown = (Column("y", y.label, Kind.RATIO),)
    marks.append(
        Marks(
            *(_points(measured), "line", "x", "y"),
            colour="series",
            label="series",
            shown=shown,
            colours=colours,
        )
    )
    marks += [_failures(line, colours) for line in measured if line.failures]
    tried = [x for line in measured for x in (*line.x, *(one.x for one in line.failures))]
    return Chart(
        title,
        f"{y.label} by {panel.x.label}: {', '.join(line.label for line in panel.lines)}.",
        _axis(panel.x, tried),
        _axis(y),
        tuple(marks),
        height=_LINES_HEIGHT,
    )


def _points(lines: Iterable[Line]) -> pl.DataFrame:
    rows = [(x, y, line.label) for line in lines for x, y in zip(line.x, line.y, strict=True)]
    return pl.DataFrame(rows, schema=_POINTS, orient="row")


def _failures(line: Line, colours: Mapping[str, str]) -> Marks:
    """Return a cross for each failed run of ``line``, the first of a reason with that."""
    reasons: set[str] = set()
    rows = []
    for one in sorted(line.failures, key=lambda failure: failure.x):
        rows.append(
            (one.x, line.label, "\u00d7" if one.reason in reasons else f"{one.reason} \u00d7")
        )
        reasons.add(one.reason)
    schema = {"x": pl.Float64, "series": pl.String, "text": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return Marks(frame, "cross", "x", colour="series", label="text", colours=colours)


def _axis(axis: PanelAxis, values: Iterable[float] = (), most: float | None = None) -> Axis:
    """Return the axis; one in base 2 has a tick at each of ``values``."""
    ticks = tuple(sorted(set(values))) if axis.log == 2 else ()
    log = axis.log is not None
    return Axis(axis.label, Kind.NUMBER, log=log, ticks=ticks, most=None if log else most or None)
