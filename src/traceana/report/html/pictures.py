"""The data of pictures as JSON: columns of values, and texts with their units.

No text of a trace is part of a name, a format or an expression; texts are values of columns only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import singledispatch
from math import isfinite
from typing import Any, Final

import polars as pl

from traceana.report import names, numbers
from traceana.report.cells import DISPLAY_UNITS, value_text
from traceana.report.columns import Kind
from traceana.report.page import Axis, Chart, Column, Icicle, Marks
from traceana.report.text import plain

_LONGEST: Final = 500
"""Characters of a text in a picture; longer text is cut with an ellipsis."""

PALETTE: Final = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b5a800"),
    *("#6a51a3", "#8c6d31", "#4d9221", "#999999"),
)
"""Colours that remain different with the common kinds of colour blindness: the first seven are
those of Okabe and Ito, "Color universal design" (2008), with a yellow that shows on white."""

_COLOUR_OF_CATEGORY: Final[Mapping[str, int]] = {
    **{"conv": 0, "gemm": 1, "attention": 2, "normalization": 3, "elementwise": 4, "memcpy": 5},
    **{"collective": 6, "rnn": 2, "optimizer": 7, "layout": 8, "reduction": 9, "pooling": 9},
    **{"activation": 4, "bias": 4, "memset": 5, "softmax": 3, "loss": 3, "fused": 8},
}
"""Categories of one colour are alike in what they do; labels distinguish them."""


@singledispatch
def picture(block: Chart | Icicle) -> dict[str, Any]:
    """Return what the page's scripts need to draw ``block``."""
    raise TypeError(type(block).__name__)


@picture.register
def _chart(block: Chart) -> dict[str, Any]:
    scales = {
        axis: _axis_scale(getattr(block, axis), (_axis_values(block.marks, axis)))
        for axis in ("x", "y")
    }
    return {
        "kind": "chart",
        "height": block.height,
        "x": _axis(block.x, scales["x"]),
        "y": _axis(block.y, scales["y"]),
        "marks": [_marks(marks, scales) for marks in block.marks],
    }


@picture.register
def _icicle(block: Icicle) -> dict[str, Any]:
    frame = block.frame
    categories = frame["category"].fill_null("other").cast(pl.String)
    distinct = categories.unique(maintain_order=True).to_list()
    code = {name: at for at, name in enumerate(distinct)}
    return {
        "kind": "icicle",
        "parent": [-1 if row is None else row for row in frame["parent"]],
        "label": [_short(text) for text in frame["label"]],
        "time_ns": frame["time_ns"].to_list(),
        "time": [numbers.duration(value) for value in frame["time_ns"]],
        "category": [code[name] for name in categories],
        "categories": [names.category(name) for name in distinct],
        "colours": [PALETTE[_COLOUR_OF_CATEGORY.get(name, len(PALETTE) - 1)] for name in distinct],
        "tips": _tips(frame, "path", block.shown),
    }


def _axis_values(marks: Iterable[Marks], axis: str) -> list[float]:
    columns = ("x",) if axis == "x" else ("y", "y_end")
    return [
        float(value)
        for one in marks
        for name in columns
        if getattr(one, name)
        for value in one.frame[getattr(one, name)]
        if isinstance(value, int | float) and isfinite(value)
    ]


def _axis_scale(axis: Axis, values: list[float]) -> numbers.Scale:
    if axis.kind is Kind.SHARE:
        return numbers.Scale(1, "", 0)
    units = DISPLAY_UNITS.get(axis.kind)
    if units is None:
        return numbers.Scale(1, "", 0)
    # A logarithmic axis spans many units: its numbers have SI prefixes.
    return numbers.Scale(1, units[-1][1], 0) if axis.log else numbers.scale(values, units)


def _axis(axis: Axis, scale: numbers.Scale) -> dict[str, Any]:
    title = f"{axis.title} ({scale.unit})" if scale.unit else axis.title
    return {"title": title, "log": axis.log, "percent": axis.kind is Kind.SHARE}


def _marks(marks: Marks, scales: Mapping[str, numbers.Scale]) -> dict[str, Any]:
    frame = marks.frame
    found: dict[str, Any] = {
        "shape": marks.shape,
        "x": _scaled(frame[marks.x], scales["x"]),
        "y": _scaled(frame[marks.y], scales["y"]),
    }
    if marks.y_end:
        found["y_end"] = _scaled(frame[marks.y_end], scales["y"])
    if marks.size:
        found["size"] = _finite(frame[marks.size])
    if marks.colour:
        found["colour"] = [_short(text) for text in frame[marks.colour]]
    if marks.shape == "text":
        found["text"] = [_short(text) for text in frame[marks.label]]
    elif marks.label or marks.shown:
        found["tips"] = _tips(frame, marks.label, marks.shown)
    return found


def _scaled(values: pl.Series, scale: numbers.Scale) -> list[float | str | None]:
    if values.dtype == pl.String:
        return [_short(text) for text in values]
    return _finite(values if scale.factor == 1 else values / scale.factor)


def _finite(values: pl.Series) -> list[float | str | None]:
    return [value if value is not None and isfinite(value) else None for value in values]


def _tips(frame: pl.DataFrame, label: str, shown: Iterable[Column]) -> list[str]:
    """Return for each row its label and the values of ``shown``, a line each."""
    lines = [[_short(text) for text in frame[label]]] if label else []
    for column in shown:
        lines.append([_valued(column, value) for value in frame[column.name]])
    return ["\n".join(line for line in row if line) for row in zip(*lines, strict=True)]


def _valued(column: Column, value: Any) -> str:
    return "" if value is None else f"{column.title}: {value_text(column.kind, value)}"


def _short(text: object) -> str:
    shown = "" if text is None else plain(str(text))
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
