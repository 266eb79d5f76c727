"""The events of steps on the tracks of a timeline: threads, streams, idle gaps, critical path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from traceana.timeline.steps import measured_steps
from traceana.trace.schema import ROW
from traceana.trace.work import labels

if TYPE_CHECKING:
    from traceana.trace import Trace

MOST_EVENTS: Final = 30_000
"""Events of all windows together; more of one step are merged where they are short."""

MOST_TRACKS: Final = 200

MOST_COUNTERS: Final = 16
_BUCKETS: Final = 400
"""Parts of a window: of a counter with more samples, those of one part become one."""

_FINEST: Final = 16_384
"""Parts of a window: events shorter than one are merged first. Halved until few enough remain."""

_COARSEST: Final = 32


class Window(msgspec.Struct, frozen=True):
    """The events between ``start_ns`` and ``end_ns`` of the trace.

    ``step`` is the step's number, None for a trace without steps. Columns of ``tracks``: ``rank``,
    ``kind`` (``critical``, ``idle``, ``annotations`` of a stream, ``stream``, the profiler's
    ``overhead``, ``ranges``, ``operators``, ``calls``), ``device``, ``number`` (stream or thread,
    null for rows of a device). Columns of ``events``, by track and start: ``track`` (row of
    ``tracks``), ``depth`` (nesting, from 0), ``start_ns``, ``time_ns``, ``name``, ``category`` (of
    work its class, of an idle gap its cause, else the track's kind), ``layer``, ``operator``,
    ``line`` and ``stack`` (of the program, as of :func:`traceana.trace.work.labels`), ``launch_ns``
    (start of the launching call), ``row`` (of work, in ``activities``), ``count`` (1, or the number
    of events merged into one, which then have no name). ``merged`` is the number of all merged
    events. ``left_out`` is the number of tracks beyond :data:`MOST_TRACKS`: the tracks with fewest
    events. ``counters`` has the sampled counters of :func:`_counters`.
    """

    step: int | None
    start_ns: int
    end_ns: int
    tracks: pl.DataFrame
    events: pl.DataFrame
    merged: int = 0
    left_out: int = 0
    counters: pl.DataFrame = msgspec.field(default_factory=pl.DataFrame)


def timeline(trace: Trace, most: int = MOST_EVENTS) -> tuple[Window, ...]:
    """Return the windows of steps: the one nearest the median first, then others while they fit.

    ``most`` events fit. Short events of a first step with more are merged, and counted. A trace
    without steps is one window. Events of no duration are left out.
    """
    parts = _parts(trace)
    windows: list[Window] = []
    room = most
    for step, start, end in _windows(trace):
        window = _window(parts, step, start, end, most=None if windows else most)
        counters = _counters(trace.tables.samples, start, end)
        drawn = window.events.height + counters.height
        if windows and drawn > room:
            break
        if window.events.height:
            windows.append(msgspec.structs.replace(window, counters=counters))
            room -= drawn
    return tuple(windows)


_IN_BRIEF: Final = {"critical": 1, "idle": 1, "stream": 3, "operators": 2, "calls": 2}
"""Tracks of each kind in :func:`in_brief`."""


def in_brief(window: Window, most: int = 2_000) -> Window:
    """Return the main tracks of one rank in ``window``: a few of each kind, with most time.

    They have the outermost events, of which short ones are merged where there are more than
    ``most``.
    """
    outermost = window.events.filter(pl.col("depth") == 0)
    tracks = window.tracks.with_row_index("track").with_columns(pl.col("track").cast(pl.Int64))
    times = outermost.group_by("track").agg(pl.col("time_ns").sum())
    main = (
        tracks.join(times, on="track")
        .sort("time_ns", "track", descending=[True, False])
        .filter(pl.col("rank").eq_missing(pl.col("rank").first()))
        .with_columns(pl.int_range(pl.len()).over("kind").alias("nth"))
        .filter(pl.col("nth") < pl.col("kind").cast(pl.String).replace_strict(_IN_BRIEF, default=0))
        .sort("track")
        .select("track", *_TRACK)
    )
    located = outermost.join(main, on="track", maintain_order="left").drop("track")
    events, _ = _merged(located, window.end_ns - window.start_ns, most)
    tracks = main.drop("track")
    return Window(window.step, window.start_ns, window.end_ns, tracks, _on_tracks(events, tracks))


def capture(trace: Trace) -> Window:
    """Return all events of ``trace`` on all their tracks, also events without a duration."""
    parts = _parts(trace)
    times = pl.concat(
        part.rows.select(start=pl.col(part.start), end=pl.col(part.start) + pl.col(part.duration))
        for part in parts
    )
    start, end = times.select(
        pl.col("start").min().fill_null(0), pl.col("end").max().fill_null(0)
    ).row(0)
    return _window(parts, None, start, end + 1, shortest=0, tracks_at_most=None)


def _counters(samples: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """Return the samples of the window from ``start`` to ``end``, at most a few hundred a counter.

    Columns, by counter and start: ``rank``, ``device``, ``name``, ``unit``, ``start_ns``,
    ``time_ns``, and ``mean``, ``min`` and ``max`` of the samples. Counters that are 0 throughout
    are left out, and those beyond :data:`MOST_COUNTERS`: the main ones come first.
    """
    if samples.is_empty():
        return pl.DataFrame()
    series = ("rank", "device", "name", "unit")
    begin, stop = pl.col("start"), pl.col("start") + pl.col("duration")
    from traceana.analyze.samples import MAIN

    inside = samples.filter((begin < end) & (stop > start)).with_columns(
        pl.max_horizontal("start", pl.lit(start)).alias("begin"),
        pl.min_horizontal(stop, pl.lit(end)).alias("stop"),
    )
    name = pl.col("name").cast(pl.String)
    is_main = pl.any_horizontal(name.str.contains(pattern) for pattern in MAIN.values())
    chosen = (
        inside.filter((pl.col("value") != 0).any().over(series))
        .select(*series, main=~is_main, text=name)
        .unique()
        .sort("main", "rank", "device", "text", pl.col("unit").cast(pl.String), nulls_last=True)
        .head(MOST_COUNTERS)
        .select(*series)
        .with_row_index("counter")
    )
    part = (pl.col("begin") - start) // max((end - start) // _BUCKETS, 1)
    place = pl.int_range(pl.len()).over("counter")
    cell = pl.when(pl.len().over("counter") > _BUCKETS).then(part).otherwise(place)
    length = pl.col("stop") - pl.col("begin")
    return (
        inside.join(chosen, on=series, nulls_equal=True)
        .sort("counter", "begin")
        .with_columns(cell.alias("cell"))
        .group_by("counter", "cell", maintain_order=True)
        .agg(
            *(pl.col(key).first() for key in series),
            pl.col("begin").min().alias("start_ns"),
            (pl.col("stop").max() - pl.col("begin").min()).alias("time_ns"),
            # The only reading of a counter covers no time.
            pl.when(length.sum() > 0)
            .then((pl.col("value") * length).sum() / length.sum())
            .otherwise(pl.col("value").mean())
            .alias("mean"),
            pl.col("value").min().alias("min"),
            pl.col("value").max().alias("max"),
        )
        .drop("cell", "counter")
    )


def _windows(trace: Trace) -> Iterator[tuple[int | None, int, int]]:
    """Yield number, start and end of the measured steps, the one nearest the median first."""
    steps = trace.tables.steps[list(measured_steps(trace).rows)]
    if steps.is_empty():
        first, last = trace.tables.activities["start"].min(), _ends(trace.tables.activities).max()
        if isinstance(first, int) and isinstance(last, int):
            yield None, first, last
        return
    # A step of several processes is one window, from the first begin to the last end.
    spans = steps.select("number", "start", _ends(steps).alias("end")).group_by("number")
    steps = spans.agg(pl.col("start").min(), pl.col("end").max()).sort("start", "number")
    steps = steps.with_columns((pl.col("end") - pl.col("start")).alias("duration"))
    median = steps["duration"].median()
    ordered = steps.with_columns((pl.col("duration") - median).abs().alias("off")).sort(
        "off", "start", maintain_order=True
    )
    for number, start, duration in ordered.select("number", "start", "duration").iter_rows():
        yield number, start, start + duration


def _ends(frame: pl.DataFrame) -> pl.Series:
    return frame["start"] + frame["duration"]


_TRACK: Final = ("rank", "kind", "device", "number")
_KINDS: Final = pl.Enum(
    ["critical", "idle", "annotations", "stream", "overhead", "ranges", "operators", "calls"]
)
_COLUMNS: Final[dict[str, Any]] = {
    "rank": pl.Int32,
    "kind": _KINDS,
    "device": pl.Int32,
    "number": pl.Int64,
    "depth": pl.Int32,
    "start_ns": pl.Int64,
    "time_ns": pl.Int64,
    "name": pl.String,
    "category": pl.String,
    "layer": pl.String,
    "operator": pl.String,
    "line": pl.String,
    "stack": pl.String,
    "launch_ns": pl.Int64,
    "row": ROW,
}


_OF_ONE: Final = ("name", "layer", "operator", "line", "stack", "launch_ns", "row")
"""The columns of an event that several merged ones do not have."""


class _Part(msgspec.Struct, frozen=True):
    """Events of one table: their columns ``rows`` that are numbers, and what makes the others."""

    rows: pl.DataFrame
    start: str
    duration: str
    described: Any


def _parts(trace: Trace) -> list[_Part]:
    from traceana.timeline.critical import critical
    from traceana.timeline.idle import idle

    return [
        _Part(critical(trace, by="segment").frame, "start_ns", "time_ns", _critical),
        _Part(idle(trace, by="gap").frame, "start_ns", "time_ns", _idle),
        _Part(
            trace.tables.activities.with_columns(
                labels(trace.tables, "name", "category", "line", "stack")
            ).with_row_index("row"),
            "start",
            "duration",
            lambda rows: _work(trace, rows),
        ),
        _Part(trace.tables.ranges, "start", "duration", _ranges),
        _Part(trace.tables.ops, "start", "duration", lambda rows: _operators(trace, rows)),
        _Part(
            trace.tables.calls,
            "start",
            "duration",
            lambda rows: _host(rows, "calls", "name", pl.lit(0)),
        ),
    ]


def _window(
    parts: list[_Part],
    step: int | None,
    start: int,
    end: int,
    *,
    most: int | None = None,
    shortest: int = 1,
    tracks_at_most: int | None = MOST_TRACKS,
) -> Window:
    frames = [pl.DataFrame(schema=_COLUMNS)]
    for part in parts:
        at, length = pl.col(part.start), pl.col(part.duration)
        rows = part.rows.filter(
            (at < end) & (at + length >= start + shortest) & (length >= shortest)
        )
        if rows.is_empty():
            continue
        described = part.described(rows).with_columns(
            rows[part.start].alias("start_ns"), rows[part.duration].alias("time_ns")
        )
        frames.append(
            described.select(
                (pl.col(name) if name in described.columns else pl.lit(None))
                .cast(dtype)
                .alias(name)
                for name, dtype in _COLUMNS.items()
            )
        )
    events, merged = _merged(pl.concat(frames), end - start, most)
    tracks = (
        events.group_by(_TRACK)
        .agg(pl.len().alias("events"))
        .sort("events", descending=True)
        .head(events.height if tracks_at_most is None else tracks_at_most)
        .select(_TRACK)
        .sort(_ORDER, nulls_last=True)
    )
    return Window(
        step,
        start,
        end,
        tracks,
        _on_tracks(events, tracks),
        merged,
        events.select(_TRACK).n_unique() - tracks.height,
    )


def _on_tracks(events: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """Return the events of ``tracks`` with the row of their track, in their order."""
    located = events.join(tracks.with_row_index("track"), on=_TRACK, how="inner", nulls_equal=True)
    return located.sort("track", "depth", "start_ns").select(
        pl.col("track").cast(pl.Int64), *(name for name in events.columns if name not in _TRACK)
    )


_OF_DEVICE: Final = pl.col("device").is_not_null()
_ORDER: Final = (
    # The critical path, then device by device its idle time and its streams, those of all ranks
    # together, then thread by thread.
    *(pl.col("kind") != "critical", ~_OF_DEVICE, "rank", "device"),
    *(pl.when(_OF_DEVICE).then("kind"), "number", "kind"),
)


def _critical(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        "rank",
        pl.lit("critical").alias("kind"),
        pl.lit(0).alias("depth"),
        pl.coalesce("name", "operator", "class").alias("name"),
        # Device work has its class, as on its stream.
        pl.col("class")
        .cast(pl.String)
        .replace({"copy": "memcpy", "kernel": None})
        .fill_null(pl.col("part"))
        .alias("category"),
        "layer",
        "operator",
    )


def _idle(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        "rank",
        pl.lit("idle").alias("kind"),
        "device",
        pl.lit(0).alias("depth"),
        pl.format("idle: {}", pl.col("cause").str.replace_all("_", " ")).alias("name"),
        pl.col("cause").alias("category"),
        "operator",
        # Its place alone, without its text.
        pl.col("line").str.extract(r"^(.*?:\d+)(?: |$)").alias("line"),
    )


def _work(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    waits = rows["kind"] == "sync"
    category = rows["category"].cast(pl.String)
    return rows.select(
        "rank",
        pl.lit("stream").alias("kind"),
        "device",
        pl.col("stream").alias("number"),
        # Below the work, which a synchronization of its stream would cover.
        waits.cast(pl.Int32).alias("depth"),
        pl.col("name").cast(pl.String),
        category.zip_with(~waits, pl.Series(["synchronization"])).alias("category"),
        trace.tables.layers["path"].gather(rows["layer"]).alias("layer"),
        trace.tables.ops["name"].cast(pl.String).gather(rows["op"]).alias("operator"),
        pl.col("line", "stack").cast(pl.String),
        trace.tables.calls["start"].gather(rows["call"]).alias("launch_ns"),
        "row",
    )


def _ranges(rows: pl.DataFrame) -> pl.DataFrame:
    of_device, overhead = (pl.col("kind") == kind for kind in ("device", "overhead"))
    kind = (
        pl.when(of_device)
        .then(pl.lit("annotations"))
        .when(overhead)
        .then(pl.lit("overhead"))
        .otherwise(pl.lit("ranges"))
    )
    return _host(rows, "ranges", "text", pl.col("depth")).with_columns(
        rows.select(
            "device",
            pl.when(~overhead).then("thread").alias("number"),
            kind.alias("kind"),
            kind.alias("category"),
        )
    )


def _host(rows: pl.DataFrame, kind: str, name: str, depth: pl.Expr) -> pl.DataFrame:
    return rows.select(
        "rank",
        pl.lit(kind).alias("kind"),
        pl.col("thread").alias("number"),
        # Events that need not nest have no depth.
        depth.fill_null(0).alias("depth"),
        pl.col(name).cast(pl.String).alias("name"),
        pl.lit(kind).alias("category"),
    )


def _operators(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    layer = trace.tables.layers["path"].gather(rows["layer"]).alias("layer")
    return _host(rows, "operators", "name", pl.col("depth")).with_columns(layer)


def _merged(events: pl.DataFrame, span: int, most: int | None) -> tuple[pl.DataFrame, int]:
    """Return at most about ``most`` events: short neighbours of one track become one."""
    single = events if "count" in events.columns else events.with_columns(count=pl.lit(1))
    if most is None or single.height <= most:
        return single, 0
    parts = _FINEST
    while True:
        resolution = max(span // parts, 1)
        short = pl.col("time_ns") < resolution
        kept = single.filter(~short)
        together = (
            single.filter(short)
            .with_columns(
                pl.col("start_ns").floordiv(resolution).alias("cell"),
                pl.col("start_ns").add(pl.col("time_ns")).alias("end"),
            )
            .group_by(*_TRACK, "depth", "cell", maintain_order=True)
            .agg(
                pl.col("start_ns").min(),
                pl.col("end").max(),
                pl.col("category").mode().sort().first(),
                pl.col(_OF_ONE).first(),
                pl.col("count").sum(),
            )
            .with_columns(pl.col("end").sub(pl.col("start_ns")).alias("time_ns"))
        )
        if kept.height + together.height <= most or parts <= _COARSEST:
            break
        parts //= 2
    several = pl.col("count") > 1
    unnamed = [pl.when(~several).then(name).alias(name) for name in _OF_ONE]
    together = together.with_columns(unnamed)
    merged = int(together.filter(several)["count"].sum())
    return pl.concat([kept, together.select(kept.columns)], how="vertical_relaxed"), merged
