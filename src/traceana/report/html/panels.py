"""The panels of a picture as charts of a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from traceana.report import numbers
from traceana.report.columns import Kind
from traceana.report.html.pictures import PALETTE
from traceana.report.page import Axis, Chart, Column, Marks
from traceana.report.panels import Axis as PanelAxis
from traceana.report.panels import Line, Panel, Panels

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
