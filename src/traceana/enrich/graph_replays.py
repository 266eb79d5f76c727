"""CUDA graphs: operators, layers and directions of the work of replays, from their capture.

A replay launches all of a graph's nodes by one call, within no operator of the network. The
operators ran once, when the graph was captured: their launch calls have no work of their own.
:func:`of_replays` finds the node of each activity, from the first source that has it:

1. Nsight Systems records when each node was captured (``capture_time``).
2. The launch calls of a capture, in this trace or in another recording of the program, are in the
   order of the replay's activities (:mod:`traceana.enrich.graph_alignment.by_order`).
3. The network ran without graphs, in this trace or in the other recording: work of the same
   sequence of names and grids belongs to the same layers. The whole replay may be a sequence there,
   or runs of its activities (:mod:`traceana.enrich.graph_alignment.by_sequence`).

Where sources of equal standing disagree on an activity's layer, it gets none. Every replay gets
operators of its own, of no duration, so that counts by operator are counts of executions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Flags, Ints, from_rows, take, to_rows
from traceana.enrich.graph_alignment import (
    NODE_KINDS,
    Found,
    Replays,
    by_order,
    by_sequence,
    captures,
    pass_codes,
)
from traceana.enrich.launches import BEGIN_CAPTURE, GRAPH_LAUNCH, KERNEL_LAUNCH
from traceana.trace import Ledger, Trace
from traceana.trace.schema import ActivityKind, Direction, conform

_END: Final = r"^(?:cu|cuda|hip)StreamEndCapture"
_LAUNCH: Final = {
    "kernel": KERNEL_LAUNCH,
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
    captured = _captured_calls(trace.tables.calls, trace.tables.activities)
    if captured.is_empty():
        return trace, captured
    calls = trace.tables.calls[captured["row"]]
    added = pl.DataFrame(
        {
            "name_id": pl.Series([trace.tables.names.height] * calls.height, dtype=pl.UInt32),
            "kind": pl.Series(["sync"] * calls.height, dtype=ActivityKind),
            "start": calls["start"],
            "duration": pl.Series([0] * calls.height, dtype=pl.Int64),
            "process": calls["process"],
            "correlation": calls["correlation"],
        }
    )
    name = conform("names", pl.DataFrame({"name": [_CAPTURED]}))
    return trace.with_tables(
        activities=pl.concat([trace.tables.activities, conform("activities", added)]),
        names=pl.concat([trace.tables.names, name]),
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
    begins, ends = names.matching(BEGIN_CAPTURE), names.matching(_END)
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


_BY_NODE: Final = 1.0
"""Confidence of the records of nodes."""


def of_replays(
    trace: Trace, captured: pl.DataFrame, reference: tuple[Trace, pl.DataFrame] | None
) -> Trace:
    """Return ``trace`` with operator, layer and direction of the activities of graph replays.

    ``captured`` are its captured calls, by :func:`with_captured`, whose activities are removed
    again. ``reference`` is another recording of the same program, attributed, and its captured
    calls. The ledger counts what each source contributed.
    """
    own, replays = trace, Replays.of(trace)
    kept = trace.tables.activities.height - captured.height
    trace = trace.with_tables(
        activities=trace.tables.activities.head(kept),
        names=trace.tables.names.head(trace.tables.names.height - (1 if captured.height else 0)),
    )
    if not len(replays.rows):
        return trace
    found_captures = [*captures(own, captured)]
    if reference is not None:
        found_captures += captures(*reference)
    ledger = Ledger()
    result = _Attribution(trace, own, replays)
    result.take_nodes()
    for found in by_order(trace, replays, found_captures, result.open(), across_streams=False):
        result.take(found)
    result.count(ledger, "graph_capture")
    for other in [trace] if reference is None else [trace, reference[0]]:
        if result.open().any():
            for found in by_sequence(trace, replays, other, result.open()):
                result.take(found)
    result.count(ledger, "graph_sequence")
    for found in by_order(trace, replays, found_captures, result.open(), across_streams=True):
        result.take(found)
    result.count(ledger, "graph_capture")
    result.count_rest(ledger)
    return result.trace(ledger)


class _Attribution:
    """The sources found so far for the activities of replays, and the Trace with them."""

    def __init__(self, trace: Trace, own: Trace, replays: Replays) -> None:
        """``own`` is ``trace`` with the activities of its captured launches."""
        self._trace, self._own_traces, self._replays = trace, (trace, own), replays
        size = len(replays.rows)
        self._confidence = np.full(size, np.nan)
        self._from: list[tuple[Trace, Ints]] = []
        self._counted = np.zeros(size, dtype=np.bool_)
        self._by_node = np.zeros(size, dtype=np.bool_)

    def open(self) -> Flags:
        """Return which activities have no source so far."""
        found: Flags = np.isnan(self._confidence)
        return found

    def take_nodes(self) -> None:
        """Accept the operators and layers at the times of capture, which are those in the trace."""
        times = self._trace.tables.activities["capture_time"][to_rows(self._replays.rows)]
        self._by_node = times.is_not_null().to_numpy()
        self._confidence[self._by_node] = _BY_NODE

    def take(self, found: Found) -> None:
        """Accept the sources ``found`` for activities that have none."""
        new = self.open() & (found.row != NONE)
        self._confidence[new] = found.confidence[new]
        self._from.append((found.trace, np.where(new, found.row, NONE)))

    def count(self, ledger: Ledger, reason: str) -> None:
        """Count in ``ledger`` what has a source since the last call."""
        new = ~self.open() & ~self._counted
        self._counted |= new
        self._add(ledger, reason, new)

    def count_rest(self, ledger: Ledger) -> None:
        """Count in ``ledger`` what has no source."""
        self._add(ledger, "graph_unknown", self.open())

    def _add(self, ledger: Ledger, reason: str, which: Flags) -> None:
        rows = to_rows(self._replays.rows[which])
        time_ns = int(self._trace.tables.activities["duration"].gather(rows).sum())
        ledger.add(reason, int(which.sum()), table="activities", kept=True, time_ns=time_ns)

    def trace(self, ledger: Ledger) -> Trace:
        """Return the Trace with what was found, and with the entries of ``ledger``."""
        trace, rows = self._trace, self._replays.rows
        layers = _Layers(trace.tables.layers)
        op, layer = (from_rows(trace.tables.activities[key]).copy() for key in ("op", "layer"))
        direction = pass_codes(trace.tables.activities["direction"]).copy()
        instances = _Instances(trace.tables.ops, self._replays)
        if self._by_node.any():
            places = np.flatnonzero(self._by_node)
            op[rows[places]] = instances.add(trace, places, op[rows[places]], _same)
        for source, found in self._from:
            places = np.flatnonzero(found != NONE)
            if not len(places):
                continue
            at = found[places]
            own = any(source is one for one in self._own_traces)
            to_layer = _same if own else layers.of(source)
            theirs = source.tables.activities
            layer[rows[places]] = to_layer(from_rows(theirs["layer"])[at])
            direction[rows[places]] = pass_codes(theirs["direction"])[at]
            op[rows[places]] = instances.add(source, places, from_rows(theirs["op"])[at], to_layer)
        confidence = np.full(trace.tables.activities.height, np.nan)
        confidence[rows] = self._confidence
        directions = pl.Series(Direction.categories, dtype=Direction).gather(to_rows(direction))
        return trace.with_tables(
            activities=trace.tables.activities.with_columns(
                to_rows(op).alias("op"),
                to_rows(layer).alias("layer"),
                directions.alias("direction"),
                pl.Series("layer_confidence", confidence).fill_nan(None),
            ),
            ops=instances.ops(),
            layers=layers.frame(),
            ledger=pl.concat([trace.tables.ledger, ledger.frame()]),
        )


def _same(rows: Ints) -> Ints:
    return rows


class _Layers:
    """The layers of a trace, and those of others that its work belongs to."""

    def __init__(self, layers: pl.DataFrame) -> None:
        self._parts = [layers]
        self._rows = {row: i for i, row in enumerate(layers.select("path", "role").iter_rows())}

    def of(self, other: Trace) -> Callable[[Ints], Ints]:
        """Return the function from rows of ``other``'s layers to rows here; adds what is new."""
        theirs = other.tables.layers
        keys = list(theirs.select("path", "role").iter_rows())
        new = [i for i, key in enumerate(keys) if key not in self._rows]
        for i in new:
            self._rows[keys[i]] = len(self._rows)
        row = np.array([self._rows[key] for key in keys], dtype=np.int64)
        if new:
            parent = to_rows(take(row, from_rows(theirs["parent"])))
            added = theirs.with_columns(
                parent.alias("parent"),
                pl.Series("position", row).cast(theirs.schema["position"]),
            )[new]
            self._parts.append(added)
        return lambda rows: take(row, rows)

    def frame(self) -> pl.DataFrame:
        """Return the table."""
        return pl.concat(self._parts)


