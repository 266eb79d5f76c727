"""Icicles and timelines as views of Vega-Lite, for files: a page has them with zoom instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import floor
from typing import Any, Final, NamedTuple

from traceana.report import numbers
from traceana.report.charts.specification import LETTER, legend_entry
from traceana.report.text import cut_end, cut_middle

Data = Mapping[str, Any]

_ROW: Final = 18
"""Pixels."""
_NARROWEST: Final = 1 / 1000
"""The part of the width below which spans are drawn together, or not at all."""
_GREY: Final = "#d5dbe1"
_MOST_ROWS: Final = 64
_LONGEST_TRACK: Final = 32
"""Letters of the label of a track."""


class Span(NamedTuple):
    """A rectangle: its row from the top, start and length in nanoseconds, colour, label."""

    row: int
    start: int
    length: int
    colour: str
    label: str


def icicle_view(data: Data, width: int) -> dict[str, Any]:
    """Return the nodes of a tree, children below their parent, as rectangles."""
    depths: list[int] = []
    for parent in data["parent"]:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    spans = [*_nodes(data, depths)]
    whole, rows = data["time_ns"][0], 1 + max(depths)
    return _view(spans, _named(data), whole, rows, {}, width, data["steps"])


def timeline_view(data: Data, width: int) -> dict[str, Any]:
    """Return the events of the first window on their tracks as rectangles."""
    window = data["windows"][0]
    keys = sorted(set(zip(window["track"], window["depth"], strict=True)))
    rows = {key: row for row, key in enumerate(keys[:_MOST_ROWS])}
    first: dict[int, int] = {}
    for (track, _), row in rows.items():
        first.setdefault(track, row)
    labels = {row: _track(window["tracks"][track]) for track, row in first.items()}
    if len(keys) > len(rows):
        labels[len(rows)] = f"{len(keys) - len(rows)} more rows of events"
    spans = [*_events(window, rows)]
    return _view(spans, _named(window), window["span_ns"], len(rows), labels, width)


def left_of_timeline(data: Data) -> int:
    """Return the pixels that the labels of the tracks take."""
    tracks = data["windows"][0]["tracks"]
    return round(max(len(_track(track)) for track in tracks) * LETTER) + 12


def _track(track: Mapping[str, str]) -> str:
    return cut_middle(" ".join(part for part in track.values() if part), _LONGEST_TRACK)


def _nodes(data: Data, depths: Sequence[int]) -> Iterator[Span]:
    """Yield a span for each node; narrow ones beside each other are one grey span."""
    least = data["time_ns"][0] * _NARROWEST
    used = [0] * len(depths)
    starts = [0] * len(depths)
    rest: dict[int, list[int]] = {}
    for at, (parent, time) in enumerate(zip(data["parent"], data["time_ns"], strict=True)):
        if parent >= 0:
            starts[at] = starts[parent] + used[parent]
            used[parent] += time
        if time >= least:
            colour = data["colours"][data["category"][at]]
            yield Span(depths[at], starts[at], time, colour, data["label"][at])
            continue
        start, end = starts[at], starts[at] + time
        merged = rest.get(depths[at])
        if merged is not None and start <= merged[1] + least:
            merged[1] = max(merged[1], end)
            continue
        if merged is not None:
            yield Span(depths[at], merged[0], merged[1] - merged[0], _GREY, "")
        rest[depths[at]] = [start, end]
    for row, (start, end) in rest.items():
        yield Span(row, start, end - start, _GREY, "")


def _events(window: Data, rows: Mapping[tuple[int, int], int]) -> Iterator[Span]:
    """Yield a span for each event that is not hidden by another within the narrowest width."""
    least = window["span_ns"] * _NARROWEST
    ends = dict.fromkeys(rows.values(), -least)
    for at, start in enumerate(accumulate(window["start"])):
        row = rows.get((window["track"][at], window["depth"][at]))
        time = window["time"][at]
        # The first events begin before the window.
        if row is None or start + time <= max(ends[row] + least / 2, 0):
            continue
        ends[row] = max(start + time, start + least)
        colour = window["colours"][window["category"][at]]
        label = window["names"][window["name"][at]]
        yield Span(row, start, time, colour, label)


def _named(data: Data) -> dict[str, str]:
    """Return the names of the colours: the classes that have them."""
    named: dict[str, list[str]] = {}
    for name, colour in zip(data["categories"], data["colours"], strict=True):
        if name:
            named.setdefault(colour, []).append(name)
    return {colour: ", ".join(dict.fromkeys(of)) for colour, of in named.items()}


def _view(
    spans: Sequence[Span],
    named: Mapping[str, str],
    whole: int,
    rows: int,
    labels: Mapping[int, str],
    width: int,
    steps: int = 1,
) -> dict[str, Any]:
    """Return ``spans`` with their labels where they fit, over an axis from 0 to ``whole``.

    ``named`` are the names of colours. The axis has the mean time of ``steps`` steps; ``labels``
    stand left of their rows.
    """
    unit = numbers.scale([whole / steps], numbers.TIME)
    scale = unit.factor * steps
    least = whole * _NARROWEST
    boxes, texts = [], []
    for span in spans:
        start, end = max(span.start, 0), min(span.start + span.length, whole)
        # Spans beside each other have a line between them.
        drawn = end - least if end - start > 4 * least else max(end, start + least)
        box = {"x": start / scale, "x_end": drawn / scale, "y": span.row, "y_end": span.row + 0.92}
        boxes.append({**box, "colour": named.get(span.colour, span.colour)})
        letters = floor((end - start) / max(whole, 1) * width / LETTER) - 1
        if span.label and letters >= 3:
            text = cut_end(span.label, letters)
            at = {"x": (start + end) / 2 / scale, "y": span.row + 0.46}
            texts.append({**at, "text": text, "ink": readable(span.colour)})
    colours = {name: colour for colour, name in named.items()}
    listed = [*colours]
    colours |= {span.colour: span.colour for span in spans if span.colour not in named}
    entry = legend_entry(listed)
    title = f"time{' per step' if steps > 1 else ''} ({unit.unit})"
    x = {
        **{"field": "x", "type": "quantitative", "title": title},
        "scale": {"domain": [0, max(whole, 1) / scale], "nice": False},
        "axis": {"grid": False, "tickCount": 8},
    }
    y = {"field": "y", "type": "quantitative", "axis": None}
    y["scale"] = {"domain": [0, rows], "reverse": True, "nice": False}  # type: ignore[assignment]
    legend = {
        **{"title": None, "orient": "bottom", "values": listed, "labelLimit": width},
        "columns": max(1, min(width // entry, 8)),
    }
    colour = {
        **{"field": "colour", "type": "nominal", "legend": legend if listed else None},
        "scale": {"domain": [*colours], "range": [*colours.values()]},
    }
    beside = [{"y": row + 0.46, "text": text} for row, text in labels.items()]
    written = {"field": "text", "type": "nominal"}
    ink_ = {"field": "ink", "type": "nominal", "scale": None, "legend": None}
    layers = [
        {
            "data": {"values": boxes},
            "mark": {"type": "rect", "aria": False},
            "encoding": {
                **{"x": x, "x2": {"field": "x_end"}, "y": y, "y2": {"field": "y_end"}},
                "color": colour,
            },
        },
        {
            "data": {"values": texts},
            "mark": {"type": "text", "fontSize": 10, "aria": False},
            "encoding": {"x": x, "y": y, "text": written, "color": ink_},
        },
        {
            "data": {"values": beside},
            "mark": {
                **{"type": "text", "align": "right", "fontSize": 11, "aria": False},
                "color": {"expr": "ink"},
            },
            "encoding": {"x": {"value": -6}, "y": y, "text": written},
        },
    ]
    return {"width": width, "height": rows * _ROW, "layer": layers}


def readable(colour: str) -> str:
    """Return black or white, whichever has more contrast with ``#rrggbb``."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"
