"""A chart as a specification of Vega-Lite, which a page embeds and vl-convert draws as a file.

Text of a trace is in the values of fields with fixed names, never in the name of a field, a format
or an expression.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, isfinite, log10
from typing import Any, Final, NamedTuple

import polars as pl

from traceana.plain_text import plain
from traceana.report import display_names, numbers
from traceana.report.cells import DISPLAY_UNITS, value_text
from traceana.report.charts.colours import CLASS_COLOURS, PALETTE
from traceana.report.page import Axis, Chart, Marks
from traceana.report.text import cut_distinct, cut_middle
from traceana.table import Column, Kind

SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"

LETTER: Final = 6.6
"""Mean width of a letter in a label, pixels."""

_LONGEST: Final = 500
"""Characters of a text; longer text is cut with an ellipsis."""
_NOT_XML: Final = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")

_LONGEST_NAMES: Final = {"x": 24, "y": 48}
"""Letters of a name on an axis."""
_SHORT_NAME: Final = 20
_NARROW: Final = 800
"""Pixels of a picture below which the names on its vertical axis are short."""
_LONGEST_LEGEND: Final = 48
_TITLE_LINE: Final = 34
"""Letters in a line of the title of a horizontal axis of unknown width, as on a phone."""
_MANY: Final = 24

_FEWEST_TICKS: Final = 3
"""With fewer powers of ten, a logarithmic axis has ticks between them."""

_HEIGHT: Final = 300
_AROUND: Final = 40
_ROW: Final = 13
_BETWEEN: Final = 7
"""Pixels: of a chart without names, and of one with names around them, of a row, and between two.
"""

_ROOM: Final = 1.12
"""The length of an axis of bars with values at their ends, over the longest bar."""

_CROSS_LINE: Final = 13
"""Pixels between the lines of failures above a chart."""

_NAME: Final = {"type": "text", "align": "right", "baseline": "bottom", "dy": -2}
_HALO: Final = {**_NAME, "aria": False, "stroke": {"expr": "paper"}, "strokeWidth": 4}
"""The background around the letters of a text, which interrupts lines."""
_MARKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "point": {"type": "point", "filled": True, "opacity": 0.8, "size": 60, "color": PALETTE[0]},
    "line": {
        **{"type": "line", "strokeWidth": 2, "color": PALETTE[0]},
        "point": {"size": 45, "color": PALETTE[0]},
    },
    "band": {"type": "area", "opacity": 0.15},
    "step": {"type": "line", "strokeWidth": 1.5, "interpolate": "step-after"},
    "bar": {"type": "bar", "color": PALETTE[0]},
    "cell": {"type": "rect", "stroke": {"expr": "paper"}, "strokeWidth": 0.5},
    "rule": {"type": "line", "strokeWidth": 1.2, "strokeDash": [5, 4], "color": {"expr": "dim"}},
    "text": {**_NAME, "color": {"expr": "dim"}},
    "value": {"type": "text", "align": "left", "dx": 3, "fontSize": 10, "color": {"expr": "dim"}},
    "cross": {"type": "text", "align": "right", "dx": 4},
}


class Colours(NamedTuple):
    """Colours of CSS: of text, of notes and rules, of lines of the grid, and of the background."""

    ink: str
    dim: str
    line: str
    paper: str


PAGE: Final = Colours(*(f"var(--{name})" for name in Colours._fields))
"""Colours of the style sheet, dark where the reader prefers it."""


def config(colours: Colours) -> dict[str, Any]:
    """Return the style of all charts in ``colours``."""
    small = {"labelColor": colours.ink, "titleColor": colours.ink, "labelFontSize": 12}
    line = dict.fromkeys(("gridColor", "domainColor", "tickColor"), colours.line)
    return {
        "axis": {
            **small,
            **line,
            "titleFontSize": 12,
            "titleFontWeight": 400,
            "labelSeparation": 6,
        },
        "legend": {**small, "symbolSize": 90, "symbolOpacity": 1},
        "title": {"color": colours.ink, "subtitleColor": colours.dim, "anchor": "start"},
        "view": {"stroke": None},
    }


def parameters(colours: Colours) -> list[dict[str, Any]]:
    """Return the parameters of every specification: its ``colours``."""
    return [{"name": name, "value": value} for name, value in colours._asdict().items()]


def specification(chart: Chart) -> dict[str, Any]:
    """Return the specification of ``chart``, as wide as the element that embeds it."""
    shown = view(chart, "container")
    names = [*dict.fromkeys(_names(chart, "y").values())]
    given = {"names": names, "short": cut_distinct(names, _SHORT_NAME, cut_middle)}
    return {
        "$schema": SCHEMA,
        # The width of the element changes with `width`.
        "params": [
            *parameters(PAGE),
            {"name": "wide", "expr": "width ? containerSize()[0] : 0"},
            *({"name": name, "value": value} for name, value in given.items()),
        ],
        "autosize": {"type": "fit-x", "contains": "padding"},
        **shown,
    }


def view(chart: Chart, width: int | str, wide: int | None = None) -> dict[str, Any]:
    """Return ``chart`` as a view of a specification.

    Its axes are ``width`` pixels wide, and ``wide`` with all around them; by default, the
    specification has the parameters ``wide``, ``names`` and ``short``.
    """
    scales, names, axes = {}, {}, {}
    height = _height(chart)
    for of in ("x", "y"):
        axis: Axis = getattr(chart, of)
        values = [*_axis_values(chart.marks, of), *(axis.extent or ())]
        scales[of] = _axis_scale(axis, values)
        names[of] = _names(chart, of)
        unit = scales[of].unit
        length = {"x": width, "y": height}[of]
        letters = _TITLE_LINE if isinstance(length, str) else floor(length / LETTER)
        title = textwrap.wrap(short(f"{axis.title} ({unit})" if unit else axis.title), letters)
        if names[of]:
            drawn = _text_axis(of, names[of], wide)
        else:
            written = of == "x" and any(marks.shape == "value" for marks in chart.marks)
            drawn = _number_axis(axis, values, scales[of], _ROOM if written else 1)
        # All layers have the title: of one without it, Vega-Lite would take none for all.
        axes[of] = {"field": of, "title": title or None, **drawn}
    colours = _colours(chart)
    called = dict(zip(colours, cut_distinct([*colours], _LONGEST_LEGEND, cut_middle), strict=True))
    scale = {"domain": [*called.values()], "range": [*colours.values()]}
    beside, least = left_of(chart), round(_SHORT_NAME * LETTER) + 30
    room = f"(wide - (wide < {_NARROW} ? {min(beside, least)} : {beside}))"
    legend = _legend(chart, [*called.values()], room if wide is None else str(width))
    layers: list[dict[str, Any]] = []
    crosses = 0
    for marks in chart.marks:
        layer = _layer(marks, axes, scale, legend)
        if marks.shape == "cross":
            layer["encoding"]["y"] = {"value": -6 - crosses * _CROSS_LINE}
            crosses += 1
        layer["data"] = {"values": _rows(chart, marks, scales, names, called)}
        layers += [{**layer, "mark": _HALO}, layer] if marks.shape == "text" else [layer]
    return {"width": width, "height": height, "layer": layers}


def _height(chart: Chart) -> int:
    """Return the height of ``chart``: bars that are grouped have a row each."""
    names = len(_names(chart, "y"))
    if chart.height or not names:
        return chart.height or _HEIGHT
    rows = max(names, *(marks.frame.height for marks in chart.marks if marks.grouped), 0)
    return _AROUND + _ROW * rows + _BETWEEN * names


def left_of(chart: Chart) -> int:
    """Return the pixels that the vertical axis of ``chart`` takes."""
    longest = max(map(len, _names(chart, "y").values()), default=8)
    return round(longest * LETTER) + 12 + 18 * bool(chart.y.title)


_OF_EVERY_OBJECT: Final = frozenset(
    (
        *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable"),
        *("toLocaleString", "toString", "valueOf", "__proto__"),
        *("__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__"),
    )
)
"""Names that every object of JavaScript has: Vega groups values in one."""
_ZERO_WIDTH: Final = "\u200b"


def short(text: object) -> str:
    """Return ``text`` as a line of at most 500 characters that XML allows.

    A name that every object of JavaScript has ends with a space of no width.
    """
    shown = "" if text is None else plain(str(text))
    shown = _NOT_XML.sub(lambda match: f"\\u{ord(match.group()):04x}", shown)
    if shown in _OF_EVERY_OBJECT:
        return shown + _ZERO_WIDTH
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def tips(frame: pl.DataFrame, names: Iterable[str], shown: Iterable[Column]) -> list[str]:
    """Return for each row its ``names`` and the values of ``shown``, a line each."""
    lines = [[short(text) for text in frame[name]] for name in names]
    for column in shown:
        lines.append([_valued(column, value) for value in frame[column.name]])
    return ["\n".join(line for line in row if line) for row in zip(*lines, strict=True)]


def _valued(column: Column, value: Any) -> str:
    if value is None:
        return ""
    mean = column.kind is Kind.COUNT and isinstance(value, float)
    return f"{short(column.title)}: {value_text(Kind.MEAN if mean else column.kind, value)}"


def _names(chart: Chart, of: str) -> dict[str, str]:
    """Return the names on an axis by their texts; empty if it has numbers."""
    columns = [marks.frame[at] for marks in chart.marks if (at := getattr(marks, of))]
    texts = [short(text) for column in columns if column.dtype == pl.String for text in column]
    distinct = [*dict.fromkeys(texts)]
    return dict(zip(distinct, cut_distinct(distinct, _LONGEST_NAMES[of], cut_middle), strict=True))


def _axis_values(marks: Iterable[Marks], axis: str) -> list[float]:
    columns = ("x",) if axis == "x" else ("y", "y_end")
    return [
        float(value)
        for mark in marks
        for name in columns
        if getattr(mark, name)
        for value in mark.frame[getattr(mark, name)]
        if isinstance(value, int | float) and isfinite(value)
    ]


def _axis_scale(axis: Axis, values: list[float]) -> numbers.Scale:
    units = DISPLAY_UNITS.get(axis.kind)
    if units is None:
        whole = all(value == round(value) for value in values)
        return numbers.Scale(1, "", 0) if whole else numbers.ratio_scale(values)
    if axis.log and axis.kind is not Kind.TIME:
        # A logarithmic axis spans many units: its numbers have SI prefixes.
        return numbers.Scale(1, units[-1][1], 0)
    return numbers.scale(values, units)


def _text_axis(of: str, names: Mapping[str, str], wide: int | None) -> dict[str, Any]:
    """Return the type of an axis of names, and how they are written."""
    axis: dict[str, Any] = {"labelLimit": 400}
    if of == "x":
        turned = sum(len(name) + 1 for name in names.values()) > _TITLE_LINE
        axis |= {"labelAngle": -35 if turned else 0, "labelOverlap": len(names) > _MANY}
    elif wide is None:
        axis = {
            "labelLimit": {"expr": f"wide < {_NARROW} ? 0.4 * wide : 400"},
            "labelExpr": f"wide < {_NARROW} ? short[indexof(names, datum.value)] : datum.value",
        }
    return {"type": "nominal", "sort": None, "axis": axis}


def _number_axis(
    axis: Axis, values: list[float], unit: numbers.Scale, room: float
) -> dict[str, Any]:
    """Return the type of an axis of numbers, its scale and its ticks.

    ``values`` are shown in ``unit``; the axis is longer than the largest one by ``room``.
    """
    # A logarithmic axis has no place for the others.
    values = [value / unit.factor for value in values if value > 0 or not axis.log]
    drawn: dict[str, Any] = {"tickCount": 6}
    if axis.log and axis.kind is Kind.NUMBER:
        # Numbers that were chosen, such as batch sizes, have a tick each.
        drawn = {"values": sorted(set(values))}
    elif axis.log and (ticks := _log_ticks(values)):
        drawn["values"] = ticks
    if axis.log:
        drawn["format"] = "~s" if unit.unit and unit.factor == 1 else "~g"
        scale: dict[str, Any] = {"type": "log", "nice": False, "padding": 16}
    else:
        zero = axis.from_zero
        scale = {"type": "linear", "zero": zero, "nice": zero, "padding": 0 if zero else 12}
    if axis.kind is Kind.SHARE:
        drawn["format"] = ".0%"
    if any(values) and (axis.extent or room > 1):
        scale["domainMax"] = max(values) * room
    if any(values) and axis.extent and (axis.log or not axis.from_zero):
        scale["domainMin"] = min(values)
    return {"type": "quantitative", "scale": scale, "axis": drawn}


def _log_ticks(values: list[float]) -> list[float]:
    """Return the powers of ten among positive ``values``; if few, round multiples of them too."""
    if not values:
        return []
    low, high = min(values), max(values)
    exponents = range(floor(log10(low)), ceil(log10(high)) + 1)
    for factors in ((1,), (1, 2, 5), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)):
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= _FEWEST_TICKS:
            break
    return ticks


def _colours(chart: Chart) -> dict[str, str]:
    """Return the colour of each name in the legend, in its order."""
    coloured = [marks for marks in chart.marks if marks.colour and marks.shape != "rule"]
    used = dict.fromkeys(short(text) for marks in coloured for text in marks.frame[marks.colour])
    fixed = {short(name): code for name, code in chart.colours.items()}
    if not fixed and any(marks.colour == "category" for marks in coloured):
        # The classes have the colours of the other pictures.
        class_colours = {
            display_names.category(category): code for category, code in CLASS_COLOURS.items()
        }
        fixed = {name: class_colours.get(name, CLASS_COLOURS["other"]) for name in used}
    colours = {name: code for name, code in fixed.items() if name in used}
    for name in used:
        colours.setdefault(name, PALETTE[len(colours) % len(PALETTE)])
    return colours


def _legend(chart: Chart, names: Sequence[str], width: str) -> dict[str, Any] | None:
    """Return the legend of the colours, None where it is not needed.

    ``width`` is an expression of the width of the axes, below which it stands.
    """
    coloured = [marks for marks in chart.marks if marks.colour and marks.shape != "rule"]
    on_axis = all(_is_on_axis(marks) for marks in coloured)
    kinds = any(marks.shape in ("point", "cell") for marks in coloured)
    if on_axis or not (kinds or chart.colours or len(names) > 1):
        return None
    entry = legend_entry(names)
    return {
        "title": None,
        "orient": "bottom",
        "columns": {"expr": f"clamp(floor({width} / {entry}), 1, {min(len(names), 8)})"},
        "labelLimit": {"expr": f"max({width} - 30, 80)"},
    }


def legend_entry(names: Sequence[str]) -> int:
    """Return the pixels of the longest of ``names`` in a legend, with its symbol."""
    return round(max(map(len, names), default=0) * LETTER) + 40


def _is_on_axis(marks: Marks) -> bool:
    """Return whether an axis has the names of the colours."""
    names = marks.frame[marks.colour].to_list()
    return any(names == marks.frame[at].to_list() for at in (marks.x, marks.y) if at)


def _layer(
    marks: Marks, axes: Mapping[str, Any], scale: Mapping[str, Any], legend: Any
) -> dict[str, Any]:
    """Return the mark and the encoding of ``marks``; ``scale`` and ``legend`` are of colours."""
    shape = marks.shape
    mark = {**_MARKS[shape]}
    encoding: dict[str, Any] = {of: axes[of] for of in ("x", "y") if getattr(marks, of)}
    if shape == "rule" and not marks.y:
        mark["type"] = "rule"
    if marks.y_end:
        encoding["y2"] = {"field": "y_end"}
    if marks.colour and shape == "rule":
        encoding["detail"] = {"field": "colour"}
    elif marks.colour and shape != "value":
        coloured = {"field": "colour", "type": "nominal", "legend": legend}
        encoding["color"] = {**coloured, "scale": scale}
        # A shape beside the colour: neither alone carries what it means.
        if shape == "point":
            encoding["shape"] = {**coloured, "scale": {"domain": scale["domain"]}}
    if marks.faint:
        encoding["fillOpacity"] = {
            **{"field": "faint", "type": "nominal", "legend": None},
            "scale": {"domain": [False, True], "range": [1, 0.3]},
        }
    if marks.grouped:
        encoding["yOffset"] = {"field": "colour", "scale": {"domain": scale["domain"]}}
    if marks.size:
        sizes = {"field": "size", "type": "quantitative", "legend": None}
        encoding["size"] = {**sizes, "scale": {"range": [30, 600]}}
    if shape in _WRITTEN:
        encoding["text"] = {"field": "text", "type": "nominal"}
    if shape in _WITHOUT_TIPS:
        # Vega-Lite would describe it in an expression with the titles of the axes.
        mark["aria"] = False
    else:
        encoding["description"] = {"field": "tips", "type": "nominal"}
    # Bars of one place are stacked in the order of the rows. An order would cut a band in pieces.
    stacked = shape == "bar" and not marks.grouped and not marks.y_end
    if stacked or (shape in ("line", "step", "rule") and marks.y):
        encoding["order"] = {"field": "at"}
    return {"mark": mark, "encoding": encoding}


_WRITTEN: Final = ("text", "value", "cross")
_WITHOUT_TIPS: Final = (*_WRITTEN, "rule", "band")


def _rows(
    chart: Chart,
    marks: Marks,
    scales: Mapping[str, numbers.Scale],
    names: Mapping[str, Mapping[str, str]],
    called: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the values of ``marks`` in the units of ``scales``, with short ``names`` and colours
    that are ``called`` so.
    """
    frame = marks.frame
    columns: dict[str, Iterable[Any]] = {"at": range(frame.height)}
    for of, source in (("x", marks.x), ("y", marks.y), ("y_end", marks.y_end)):
        if source and frame[source].dtype == pl.String:
            columns[of] = [names[of][short(text)] for text in frame[source]]
        elif source:
            factor = scales[of[0]].factor
            columns[of] = _finite(frame[source] if factor == 1 else frame[source] / factor)
    if marks.colour:
        texts = (short(text) for text in frame[marks.colour])
        columns["colour"] = [called.get(text, text) for text in texts]
    if marks.faint:
        columns["faint"] = frame[marks.faint]
    if marks.size:
        columns["size"] = _finite(frame[marks.size])
    if marks.shape == "value":
        notes = frame[marks.label] if marks.label else [None] * frame.height
        write = numbers.ratio if scales["x"].unit else scales["x"].write
        values = [*columns["x"]]
        columns["x"] = [value or 0 for value in values]
        columns["text"] = [
            short(note) if value is None else write(value) if value else "0"
            for value, note in zip(values, notes, strict=True)
        ]
    elif marks.shape in _WRITTEN:
        columns["text"] = [short(text) for text in frame[marks.label]]
    elif marks.shape not in _WITHOUT_TIPS:
        at = {name: axis for name, axis in ((marks.x, chart.x), (marks.y, chart.y)) if name}
        # Names on an axis without a title identify the mark.
        named = [*(name for name in at if not at[name].title), marks.colour]
        labels = [marks.label] if marks.label else dict.fromkeys(filter(None, named))
        values = [
            Column(name, axis.kind, title=axis.title) for name, axis in at.items() if axis.title
        ]
        columns["tips"] = tips(frame, labels, (*([] if marks.y_end else values), *marks.shown))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _finite(values: pl.Series) -> list[float | None]:
    return [value if value is not None and isfinite(value) else None for value in values]