class _Instances:
    """The operators of a trace, and those of the replays: copies, of no duration, at the launch."""

    def __init__(self, ops: pl.DataFrame, replays: Replays) -> None:
        self._parts, self._height = [ops], ops.height
        self._replays = replays
        self._sequence = int(ops["sequence"].max() or 0) + 1  # type: ignore[arg-type]

    def add(self, source: Trace, places: Ints, op: Ints, to_layer: Callable[[Ints], Ints]) -> Ints:
        """Return the row of the copy of each ``op`` of ``source`` for the replay at ``places``."""
        ops = source.tables.ops
        replay = self._replays.replay[places]
        height = ops.height + 1
        parent = from_rows(ops["parent"])
        # Pairs of replay and operator, with those around it.
        wanted = np.unique((replay * height + op)[op != NONE])
        new = wanted
        while len(new):
            above = take(parent, new % height)
            new = np.setdiff1d(np.unique((new // height * height + above)[above != NONE]), wanted)
            wanted = np.union1d(wanted, new)
        of, row = wanted // height, wanted % height
        calls = self._replays.calls[of]
        # A replay's operators have sequence numbers of their own, as in a step.
        apart = pl.Series((self._replays.turn[of] + 1) * self._sequence)
        copies = ops[to_rows(row)].with_columns(
            pl.lit(0, pl.Int64).alias("duration"),
            calls["start"].alias("start"),
            calls["process"].alias("process"),
            calls["thread"].alias("thread"),
            to_rows(self._at(wanted, of, take(parent, row), height)).alias("parent"),
            (pl.col("sequence") + apart).alias("sequence"),
            to_rows(to_layer(from_rows(ops["layer"])[row])).alias("layer"),
        )
        found = self._at(wanted, replay, op, height)
        self._parts.append(copies)
        self._height += copies.height
        return found

    def _at(self, wanted: Ints, replay: Ints, op: Ints, height: int) -> Ints:
        place = np.searchsorted(wanted, replay * height + op)
        return np.where(op == NONE, NONE, place + self._height)

    def ops(self) -> pl.DataFrame:
        """Return the table."""
        return pl.concat(self._parts)
