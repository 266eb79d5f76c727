"""The launch calls of graph captures, which have no work of their own."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.enrich import GRAPH_LAUNCH
from traceana.enrich.graphs.replayed_work import NODE_KINDS
from traceana.enrich.nesting import NONE
from traceana.enrich.texts import Texts
from traceana.trace import Trace
from traceana.trace.schema import ActivityKind, conform

_BEGIN: Final = r"^(?:cu|cuda|hip)StreamBeginCapture"
_END: Final = r"^(?:cu|cuda|hip)StreamEndCapture"
_LAUNCH: Final = {
    "kernel": r"^(?:cu|cuda|hip)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel",
    "memcpy": r"^(?:cu|cuda|hip)Memcpy\w*Async",
    "memset": r"^(?:cu|cuda|hip)Memset\w*Async",
}
"""Calls that become nodes while a stream is captured, by the kind of the node's work."""
_CAPTURED: Final = "(captured launch)"
"""Name of the activities that stand for launch calls of a capture while they are attributed."""


def with_captured(trace: Trace) -> tuple[Trace, pl.DataFrame]:
    """Return ``trace`` with an activity for each captured launch call, and the captured calls.

    The calls are ``row`` (of ``calls``), ``kind`` and ``capture``, the number of the capture. The
    activities are the last ones, and are no device work. Calls are captured between the beginning
    and the end of a capture on any thread of the process, because autograd launches from a thread
    of its own. Where neither was recorded, they are the calls in a row without work.
    """
    captured = _captured_calls(trace.calls, trace.activities)
    if captured.is_empty():
        return trace, captured
    calls = trace.calls[captured["row"]]
    added = pl.DataFrame(
        {
            "name_id": pl.Series([trace.names.height] * calls.height, dtype=pl.UInt32),
            "kind": pl.Series(["sync"] * calls.height, dtype=ActivityKind),
            "start": calls["start"],
            "duration": pl.Series([0] * calls.height, dtype=pl.Int64),
            "process": calls["process"],
            "correlation": calls["correlation"],
        }
    )
    name = conform("names", pl.DataFrame({"name": [_CAPTURED]}))
    return trace.with_tables(
        activities=pl.concat([trace.activities, conform("activities", added)]),
        names=pl.concat([trace.names, name]),
    ), captured


def _captured_calls(calls: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    names = Texts.of(calls["name"])
    kind = np.full(calls.height, NONE, dtype=np.int64)
    for code, pattern in enumerate(_LAUNCH[one] for one in NODE_KINDS):
        kind[names.matching(pattern)] = code
    worked = calls["correlation"].is_in(activities["correlation"].drop_nulls().unique().implode())
    alone = (kind != NONE) & ~worked.fill_null(value=False).to_numpy()
    empty = {"row": pl.Int64, "kind": pl.Int64, "capture": pl.Int64}
    if not alone.any() or activities["correlation"].null_count() == activities.height > 0:
        return pl.DataFrame(schema=empty)
    begins, ends = names.matching(_BEGIN), names.matching(_END)
    graphs = names.matching(GRAPH_LAUNCH)
    # Only what begins, ends or interrupts a capture matters.
    rows = np.flatnonzero((kind != NONE) | begins | ends | graphs)
    table = (
        calls.select(pl.col("process").fill_null(NONE), "start")[rows]
        .with_columns(
            pl.Series("row", rows),
            pl.Series("kind", kind[rows]),
            pl.Series("alone", alone[rows]),
            pl.Series("change", begins[rows].astype(np.int64) - ends[rows]),
            pl.Series("marked", begins[rows]),
            # Copies of a loader run beside a capture.
            pl.Series("interrupts", graphs[rows] | ((kind[rows] == 0) & ~alone[rows])),
        )
        .sort("process", "start", "row")
        .with_columns(
            pl.col("change").cum_sum().over("process").alias("open"),
            pl.col("marked").any().over("process"),
        )
        .with_columns(
            (pl.col("alone") & (~pl.col("marked") | (pl.col("open") > 0))).alias("in_capture")
        )
        .with_columns(
            # A nested capture, of a side stream, belongs to the one around it.
            pl.when("marked")
            .then((pl.col("change") > 0) & (pl.col("open") == 1))
            .otherwise(pl.col("interrupts") | pl.int_range(pl.len()).eq(0).over("process"))
            .cum_sum()
            .alias("capture")
        )
        .filter("in_capture")
    )
    return table.select(pl.col("row", "kind", "capture").cast(pl.Int64))
