"""The data of pictures as JSON: columns of values, and texts with their units.

No text of a trace is part of a name, a format or an expression; texts are values of columns only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import singledispatch
from math import ceil, floor, isfinite, log10
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.report import display_names, numbers
from traceana.report.cells import DISPLAY_UNITS, value_text
from traceana.report.columns import Kind
from traceana.report.page import Axis, Chart, Column, Icicle, Illustration, Marks, Timeline
from traceana.report.text import plain
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.analyze.timeline import Window

_LONGEST: Final = 500
"""Characters of a text in a picture; longer text is cut with an ellipsis."""

_FEWEST_TICKS: Final = 3
"""Of a logarithmic axis, before numbers between the powers of ten get ticks."""

PALETTE: Final = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b5a800"),
    *("#6a51a3", "#8c6d31", "#4d9221", "#999999"),
)
"""Colours that remain different with the common kinds of colour blindness: the first seven are
those of Okabe and Ito, "Color universal design" (2008), with a yellow that shows on white."""

CLASS_COLOURS: Final[Mapping[str, str]] = {
    **{"conv": "#0072b2", "gemm": "#e69f00", "attention": "#009e73", "normalization": "#cc79a7"},
    **{"elementwise": "#d55e00", "memcpy": "#56b4e9", "collective": "#b5a800"},
    **{"optimizer": "#6a51a3", "layout": "#8c6d31", "reduction": "#4d9221", "other": "#999999"},
    **{"activation": "#f4a582", "bias": "#7f2704", "softmax": "#8e0152", "loss": "#e7298a"},
    **{"pooling": "#a6d854", "rnn": "#00441b", "memset": "#44142c", "fused": "#c4a5ea"},
    **{"indexing": "#47525c", "image": "#86d9bd", "random": "#dcc48e", "dropout": "#f5c6de"},
    **{"embedding": "#141f66", "fft": "#00c0cc"},
}
"""A colour for each category, the same in all pictures; those with most time in recorded traces
have the colours of :data:`PALETTE`."""


def class_colour(category: str) -> str:
    """Return the colour of ``category``, that of unclassified work for an unknown one."""
    return CLASS_COLOURS.get(category, CLASS_COLOURS["other"])


@singledispatch
def picture(block: Illustration) -> dict[str, Any]:
    """Return what the page's scripts need to draw ``block``."""
    raise TypeError(type(block).__name__)


@picture.register
def _chart(block: Chart) -> dict[str, Any]:
    values = {axis: _axis_values(block.marks, axis) for axis in ("x", "y")}
    scales = {axis: _axis_scale(getattr(block, axis), of) for axis, of in values.items()}
    return {
        "kind": "chart",
        "height": block.height,
        "x": _axis(block.x, scales["x"], values["x"]),
        "y": _axis(block.y, scales["y"], values["y"]),
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
        "time": [numbers.duration(round(value / block.steps)) for value in frame["time_ns"]],
        "whole_ns": block.whole_ns or frame["time_ns"].item(0),
        "steps": block.steps,
        "paired": block.paired,
        "category": [code[name] for name in categories],
        "categories": [display_names.category(name) for name in distinct],
        "colours": [class_colour(name) for name in distinct],
        "tips": _tips(_per_step(frame, block.steps), "path", block.shown),
    }


