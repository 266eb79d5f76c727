"""The data of the pictures of a page: specifications, and columns of icicles and timelines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.report import display_names, numbers
from traceana.report.charts.colours import EVENT_COLOURS, class_colour
from traceana.report.charts.specification import short, specification, tips
from traceana.report.page import Chart, Icicle, Illustration, Timeline
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.analyze.timeline import Window


@singledispatch
def picture(block: Illustration) -> dict[str, Any]:
    """Return what the page's scripts need to draw ``block``."""
    raise TypeError(type(block).__name__)


@picture.register
def _chart(block: Chart) -> dict[str, Any]:
    return {"kind": "chart", "specification": specification(block)}


@picture.register
def _icicle(block: Icicle) -> dict[str, Any]:
    frame = block.frame
    categories = frame["category"].fill_null("other").cast(pl.String)
    distinct = categories.unique(maintain_order=True).to_list()
    code = {name: at for at, name in enumerate(distinct)}
    means = frame
    if block.steps > 1:
        means = frame.with_columns(pl.col("time_ns", "calls") / block.steps)
    return {
        "kind": "icicle",
        "parent": [-1 if row is None else row for row in frame["parent"]],
        "label": [short(text) for text in frame["label"]],
        "time_ns": frame["time_ns"].to_list(),
        "time": [numbers.duration(round(value / block.steps)) for value in frame["time_ns"]],
        "steps": block.steps,
        "category": [code[name] for name in categories],
        "categories": [
            name if block.colours else display_names.category(name) for name in distinct
        ],
        "colours": [block.colours.get(name) or class_colour(name) for name in distinct],
        "tips": tips(means, ["path"], block.shown),
    }


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
    line, lines = _coded(events["line"])
    briefs = display_names.briefs(event_name for event_name in named if event_name)
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
        "names": [short(briefs.get(event_name, "")) for event_name in named],
        "category": category,
        "categories": [_event_class(*key.split("/", 1)) for key in categories],
        "colours": [_event_colour(*key.split("/", 1)) for key in categories],
        "outlined": [key in _OUTLINED for key in categories],
        "layer": layer,
        "layers": [short(path) for path in layers],
        "operator": operator,
        "operators": [short(text) for text in operators],
        "line": line if any(lines) else [],
        "lines": lines,
        "counters": [_counter(rows, window.start_ns) for rows in _by_counter(window.counters)],
    }


def _by_counter(counters: pl.DataFrame) -> list[pl.DataFrame]:
    if counters.is_empty():
        return []
    return counters.partition_by("rank", "device", "name", "unit", maintain_order=True)


def _counter(rows: pl.DataFrame, start_ns: int) -> dict[str, Any]:
    """Return the samples of one counter as columns, and the ends of its axis, which has 0."""
    first = rows.row(0, named=True)
    unit = "" if first["unit"] is None else f" ({first['unit']})"
    values = rows.select(
        pl.col("mean", "min", "max").round_sig_figs(_DIGITS),
        (pl.col("start_ns") - start_ns).alias("start"),
        pl.col("time_ns").alias("time"),
    )
    low, high = min(0, values["min"].min()), max(0, values["max"].max())  # type: ignore[type-var]
    return {
        "of": " ".join(_owner(first)),
        "kind": short(f"{first['name']}{unit}"),
        "low": low,
        "high": high,
        **{name: values[name].to_list() for name in values.columns},
    }


def _coded(texts: pl.Series) -> tuple[list[int], list[str]]:
    """Return the number of each text, and the distinct texts; null is the empty text."""
    filled = texts.fill_null("")
    distinct = filled.unique(maintain_order=True)
    codes = filled.replace_strict(
        distinct, pl.Series(range(len(distinct)), dtype=pl.Int64), return_dtype=pl.Int64
    )
    return codes.to_list(), distinct.to_list()


_WAITS: Final = EVENT_COLOURS["critical"].keys()
"""Classes of the critical path other than device work."""

_OUTLINED: Final = ("critical/gap", "idle/queued")
"""Waits of a pale colour, which have an edge."""

_GREY: Final = "#c9ced3"
_DIGITS: Final = 4
"""Significant digits of a sampled value."""


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
    of = _owner(row)
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


def _owner(row: Mapping[str, Any]) -> list[str]:
    """Return the rank and the device of a track, where it has them."""
    of = [] if row["rank"] is None else [f"rank {row['rank']}"]
    if row["device"] is not None:
        of.append("CPU" if row["device"] == CPU_DEVICE else f"GPU {row['device']}")
    return of
