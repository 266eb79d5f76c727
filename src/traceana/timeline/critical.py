"""The critical path of each step by class, kernel, layer or operator, or segment by segment.

The path is a walk over the graph (``graph.py``); this module labels and sums its stretches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, Threads
from traceana.columns.nesting import NONE, Ints, take, to_rows
from traceana.result import Result, sums, with_share
from traceana.table import (
    CATEGORY,
    COUNT,
    KERNEL,
    LINE,
    LONG,
    MEAN,
    MOMENT,
    NUMBER,
    PART,
    PATH,
    SHARE,
    STEP,
    TIME,
    Column,
    Columns,
    completed,
    conformed,
    laid_out,
)
from traceana.timeline.graph import (
    EVENT,
    HOST,
    LAUNCH,
    ORDER,
    STREAM,
    SYNC,
    Graph,
    critical_edges,
    graphs,
    windows,
)
from traceana.timeline.steps import measured_steps, step_processes
from traceana.timeline.threads import HostTime
from traceana.timeline.work import DEVICE, RANK, has_frames, why_no_work, work
from traceana.trace import per_small_trace
from traceana.trace.schema import DEVICE_WORK, ROW
from traceana.trace.work import NO_LINE, OUTSIDE, frame_labels, labels, layer_labels
from traceana.vocabulary import host_calls
from traceana.vocabulary.option_words import CriticalBy

if TYPE_CHECKING:
    from traceana.trace import Trace

CLASSES: Final = pl.Enum(
    ["kernel", "collective", "copy", "memset", "launch", "sync", "host", "gap"]
)

_NOT_IDLE: Final = "host time on the path: also while the GPU works (idle GPU time: traceana idle)"
GPU_WORK: Final = ("kernel", "collective", "copy", "memset")
"""Classes of segments in which a device is busy."""

NO_OPERATOR: Final = "(no operator)"
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "class": ("class", "part"),
    "kernel": ("name", "class", "part"),
    "layer": ("layer", "class"),
    "operator": ("operator", "class"),
    "line": ("line", "class"),
}

CLASS: Final = Column(
    "class",
    CATEGORY,
    "`kernel`, `collective`, `copy`, `memset`; `launch`: from the return of the launching call to "
    "the start of the work; `sync`: in a call that blocks, after the work it waits for has ended, "
    "or without such work; `host`: other time of a thread; `gap`: idle time of the device between "
    "dependent work",
)
OF_CLASS: Final = Column(
    "part",
    PART,
    "of a `kernel` its category, of a `collective` its function, of a `copy` its direction; of "
    "`host` time a runtime `call`, an `operator`, a `range`, or (null) none of them; of a `gap` "
    "`stream` (work in order on a stream), `event`, or `not_recorded` where the reason or the "
    "launch is not recorded; null for the other classes",
)
NAME: Final = Column("name", KERNEL, "the kernel or copy; null for the other classes")
LAYER: Final = Column(
    "layer", PATH, "layer of the work, of the work that was launched or waited, or of the thread"
)
OPERATOR: Final = Column("operator", LONG, "operator, likewise; an annotation where there is none")
PROGRAM_LINE: Final = Column(
    "line", LINE, "line of the program, likewise, with its text where the recording keeps it"
)
KEYS: Final = (CLASS, OF_CLASS, NAME, LAYER, OPERATOR, PROGRAM_LINE)
FIGURES: Final = (
    Column(
        "step_count",
        MEAN,
        "number of segments, mean per measured step; null without steps",
        value=pl.col("count") / pl.col("steps"),
        title="segments per step",
    ),
    Column(
        "step_ns",
        TIME,
        "their time, mean per measured step, rounded down, which the screen shows; null without "
        "steps",
        value=pl.col("time_ns") // pl.col("steps"),
        title="time per step",
        scale=STEP,
    ),
    Column("count", COUNT, "number of segments of the measured steps", title="segments"),
    Column("time_ns", TIME, "their time"),
    Column("share", SHARE, "of all paths", title="of path"),
    Column(
        "step_median_ns",
        TIME,
        "median over the measured steps, rounded down; a step without such a segment counts as 0",
        title="median step",
        scale=STEP,
    ),
)


def _with_figures(*keys: Column) -> Columns:
    return laid_out((*keys, *FIGURES), hidden="step_median_ns", dropped="step_count count part")


SEGMENTS: Final = laid_out(
    (
        Column("step", NUMBER, "number of the step"),
        RANK,
        Column("start_ns", MOMENT, "start of the segment", title="start (since first event)"),
        Column("time_ns", TIME, "its duration"),
        CLASS,
        OF_CLASS,
        Column("name", KERNEL, "the kernel or copy; of `launch`, `sync` and `host` the call"),
        OPERATOR,
        LAYER,
        DEVICE,
        Column("stream", NUMBER, "stream of the work"),
        Column("thread", NUMBER, "thread of `launch`, `sync` and `host`"),
    ),
    hidden="device stream thread",
    dropped="layer part operator",
)
COLUMNS: Final[dict[CriticalBy, Columns]] = {
    "class": _with_figures(CLASS, OF_CLASS),
    "kernel": _with_figures(CLASS, OF_CLASS, NAME),
    "layer": _with_figures(LAYER, CLASS),
    "operator": _with_figures(OPERATOR, CLASS),
    "line": _with_figures(PROGRAM_LINE, CLASS),
    "segment": SEGMENTS,
}
"""The columns of :func:`critical` by ``by``."""


def critical(trace: Trace, by: CriticalBy = "class") -> Result:
    """Return the time of the critical paths of the measured steps by key.

    The columns are those of :data:`COLUMNS`. Most time first. With ``by="segment"`` one row per
    segment, in order.
    """
    columns = COLUMNS[by]
    measured = measured_steps(trace)
    path = segments(trace, by_line=by == "line")
    if trace.tables.steps.height:
        path = path.filter(pl.col("step_row").is_in(measured.rows))
    path = path.join(
        layer_labels(trace.whole.tables)
        .select(pl.col("layer_path").cast(pl.String).alias("layer"))
        .with_row_index("layer_row"),
        on="layer_row",
        how="left",
        maintain_order="left",
    ).with_columns(
        pl.col("class").cast(pl.String),
        frame_labels(trace.tables)["line_text"]
        .gather(path["frame"])
        .cast(pl.String)
        .fill_null(NO_LINE)
        .alias("line"),
    )
    if path.is_empty():
        notes = [why_no_work(trace) if work(trace).is_empty() else "trace of zero duration"]
    elif trace.tables.steps.is_empty():
        notes = [*_gpu_share(trace, path), "no steps: critical path of the whole capture"]
    else:
        notes = [
            *_gpu_share(trace, path),
            "step: from its marker, or the end of the step before, to the end of its last work",
        ]
        if (processes := step_processes(trace)) > 1:
            notes.append(f"per step: means over {processes} processes")
        notes += measured.notes
    if by == "segment":
        return Result(conformed(path, columns), sums(path, "time_ns"), tuple(notes), columns)
    steps = len(measured.rows) or path["step_row"].n_unique() or 1
    # Only work has names.
    is_work = pl.col("device").is_not_null() & ~pl.col("class").is_in(["launch", "gap"])
    path = path.with_columns(
        pl.col("operator").fill_null(NO_OPERATOR),
        pl.col("layer").fill_null(OUTSIDE),
        pl.when(is_work).then("name").alias("name"),
    )
    keys, time = list(_KEYS[by]), pl.col("time_ns")
    # Steps without a row count as 0: with half of them, the median is 0.
    padded = time.append(pl.lit(0, pl.Int64).repeat_by(steps - pl.len()).explode())
    by_step = path.group_by(*keys, "step_row").agg(pl.len().alias("count"), time.sum())
    frame = with_share(
        by_step.group_by(keys)
        .agg(
            pl.col("count").sum().cast(pl.Int64),
            time.sum(),
            padded.drop_nulls().median().floor().cast(pl.Int64).alias("step_median_ns"),
        )
        .sort(["time_ns", *keys], descending=[True, *[False] * len(keys)], nulls_last=True)
    ).with_columns(pl.lit(len(measured.rows) or None, pl.Int64).alias("steps"))
    frame = conformed(completed(frame, columns), columns)
    return Result(frame, sums(frame, "count", "time_ns"), tuple(notes), columns)


@per_small_trace
def segments(trace: Trace, *, by_line: bool = False) -> pl.DataFrame:
    """Return the critical path of every step of ``trace``, in the order of the steps and of time.

    The path is followed from the end of the step along the edges of the graph
    (:func:`traceana.timeline.graph.critical_edges`). The segments of a step have no gaps between
    them, and add up exactly to its window (:func:`traceana.timeline.graph.windows`).

    Columns: ``step_row`` (row of ``steps``, without steps of the window), ``step``
    (its number), ``rank``, ``start_ns``, ``time_ns``, and those of :func:`_labelled`.
    """
    whole = trace.whole
    key = ["number", "rank", "process", "begin"]
    windows_of_trace = windows(trace).with_row_index("own_row")
    rows = (
        windows(whole).with_row_index("step_row").join(windows_of_trace, on=key, nulls_equal=True)
    )
    parts = [
        _labelled(whole, path, graph.keys, by_line=by_line)
        for graph in graphs(trace)
        if (path := _path(graph, rows["step_row"])).height
    ]
    threads = Threads.of(
        whole.tables.ops, whole.tables.calls, whole.tables.ranges, windows_of_trace
    )
    all_segments = pl.concat([_labelled(whole, _NO_PATH, threads, by_line=by_line), *parts])
    return (
        all_segments.join(rows.select("step_row", "own_row", "number", "rank"), on="step_row")
        .sort("own_row", "start_ns", maintain_order=True)
        .with_columns(pl.col("own_row").alias("step_row"), pl.col("number").alias("step"))
        .drop("own_row", "number")
    )


_NO_PATH: Final = pl.DataFrame(
    schema={
        "step_row": pl.UInt32,
        "begin": pl.Int64,
        "end": pl.Int64,
        "what": pl.String,
        "of": pl.Int64,
        "why": pl.Int64,
    }
)
"""The columns of :func:`_path`."""

_WHAT: Final = {LAUNCH: "launch", STREAM: "gap", EVENT: "gap", ORDER: "gap", SYNC: "sync"}
"""What the time of an edge is; of others it is time of a thread."""


def _path(graph: Graph, step_rows: pl.Series) -> pl.DataFrame:
    """Return the critical paths of the steps ``step_rows`` of ``graph`` as stretches.

    Columns: ``step_row``, ``begin``, ``end``, ``what`` (``work``, ``gap``, ``launch``, ``sync``,
    ``host``), ``of`` (row of the activity; for ``sync`` of the call; for ``host`` the key of the
    thread, -1 where unknown) and ``why`` (the kind of edge before work).
    """
    over = graph.at + graph.duration
    begins, ends = (graph.steps[name].to_numpy() for name in ("begin", "end"))
    edges = graph.edges
    step_positions = np.flatnonzero(graph.steps["step_row"].is_in(step_rows.implode()).to_numpy())
    path = critical_edges(graph, over, graph.duration, edges.lag, begins, step_positions)
    step, node, edge = (path[name].to_numpy() for name in ("step", "node", "edge"))
    first = np.append(True, step[1:] != step[:-1])[: len(step)]
    at, source = graph.at[node], take(edges.source, edge)
    # Work that overlaps with the work after it counts until that begins.
    until = np.where(first, ends[step], np.append(0, at)[: len(at)])
    is_work, has_edge = graph.activity[node] != NONE, edge != NONE
    kind = np.where(has_edge, take(edges.kind, edge), np.where(is_work, ORDER, HOST))
    what = pl.Series(kind).replace_strict(_WHAT, default="host", return_dtype=pl.String)
    edge_thread = take(edges.thread, edge)
    thread = np.where(edge_thread != NONE, edge_thread, graph.thread[node])
    row_before = np.select(
        [is_work, kind == SYNC], [graph.activity[node], take(edges.call, edge)], thread
    )
    step_row = graph.steps["step_row"]

    def stretches(
        position: Ints, begin: Ints, end: Ints, what: pl.Expr, of: Ints, why: Ints
    ) -> pl.DataFrame:
        columns = {
            "step_row": step_row.gather(position),
            "begin": np.maximum(begin, begins[position]),
            "end": end,
            "of": of,
            "why": why,
        }
        frame = pl.DataFrame(columns).with_columns(what.alias("what"))
        return frame.filter(pl.col("begin") < pl.col("end")).select(_NO_PATH.columns)

    work = stretches(
        step[is_work],
        at[is_work],
        np.minimum(over[node], until)[is_work],
        pl.lit("work"),
        graph.activity[node][is_work],
        kind[is_work],
    )
    edge_begin = np.where(has_edge, take(over, source), begins[step])
    before = stretches(step, edge_begin, np.minimum(at, until), pl.lit(what), row_before, kind)
    # What no node explains: before the marker's thread is active, or without one.
    reached = begins.copy()
    reached[step[first]] = over[node[first]]
    no_row = np.full(len(step_positions), NONE)
    unexplained = stretches(
        step_positions,
        reached[step_positions],
        ends[step_positions],
        pl.lit("host"),
        no_row,
        no_row,
    )
    return pl.concat([work, before, unexplained])


def _labelled(trace: Trace, raw: pl.DataFrame, threads: Threads, *, by_line: bool) -> pl.DataFrame:
    """Return the stretches of :func:`_path` with their labels.

    A stretch of a thread is cut where the thread's call, operator or annotation changes, and
    ``by_line`` where its line does. Columns: ``step_row``, ``start_ns``, ``time_ns``, and:

    ``class``, ``part``
        ``kernel`` (by category), ``collective`` (by function), ``copy`` (by direction), ``memset``;
        ``launch``: from the return of the launching call to the start of the work; ``sync``: in a
        blocking call, after the work it waits for has ended, or without such work; ``host``: in
        a runtime ``call``, an ``operator``, a ``range``, else null; ``gap``: idle time of the
        device between dependent work, in order on a ``stream`` or by an ``event``;
        ``not_recorded``, where the reason or the launch is not in the trace.
    ``name``
        The kernel or copy; for launch, sync and host the call.
    ``operator``, ``layer_row``, ``frame``
        Operator, else the innermost annotation, and rows of ``layers`` and ``frames``; for launch
        and gap, of the work that follows. ``frame`` of threads is null unless ``by_line``.
    ``device``, ``stream``, ``thread``
        Device and stream of the work; ``thread`` of launch, sync and host.
    """
    on_device = raw.filter(pl.col("what").is_in(["work", "gap", "launch"]))
    on_host = raw.filter(pl.col("what").is_in(["sync", "host"]) & (pl.col("of") != NONE))
    nothing = raw.filter((pl.col("what") == "host") & (pl.col("of") == NONE))
    unknown = nothing.select(
        *_time_columns(),
        pl.lit("gap").cast(CLASSES).alias("class"),
        pl.lit("not_recorded").alias("part"),
    )
    of_threads = _labels_of_threads(trace, on_host, threads, by_line=by_line)
    labelled = _labels_of_work(trace, on_device), of_threads
    return pl.concat([*labelled, unknown], how="diagonal")


def _labels_of_work(trace: Trace, raw: pl.DataFrame) -> pl.DataFrame:
    """Return the labels of device work, of launches and of gaps before work."""
    labelled = labels(
        trace.tables,
        *("name", "category", "part", "op", "call", "layer", "frame", "device", "stream", "range"),
    )
    work_of_path = raw.hstack(labelled[raw["of"]]).with_columns(
        pl.col("name", "category", "part").cast(pl.String)
    )
    category, what, why = pl.col("category"), pl.col("what"), pl.col("why")
    is_work = what == "work"
    class_of_work = (
        pl.when(category == "memcpy")
        .then(pl.lit("copy"))
        .when(category.is_in(["collective", "memset"]))
        .then(category)
        .otherwise(pl.lit("kernel"))
    )
    part = pl.when(category.is_in(["memcpy", "memset", "collective"])).then("part")
    reason = (
        pl.when((why == STREAM) & pl.col("call").is_not_null())
        .then(pl.lit("stream"))
        .when(why == EVENT)
        .then(pl.lit("event"))
        .otherwise(pl.lit("not_recorded"))
    )
    calls = _call_name(trace, work_of_path["call"])
    operator = pl.coalesce(
        _operator_name(trace, work_of_path["op"]), _range_text(trace, work_of_path["range"])
    )
    return work_of_path.select(
        *_time_columns(),
        pl.when(is_work)
        .then(class_of_work)
        .when(what == "launch")
        .then(pl.lit("launch"))
        .otherwise(pl.lit("gap"))
        .cast(CLASSES)
        .alias("class"),
        pl.when(is_work)
        .then(pl.when(class_of_work == "kernel").then(category).otherwise(part))
        .when(what == "gap")
        .then(reason)
        .alias("part"),
        pl.when(is_work).then("name").when(what == "launch").then(calls).alias("name"),
        operator.alias("operator"),
        pl.col("layer").alias("layer_row"),
        "frame",
        "device",
        "stream",
        pl.when(what == "launch")
        .then(trace.tables.calls["thread"].gather(work_of_path["call"]))
        .alias("thread"),
    )


def _labels_of_threads(
    trace: Trace, raw: pl.DataFrame, threads: Threads, *, by_line: bool
) -> pl.DataFrame:
    """Return the labels of blocking calls and of other time of threads, cut into pieces."""
    is_sync = (raw["what"] == "sync").to_numpy()
    row = raw["of"].to_numpy()
    key = row.copy()
    key[is_sync] = threads.calls[row[is_sync]]
    begin, end = raw["begin"].to_numpy(), raw["end"].to_numpy()
    host = HostTime.of(trace, threads, key, begin, end, is_sync)
    piece = host.interval
    call = np.where(is_sync[piece], row[piece], host.call)
    waits = Texts.of(trace.tables.calls["name"]).matching(host_calls.WAITS)
    pieces = pl.DataFrame(
        {
            "step_row": raw["step_row"].gather(piece),
            "begin": host.begin,
            "end": host.end,
            "waiting": is_sync[piece] | np.append(waits, [False])[call],
            "call": to_rows(call),
            "op": to_rows(host.op),
            "range": to_rows(host.range),
        }
    )
    on_thread = threads.known[host.thread]
    pieces = pieces.with_columns(on_thread["thread"], pl.lit(None, ROW).alias("frame"))
    if by_line and has_frames(trace):
        from traceana.timeline.source_frames import pieces_by_frame

        waiting = pieces["waiting"].to_numpy()
        part, since, until, frame = pieces_by_frame(trace, on_thread, host.begin, host.end, waiting)
        pieces = pieces[part].with_columns(
            pl.Series("begin", since), pl.Series("end", until), to_rows(frame).alias("frame")
        )
    operator, annotation = _operator_name(trace, pieces["op"]), _range_text(trace, pieces["range"])
    if trace.tables.ops.height:
        layer = trace.tables.ops["layer"].gather(pieces["op"])
    else:
        # In a trace of ranges alone it is that of the range.
        of_ranges = trace.tables.activities.filter(pl.col("kind") == "op").select("range", "layer")
        layer = pieces.join(
            of_ranges.unique("range", keep="first", maintain_order=True),
            on="range",
            how="left",
            maintain_order="left",
        )["layer"]
    return pieces.select(
        *_time_columns(),
        pl.when("waiting")
        .then(pl.lit("sync"))
        .otherwise(pl.lit("host"))
        .cast(CLASSES)
        .alias("class"),
        pl.when("waiting")
        .then(None)
        .when(pl.col("call").is_not_null())
        .then(pl.lit("call"))
        .when(operator.is_not_null())
        .then(pl.lit("operator"))
        .when(annotation.is_not_null())
        .then(pl.lit("range"))
        .alias("part"),
        _call_name(trace, pieces["call"]).alias("name"),
        pl.coalesce(operator, annotation).alias("operator"),
        layer.alias("layer_row"),
        "frame",
        pl.lit(None, pl.Int32).alias("device"),
        pl.lit(None, pl.Int64).alias("stream"),
        "thread",
    )


def _time_columns() -> tuple[pl.Expr, ...]:
    begin = pl.col("begin")
    return (
        pl.col("step_row"),
        begin.alias("start_ns"),
        (pl.col("end") - begin).alias("time_ns"),
    )


def _call_name(trace: Trace, rows: pl.Series) -> pl.Series:
    return trace.tables.calls["name"].gather(rows).cast(pl.String)


def _operator_name(trace: Trace, rows: pl.Series) -> pl.Series:
    return trace.tables.ops["name"].gather(rows).cast(pl.String)


def _range_text(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the text of each range; null for ranges that mark a step."""
    mark = ("start", "duration", "process", "rank")
    steps = trace.tables.steps.select(*mark, pl.lit(value=True).alias("marks")).unique()
    marks = trace.tables.ranges.select(mark).join(
        steps, on=mark, how="left", nulls_equal=True, maintain_order="left"
    )["marks"]
    texts = trace.tables.ranges["text"].gather(rows).cast(pl.String)
    return pl.select(pl.when(marks.gather(rows).is_null()).then(texts)).to_series()


def _gpu_share(trace: Trace, path: pl.DataFrame) -> tuple[str, ...]:
    """Return the GPU's share of the path, also without host time outside operators and calls.

    The second share is comparable with HolisticTraceAnalysis, whose path connects operators.
    """
    if not trace.tables.activities["kind"].is_in(DEVICE_WORK).any():
        return ()
    time, what = pl.col("time_ns"), pl.col("class")
    unexplained = (what == "host") & ~pl.col("part").is_in(["call", "operator"]).fill_null(
        value=False
    )
    gpu, whole, recorded = path.select(
        time.filter(what.is_in(GPU_WORK)).sum(),
        time.sum().alias("whole"),
        time.filter(~unexplained).sum().alias("recorded"),
    ).row(0)
    share = f"GPU share of the critical path {100 * gpu / whole:.1f} %"
    if not recorded:
        return (share, _NOT_IDLE)
    without = f"{100 * gpu / recorded:.1f} % without host time outside operators and calls"
    return (f"{share} · {without}", _NOT_IDLE)