def _per_step(frame: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return ``frame`` with times and calls as means of ``steps`` steps."""
    return frame if steps == 1 else frame.with_columns(pl.col("time_ns", "calls") / steps)


@picture.register
def _timeline(block: Timeline) -> dict[str, Any]:
    return {"kind": "timeline", "windows": [_window(window) for window in block.windows]}


def _window(window: Window) -> dict[str, Any]:
    """Return the events as columns: texts by number, starts as differences to the event before."""
    events = window.events
    starts = events["start_ns"] - window.start_ns
    kinds = window.tracks["kind"].cast(pl.String).gather(events["track"])
    of_event = events["category"].fill_null("other")
    # Device work on the critical path is of its class, as on its stream.
    of_work = (kinds == "critical") & ~of_event.is_in([*_WAITS])
    kinds = kinds.set(of_work, "stream")
    category, categories = _coded(kinds + "/" + of_event)
    name, named = _coded(events["name"])
    layer, layers = _coded(events["layer"])
    operator, operators = _coded(events["operator"])
    briefs = display_names.briefs(one for one in named if one)
    return {
        "step": window.step,
        "span_ns": window.end_ns - window.start_ns,
        "merged": window.merged,
        "left_out": window.left_out,
        "tracks": [_track(row) for row in window.tracks.iter_rows(named=True)],
        "track": events["track"].to_list(),
        "depth": events["depth"].to_list(),
        "start": [*starts.head(1), *starts.diff().slice(1)],
        "time": events["time_ns"].to_list(),
        "launch": (events["start_ns"] - events["launch_ns"]).to_list(),
        "count": [] if not window.merged else events["count"].to_list(),
        "name": name,
        "names": [_short(briefs.get(one, "")) for one in named],
        "category": category,
        "categories": [_event_class(*one.split("/", 1)) for one in categories],
        "colours": [_event_colour(*one.split("/", 1)) for one in categories],
        "outlined": [one in _OUTLINED for one in categories],
        "layer": layer,
        "layers": [_short(one) for one in layers],
        "operator": operator,
        "operators": [_short(one) for one in operators],
    }


def _coded(texts: pl.Series) -> tuple[list[int], list[str]]:
    """Return the number of each text, and the distinct texts; null is the empty text."""
    filled = texts.fill_null("")
    distinct = filled.unique(maintain_order=True)
    codes = filled.replace_strict(
        distinct, pl.Series(range(len(distinct)), dtype=pl.Int64), return_dtype=pl.Int64
    )
    return codes.to_list(), distinct.to_list()


EVENT_COLOURS: Final[Mapping[str, Mapping[str, str]]] = {
    "operators": {"operators": "#b8c4ce"},
    "stream": {"synchronization": "#cdf5cd"},
    "ranges": {"ranges": "#9fb3a5"},
    "annotations": {"annotations": "#9fb3a5"},
    "calls": {"calls": "#c9bda6"},
    "critical": {
        **{"launch": "#f7e05e", "host": "#a0606c", "sync": "#ff7f6b", "gap": "#dfe6ee"},
    },
    "idle": {
        **{"data_loader": "#c0392b", "synchronization": "#ff7f6b", "launch_latency": "#f7e05e"},
        **{"operator": "#d8e29a", "host": "#a0606c", "copy": "#1fe0c0", "collective": "#a0f020"},
        **{"event": "#9f86ff", "allocation": "#ff9ad5", "driver": "#7a5a48"},
        **{"profiler": "#5d6d5f", "queued": "#dfe6ee", "not_recorded": "#b0b6be"},
        **{"same_launch": "#9dbf9a", "before_first": "#efe0bd", "after_last": "#d3c8ea"},
    },
}
"""By kind of track and category; work has the colours of its category on every track, what it
waited for those of the idle causes, other events grey, and a synchronization on a stream, which is
excluded from work, a pale one."""
_WAITS: Final = EVENT_COLOURS["critical"].keys()
"""Classes of the critical path other than device work."""

_OUTLINED: Final = ("critical/gap", "idle/queued")
"""Waits of a pale colour, which have an edge."""

_GREY: Final = "#c9ced3"


def _event_class(kind: str, category: str) -> str:
    if kind == "critical":
        return f"critical: {display_names.category(category)}"
    if kind == "idle":
        return f"idle: {display_names.part(category)}"
    return display_names.category(category) if kind == "stream" else ""


def _event_colour(kind: str, category: str) -> str:
    if kind == "stream" and category != "synchronization":
        return class_colour(category)
    return EVENT_COLOURS.get(kind, {}).get(category, _GREY)


_TRACKS: Final = {
    "critical": "critical path",
    "calls": "runtime calls",
    "overhead": "profiler overhead",
}


def _track(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the label of a track: what it belongs to, and what it shows."""
    of = [] if row["rank"] is None else [f"rank {row['rank']}"]
    if row["device"] is not None:
        of.append("CPU" if row["device"] == CPU_DEVICE else f"GPU {row['device']}")
    kind = _TRACKS.get(row["kind"], row["kind"])
    if row["kind"] == "stream" and row["device"] == CPU_DEVICE:
        of[-1] = f"thread {row['number']}"
        kind = "self CPU time"
    elif row["kind"] == "stream":
        kind = "no stream" if row["number"] is None else f"stream {row['number']}"
    elif row["kind"] == "annotations":
        of.append("" if row["number"] is None else f"stream {row['number']}")
    elif row["number"] is not None:
        of.append(f"thread {row['number']}")
    return {"of": " ".join(of), "kind": kind}


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


def _axis(axis: Axis, scale: numbers.Scale, values: list[float]) -> dict[str, Any]:
    title = f"{axis.title} ({scale.unit})" if scale.unit else axis.title
    return {
        "title": title,
        "log": axis.log,
        "zero": axis.from_zero,
        "percent": axis.kind is Kind.SHARE,
        "prefixes": axis.kind not in (Kind.INTENSITY, Kind.NUMBER),
        "ticks": list(axis.ticks) or (_log_ticks(values) if axis.log else []),
    }


def _log_ticks(values: list[float]) -> list[float]:
    """Return the powers of ten among ``values``; if these are few, also 2 and 5 times these."""
    positive = [value for value in values if value > 0]
    if not positive:
        return []
    low, high = min(positive), max(positive)
    exponents = range(floor(log10(low)), ceil(log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= _FEWEST_TICKS:
            break
    return ticks


def _marks(marks: Marks, scales: Mapping[str, numbers.Scale]) -> dict[str, Any]:
    frame = marks.frame
    found: dict[str, Any] = {
        "shape": marks.shape,
        "x": _scaled(frame[marks.x], scales["x"]),
        "y": _scaled(frame[marks.y], scales["y"]),
    }
    if marks.y_end:
        found["y_end"] = _scaled(frame[marks.y_end], scales["y"])
    if marks.grouped:
        found["grouped"] = True
    if marks.size:
        found["size"] = _finite(frame[marks.size])
    if marks.colour:
        found["colour"] = [_short(text) for text in frame[marks.colour]]
        if marks.colours:
            used = set(found["colour"])
            found["colours"] = {name: one for name, one in marks.colours.items() if name in used}
        elif marks.colour == "category":
            known = {display_names.category(one): colour for one, colour in CLASS_COLOURS.items()}
            found["colours"] = {
                name: known.get(name, CLASS_COLOURS["other"])
                for name in dict.fromkeys(found["colour"])
            }
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
    if value is None:
        return ""
    mean = column.kind is Kind.COUNT and isinstance(value, float)
    return f"{column.title}: {value_text(Kind.MEAN if mean else column.kind, value)}"


def _short(text: object) -> str:
    shown = "" if text is None else plain(str(text))
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
