"""What each stretch of a path is: its class, and the kernel, call, operator and layer it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.critical.device import BY_EVENT, BY_STREAM
from traceana.analyze.critical.host import WAITING
from traceana.analyze.critical.pieces import cut
from traceana.analyze.critical.threads import Threads
from traceana.analyze.critical.walk import GAP, HOST, LAUNCH, SYNC, WORK
from traceana.enrich.nesting import NONE, Nesting, matching, to_rows
from traceana.enrich.ranges import Surroundings

if TYPE_CHECKING:
    from traceana.trace import Trace

CLASSES: Final = pl.Enum(
    ["kernel", "collective", "copy", "memset", "launch", "sync", "host", "gap"]
)


def labelled(trace: Trace, raw: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    """Return the stretches of :mod:`traceana.analyze.critical.walk`, told what they are.

    ``raw`` has ``step_row``, ``begin``, ``end``, ``what``, ``of`` (row of an activity or a call,
    key of a thread) and ``why`` (of what a piece of work waited for). A thread's time is cut where
    what it is at changes. Columns: ``step_row``, ``start_ns``, ``time_ns``, and:

    ``class``, ``part``
        ``kernel`` (by category), ``collective`` (by function), ``copy`` (by direction), ``memset``;
        ``launch``: from the return of the launching call to the begin of the work; ``sync``: in a
        call that waits, when what it waits for has ended or nothing is to be waited for; ``host``
        in a runtime ``call``, an ``operator``, a ``range``, or else null; ``gap``: the device at
        nothing that is on the path, between work in order on a ``stream`` or by an ``event``; null
        where it is not recorded why, or when the work was launched.
    ``name``
        The kernel's or copy's; of launch, sync and host the call's.
    ``operator``, ``layer_row``
        Operator, or where none is the innermost annotation, and row of ``layers``; of launch and
        gap, of the work that follows.
    ``device``, ``stream``, ``thread``
        Where it was; ``thread`` of launch, sync and host.
    """
    on_device = raw.filter(pl.col("what").is_in([WORK, GAP, LAUNCH]))
    on_host = raw.filter(pl.col("what").is_in([SYNC, HOST]) & (pl.col("of") != NONE))
    nothing = raw.filter((pl.col("what") == HOST) & (pl.col("of") == NONE))
    return pl.concat(
        [_of_work(trace, on_device), _of_threads(trace, on_host, threads), _of_nothing(nothing)]
    )


def _of_work(trace: Trace, raw: pl.DataFrame) -> pl.DataFrame:
    columns = (*SOURCE, "op", "call", "layer", "device", "stream", "range")
    work = trace.activities.select(pl.col(columns).gather(raw["of"]))
    found = classified(raw.hstack(work), trace)
    category, what, why = pl.col("category"), pl.col("what"), pl.col("why")
    is_work = what == WORK
    own = (
        pl.when(category == "memcpy")
        .then(pl.lit("copy"))
        .when(category.is_in(["collective", "memset"]))
        .then(category)
        .otherwise(pl.lit("kernel"))
    )
    part = pl.when(category.is_in(["memcpy", "memset", "collective"])).then("part")
    reason = (
        pl.when((why == BY_STREAM) & pl.col("call").is_not_null())
        .then(pl.lit("stream"))
        .when(why == BY_EVENT)
        .then(pl.lit("event"))
    )
    names = trace.names["name"].gather(found["name_id"])
    calls = _call(trace, found["call"])
    operator = pl.coalesce(_operator(trace, found["op"]), _annotation(trace, found["range"]))
    return found.select(
        *_times(),
        pl.when(is_work)
        .then(own)
        .when(what == LAUNCH)
        .then(pl.lit("launch"))
        .otherwise(pl.lit("gap"))
        .cast(CLASSES)
        .alias("class"),
        pl.when(is_work)
        .then(pl.when(own == "kernel").then(category).otherwise(part))
        .when(what == GAP)
        .then(reason)
        .alias("part"),
        pl.when(is_work).then(names).when(what == LAUNCH).then(calls).alias("name"),
        operator.alias("operator"),
        pl.col("layer").alias("layer_row"),
        "device",
        "stream",
        pl.when(what == LAUNCH).then(trace.calls["thread"].gather(found["call"])).alias("thread"),
    )


def _of_threads(trace: Trace, raw: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    is_sync = (raw["what"] == SYNC).to_numpy()
    of = raw["of"].to_numpy()
    key = of.copy()
    key[is_sync] = threads.calls[of[is_sync]]
    ops, calls = (
        Nesting.of(keys, frame["start"].to_numpy(), frame["duration"].to_numpy())
        for frame, keys in ((trace.ops, threads.ops), (trace.calls, threads.calls))
    )
    ranges = Surroundings.of(trace.ranges, threads.ranges)
    piece, begin, end = cut(
        key, raw["begin"].to_numpy(), raw["end"].to_numpy(), is_sync, [ops, calls, ranges.nesting]
    )
    key, is_sync = key[piece], is_sync[piece]
    call = np.where(is_sync, of[piece], calls.innermost(key, begin))
    waiting = is_sync.copy()
    waiting[call != NONE] |= matching(trace.calls["name"], WAITING)[call[call != NONE]]
    found = pl.DataFrame(
        {
            "step_row": raw["step_row"].gather(piece),
            "begin": begin,
            "end": end,
            "key": key,
            "waiting": waiting,
            "call": to_rows(call),
            "op": to_rows(ops.innermost(key, begin)),
            "range": to_rows(ranges.innermost(key, begin)),
        }
    ).join(threads.numbers, on="key", how="left", maintain_order="left")
    operator, annotation = _operator(trace, found["op"]), _annotation(trace, found["range"])
    return found.select(
        *_times(),
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
        _call(trace, found["call"]).alias("name"),
        pl.coalesce(operator, annotation).alias("operator"),
        trace.ops["layer"].gather(found["op"]).alias("layer_row"),
        pl.lit(None, pl.Int32).alias("device"),
        pl.lit(None, pl.Int64).alias("stream"),
        "thread",
    )


def _of_nothing(raw: pl.DataFrame) -> pl.DataFrame:
    unknown = {name: pl.lit(None, dtype).alias(name) for name, dtype in _UNKNOWN.items()}
    return raw.select(
        *_times(),
        pl.lit("gap").cast(CLASSES).alias("class"),
        *unknown.values(),
    )


_UNKNOWN: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "part": pl.String,
    "name": pl.String,
    "operator": pl.String,
    "layer_row": pl.UInt32,
    "device": pl.Int32,
    "stream": pl.Int64,
    "thread": pl.Int64,
}


def _times() -> tuple[pl.Expr, ...]:
    begin = pl.col("begin")
    return (
        pl.col("step_row"),
        begin.alias("start_ns"),
        (pl.col("end") - begin).alias("time_ns"),
    )


def _call(trace: Trace, rows: pl.Series) -> pl.Series:
    return trace.calls["name"].gather(rows).cast(pl.String)


def _operator(trace: Trace, rows: pl.Series) -> pl.Series:
    return trace.ops["name"].gather(rows).cast(pl.String)


def _annotation(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the text of each range; one that marks a step says nothing, and is null."""
    mark = ("start", "duration", "process", "rank")
    steps = trace.steps.select(*mark, pl.lit(value=True).alias("marks")).unique()
    marks = trace.ranges.select(mark).join(
        steps, on=mark, how="left", nulls_equal=True, maintain_order="left"
    )["marks"]
    texts = trace.ranges["text"].gather(rows).cast(pl.String)
    return pl.select(pl.when(marks.gather(rows).is_null()).then(texts)).to_series()
