"""Operators, layers and directions of the work of CUDA graph replays.

A replay launches all of a graph's nodes by one call, within no operator of the network. The
operators ran once, when the graph was captured: their launch calls have no work of their own.
:func:`of_replays` finds the node of each activity, from the first source that has it:

1. Nsight Systems records when each node was captured (``capture_time``).
2. The launch calls of a capture, in this trace or in another recording of the program, are in the
   order of the replay's activities (:mod:`traceana.enrich.graph_alignment`).
3. The network ran without graphs, in this trace or in the other recording: work of the same
   sequence of names and grids belongs to the same layers. The whole replay may be a sequence there,
   or runs of its activities (:mod:`traceana.enrich.layers.repetition`).

Where sources of equal standing disagree on an activity's layer, it gets none. Every replay gets
operators of its own, of no duration, so that counts by operator are counts of executions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from traceana.enrich import GRAPH_LAUNCH
from traceana.enrich.graph_alignment import Launches, align
from traceana.enrich.layers.repetition import Repetitions
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, take, to_rows
from traceana.enrich.texts import Texts
from traceana.settings import CAPTURE_DISAGREEMENT, LARGEST_CAPTURE_GAP
from traceana.trace import Ledger, Trace
from traceana.trace.schema import DEVICE_WORK, ActivityKind, Direction, conform

_BEGIN: Final = r"^(?:cu|cuda|hip)StreamBeginCapture"
_END: Final = r"^(?:cu|cuda|hip)StreamEndCapture"
_LAUNCH: Final = {
    "kernel": r"^(?:cu|cuda|hip)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel",
    "memcpy": r"^(?:cu|cuda|hip)Memcpy\w*Async",
    "memset": r"^(?:cu|cuda|hip)Memset\w*Async",
}
"""Calls that become nodes while a stream is captured, by the kind of the node's work."""
_PASSES: Final = len(Direction.categories) + 1
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "bytes")
_CAPTURED: Final = "(captured launch)"
"""Name of the activities that stand for launch calls of a capture while they are attributed."""

_OF_OPERATOR: Final = {
    r"(?i)convolve|winograd|fprop|dgrad|wgrad|implicit_gemm|conv[123]d": r"(?i)conv",
    r"(?i)gemm|Cijk_|cutlass_\d|nvjet|gemv|splitKreduce": r"(?i)mm|linear|matmul|conv|mv|attention|"
    r"lstm|gru|rnn|einsum|moe|expert|compiled",
    r"(?i)softmax": r"(?i)softmax|attention|loss|moe|compiled",
    r"(?i)batch_?norm|bn_(?:fw|bw)": r"(?i)norm",
    r"(?i)layer_?norm": r"(?i)norm|compiled",
    r"(?i)max_?pool|avg_?pool": r"(?i)pool",
    r"(?i)embedding": r"(?i)embedding|index|lookup|gather",
    r"(?i)nccl(?:Dev)?Kernel|rcclGenericKernel": r"(?i)nccl|c10d|reduce|broadcast|gather|scatter|"
    r"comms|all_?to_?all|barrier|send|recv",
    r"FillFunctor": r"(?i)fill|zero|ones|full|arange|scalar|norm|grad|index|embedding|pool|new_",
    r"threshold_kernel|launch_clamp": r"(?i)threshold|relu|clamp",
    r"multi_tensor_apply": r"(?i)foreach|fused|multi_tensor|optim|amp|norm",
    r"direct_copy_kernel": r"(?i)copy|to|contiguous|clone|cat|cast|expand",
    r"sigmoid": r"(?i)sigmoid|silu|swish|lstm|gru|bce|loss",
    r"tanh": r"(?i)tanh|gelu|lstm|gru",
    r"(?i)dropout": r"(?i)dropout|attention",
}
"""Kernels that only operators with such names launch: a check of an alignment by order."""

_BY_NODE: Final = 1.0
_BY_ORDER: Final = 0.98
_BY_ORDER_OF_STREAMS: Final = 0.7
"""Without node ids, the order in which several streams ran is not that of the capture."""
_BY_WHOLE_SEQUENCE: Final = 0.95
_BY_SEQUENCE: Final = 0.9
"""Confidence by source. That of runs is multiplied by the part of the replay that has a source."""


Kinds = Ints
Bits = np.ndarray[tuple[int], np.dtype[np.uint32]]
Texts_ = np.ndarray[tuple[int], np.dtype[np.object_]]


class _Replays(msgspec.Struct, frozen=True):
    """The activities of graph replays: rows, and the number of each one's replay and graph."""

    rows: Ints
    """Rows of ``activities``."""
    replay: Ints
    """The replay of each of ``rows``."""
    calls: pl.DataFrame
    """The launch call of each replay: process, thread, start."""
    turn: Ints
    """The number of each replay among those of its graph."""

    @classmethod
    def of(cls, trace: Trace) -> _Replays:
        """Return the replays of ``trace``, whose activities have their calls."""
        calls, activities = trace.calls, trace.activities
        launches = Texts.of(calls["name"]).matching(GRAPH_LAUNCH)
        call = from_rows(activities["call"])
        of_graph = np.append(launches, False)[call] & (call != NONE)
        # A graph that was recorded whole has no nodes.
        nodes = activities["kind"].is_in([kind for kind in DEVICE_WORK if kind != "graph"])
        rows = np.flatnonzero(of_graph & nodes.to_numpy())
        distinct, replay = np.unique(call[rows], return_inverse=True)
        launched = calls.select("process", "thread", "start")[distinct]
        found = cls(rows, replay.astype(np.int64), launched, np.zeros(len(distinct), np.int64))
        names = activities["name_id"].to_numpy()[rows]
        graphs: dict[bytes, int] = {}
        for at, places in enumerate(found.each(activities["start"].to_numpy()[rows])):
            graph = names[places].tobytes()
            found.turn[at] = graphs[graph] = graphs.get(graph, -1) + 1
        return found

    def each(self, order: Ints) -> Iterator[Ints]:
        """Yield the places in ``rows`` of each replay's activities, sorted by ``order``."""
        by_replay = np.lexsort((order, self.replay))
        ends = np.flatnonzero(np.diff(self.replay[by_replay], append=-1)) + 1
        begin = 0
        for end in ends.tolist():
            yield by_replay[begin:end]
            begin = end


class _Capture(msgspec.Struct, frozen=True):
    """One capture: rows of the activities of its launch calls in ``of``, in order; their kinds."""

    of: Trace
    rows: Ints
    kinds: Kinds

    def layers(self) -> Ints:
        """Return a number for the layer and direction of each launch."""
        work = self.of.activities[to_rows(self.rows)]
        return from_rows(work["layer"]) * _PASSES + _codes(work["direction"]) + 1

    def texts_of(self, layers: Ints) -> Texts_:
        """Return the layers by path, role and direction, comparable with other recordings."""
        named = self.of.layers.select(pl.format("{} {}", "path", "role")).to_series()
        text = named.gather(to_rows(np.where(layers < 0, NONE, layers // _PASSES)))
        return np.array(
            [f"{name} {number % _PASSES}" for name, number in zip(text, layers, strict=True)],
            dtype=object,
        )

    def operators(self) -> pl.Series:
        """Return the names of the operators around each launch, joined; empty outside operators."""
        ops = self.of.ops
        row = from_rows(self.of.activities["op"])[self.rows]
        parent, name = from_rows(ops["parent"]), ops["name"].cast(pl.String)
        text = pl.Series([""] * len(row), dtype=pl.String)
        while (row != NONE).any():
            text = text + "/" + name.gather(to_rows(row)).fill_null("")
            row = take(parent, row)
        return text


class _Found(NamedTuple):
    """Source of each activity of a replay: its recording, the row of the activity there."""

    trace: Trace
    row: Ints
    confidence: np.ndarray[tuple[int], np.dtype[np.float64]]


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
    for code, pattern in enumerate(_LAUNCH.values()):
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


def of_replays(
    trace: Trace, captured: pl.DataFrame, reference: tuple[Trace, pl.DataFrame] | None
) -> Trace:
    """Return ``trace`` with operator, layer and direction of the activities of graph replays.

    ``captured`` are its captured calls, by :func:`with_captured`, whose activities are removed
    again. ``reference`` is another recording of the same program, attributed, and its captured
    calls. The ledger counts what each source contributed.
    """
    own, replays = trace, _Replays.of(trace)
    kept = trace.activities.height - captured.height
    trace = trace.with_tables(
        activities=trace.activities.head(kept),
        names=trace.names.head(trace.names.height - (1 if captured.height else 0)),
    )
    if not len(replays.rows):
        return trace
    captures = [*_captures(own, captured)]
    if reference is not None:
        captures += _captures(*reference)
    ledger = Ledger()
    result = _Attribution(trace, own, replays)
    result.take_nodes()
    for found in _by_order(trace, replays, captures, result.open(), across_streams=False):
        result.take(found)
    result.count(ledger, "graph_capture")
    for other in [trace] if reference is None else [trace, reference[0]]:
        if result.open().any():
            for found in _by_sequence(trace, replays, other, result.open()):
                result.take(found)
    result.count(ledger, "graph_sequence")
    for found in _by_order(trace, replays, captures, result.open(), across_streams=True):
        result.take(found)
    result.count(ledger, "graph_capture")
    result.count_rest(ledger)
    return result.trace(ledger)


def _captures(trace: Trace, captured: pl.DataFrame) -> Iterator[_Capture]:
    """Yield the captures of ``trace``, whose last activities are those of ``captured``."""
    first = trace.activities.height - captured.height
    numbered = captured.with_columns(pl.int_range(pl.len()).alias("place") + first)
    for _, capture in numbered.group_by("capture", maintain_order=True):
        yield _Capture(trace, capture["place"].to_numpy(), capture["kind"].to_numpy())


def _by_order(
    trace: Trace,
    replays: _Replays,
    captures: list[_Capture],
    wanted: Flags,
    *,
    across_streams: bool,
) -> list[_Found]:
    """Return the sources of ``wanted`` activities in captures, by order.

    Nodes are in the order of their ids, where the trace has them, else in that of their starts:
    for replays on several streams only if ``across_streams``.
    """
    work = trace.activities[replays.rows]
    codes = (
        work["kind"]
        .cast(pl.String)
        .replace_strict(
            {kind: code for code, kind in enumerate(_LAUNCH)},
            default=len(_LAUNCH),
            return_dtype=pl.UInt8,
        )
    )
    kinds, name = codes.to_numpy(), work["name_id"].to_numpy()
    stream, start = from_rows(work["stream"]), work["start"].to_numpy()
    node = from_rows(work["graph_node"])
    size = len(replays.rows)
    rows = {id(one.of): np.full(size, NONE, dtype=np.int64) for one in captures}
    traces = {id(one.of): one.of for one in captures}
    confidence = np.zeros(size)
    known: dict[tuple[bytes, bytes], tuple[_Capture, Ints, float] | None] = {}
    if not captures:
        return []
    orders = [node, start] if (node != NONE).all() else [start]
    for order in orders:
        for places in replays.each(order):
            if not wanted[places].any() or confidence[places].any():
                continue
            if order is node and len(np.unique(node[places])) != len(places):
                continue
            several = order is start and len(np.unique(stream[places])) > 1
            if several and not across_streams:
                continue
            key = (kinds[places].tobytes(), name[places].tobytes())
            if key not in known:
                known[key] = _chosen(captures, trace, kinds[places], name[places], not several)
            chosen = known[key]
            if chosen is None:
                continue
            capture, source, fit = chosen
            rows[id(capture.of)][places] = take(capture.rows, source)
            confidence[places] = (_BY_ORDER_OF_STREAMS if several else _BY_ORDER) * fit
    return [_Found(traces[at], found, confidence) for at, found in rows.items()]


def _chosen(
    captures: list[_Capture], trace: Trace, kinds: Kinds, names: Ints, in_order: bool
) -> tuple[_Capture, Ints, float] | None:
    """Return the capture of a replay, the launch of each activity in it, and how well they fit.

    ``kinds`` and ``names`` are those of the replay's activities. Of several captures the last that
    fits best is taken, and an activity whose layer differs among them has the launch NONE. None if
    no capture fits.
    """
    of_kernel = _recognized(trace.names["name"].gather(names), list(_OF_OPERATOR))
    found = []
    for capture in captures:
        if abs(len(capture.kinds) - len(kinds)) > LARGEST_CAPTURE_GAP * len(kinds):
            continue
        allowed = _recognized(capture.operators(), list(_OF_OPERATOR.values()))
        layers = capture.layers()
        launches = Launches(capture.kinds, allowed, layers)
        source = align(launches, kinds, of_kernel, in_order=in_order)
        checked = (of_kernel != 0) & (source != NONE)
        fits = (np.append(allowed, np.uint32(0))[source] & of_kernel) != 0
        fit = float(fits[checked].mean()) if checked.any() else 1.0
        part = float((source != NONE).mean())
        if fit >= 1 - CAPTURE_DISAGREEMENT and part >= 1 - LARGEST_CAPTURE_GAP:
            found.append((fit * part, capture, source, layers))
    if not found:
        return None
    best = max(fit for fit, *_ in found)
    equal = [(capture, source, layers) for fit, capture, source, layers in found if fit == best]
    capture, source, layers = equal[-1]
    texts = capture.texts_of(take(layers, source))
    for other, other_source, other_layers in equal[:-1]:
        same = other.texts_of(take(other_layers, other_source)) == texts
        source = np.where(same, source, NONE)
    return capture, source, best


def _recognized(texts: pl.Series, patterns: list[str]) -> Bits:
    """Return a bit for each of ``patterns`` that each of ``texts`` contains."""
    bits = np.zeros(len(texts), dtype=np.uint32)
    for place, pattern in enumerate(patterns):
        found = texts.str.contains(pattern).fill_null(value=False).to_numpy()
        bits |= found.astype(np.uint32) << np.uint32(place)
    return bits


def _by_sequence(trace: Trace, replays: _Replays, other: Trace, wanted: Flags) -> list[_Found]:
    """Return sources in the work of ``other`` that no replay launched, in equal sequences.

    Both traces are searched as one, ``other`` behind ``trace``.
    """
    own = trace.activities.height
    same = other is trace
    searched = trace.activities if same else _behind(trace, other)
    offset = 0 if same else own
    layer = from_rows(other.activities["layer"])
    role = other.layers["role"].cast(pl.String)
    attributed = np.append((role != "unattributed").to_numpy(), False)[layer]
    if same:
        attributed[replays.rows] = False
    code = _codes(other.activities["direction"]) + 1
    known = np.full(searched.height, NONE, dtype=np.int64)
    known[offset:] = np.where(attributed, layer * _PASSES + code, NONE)
    asked = np.zeros(searched.height, dtype=np.bool_)
    asked[replays.rows[wanted]] = True
    whole = _whole(searched, known, asked, replays)
    at = np.where(whole == NONE, NONE, whole - offset)[replays.rows]
    found = _Found(other, at, np.full(len(at), _BY_WHOLE_SEQUENCE))
    asked[replays.rows[at != NONE]] = False
    (row,) = Repetitions(searched).sources((known,), pl.Series(asked))
    runs = row[replays.rows]
    runs = np.where(runs == NONE, NONE, runs - offset)
    count = replays.calls.height
    met = np.bincount(replays.replay, weights=(runs != NONE) | (at != NONE), minlength=count)
    of = np.bincount(replays.replay, minlength=count)
    part = met / np.maximum(of, 1)
    return [found, _Found(other, runs, _BY_SEQUENCE * part[replays.replay])]


def _whole(searched: pl.DataFrame, known: Ints, asked: Flags, replays: _Replays) -> Ints:
    """Return the source of each ``asked`` activity in a sequence equal to its replay, or NONE.

    A replay is compared stream by stream, because the streams of a capture may have other numbers
    than those of a replay, with all work of the sources in the order of each stream. Where it
    occurs several times, an activity has a source if all occurrences have the same of ``known``.
    """
    symbol = (
        searched.select(pl.struct("name_id", *_SIZES).rank("dense").cast(pl.UInt32))
        .to_series()
        .to_numpy()
    )
    start = searched["start"].to_numpy()
    lane = (
        searched.select(pl.struct("rank", "device", "context", "stream").rank("dense"))
        .to_series()
        .to_numpy()
    )
    work = searched["kind"].is_in([*_LAUNCH]).to_numpy()
    replayed = np.zeros(len(symbol), dtype=np.bool_)
    replayed[replays.rows] = True
    sources = np.flatnonzero(work & ~replayed)
    sources = sources[np.lexsort((start[sources], lane[sources]))]
    # A lane ends with a symbol that no activity has, so that no sequence continues in the next.
    text, row = _with_ends(symbol[sources], lane[sources], sources)
    found = np.full(len(symbol), NONE, dtype=np.int64)
    answers: dict[bytes, Ints] = {}
    for places in replays.each(start[replays.rows]):
        rows = replays.rows[places]
        if not asked[rows].any():
            continue
        for one in np.unique(lane[rows]):
            own = rows[lane[rows] == one]
            key = symbol[own].tobytes()
            if key not in answers:
                answers[key] = _occurrences(text, row, key, known)
            found[own] = np.where(asked[own], answers[key], NONE)
    return found


def _with_ends(symbol: np.ndarray, lane: Ints, rows: Ints) -> tuple[bytes, Ints]:
    ends = np.flatnonzero(np.diff(lane)) + 1
    return np.insert(symbol, ends, 0).tobytes(), np.insert(rows, ends, NONE)


def _occurrences(text: bytes, row: Ints, key: bytes, known: Ints) -> Ints:
    """Return the row of each symbol of ``key`` where it is first in ``text``, NONE if disputed."""
    size = len(key) // 4
    found = np.full(size, NONE, dtype=np.int64)
    agreed = np.ones(size, dtype=np.bool_)
    at = text.find(key)
    while at >= 0:
        if at % 4 == 0:
            here = row[at // 4 : at // 4 + size]
            if (found == NONE).all():
                found = here
            agreed &= take(known, here) == take(known, found)
        at = text.find(key, at + 1)
    return np.where(agreed & (take(known, found) != NONE), found, NONE)


def _behind(trace: Trace, other: Trace) -> pl.DataFrame:
    """Return the activities of ``trace`` and then those of ``other``, with name ids of one table.

    Names that ``trace`` lacks get ids beyond its own.
    """
    own = trace.names.select("name", pl.int_range(pl.len(), dtype=pl.UInt32).alias("id"))
    theirs = other.names.select("name").join(own, on="name", how="left", maintain_order="left")
    beyond = pl.int_range(pl.len(), dtype=pl.UInt32) + trace.names.height
    ids = theirs.select(pl.coalesce("id", beyond)).to_series()
    last, first = trace.activities["start"].max() or 0, other.activities["start"].min() or 0
    later = other.activities.with_columns(
        ids.gather(other.activities["name_id"]).alias("name_id"),
        pl.col("start") + (int(last) - int(first) + 1),  # type: ignore[arg-type]
    )
    return pl.concat([trace.activities, later])


class _Attribution:
    """The sources found so far for the activities of replays, and the Trace with them."""

    def __init__(self, trace: Trace, own: Trace, replays: _Replays) -> None:
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
        times = self._trace.activities["capture_time"][to_rows(self._replays.rows)]
        self._by_node = times.is_not_null().to_numpy()
        self._confidence[self._by_node] = _BY_NODE

    def take(self, found: _Found) -> None:
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
        time_ns = int(self._trace.activities["duration"].gather(rows).sum())
        ledger.add(reason, int(which.sum()), table="activities", kept=True, time_ns=time_ns)

    def trace(self, ledger: Ledger) -> Trace:
        """Return the Trace with what was found, and with the entries of ``ledger``."""
        trace, rows = self._trace, self._replays.rows
        layers = _Layers(trace.layers)
        op, layer = (from_rows(trace.activities[key]).copy() for key in ("op", "layer"))
        direction = _codes(trace.activities["direction"]).copy()
        instances = _Instances(trace.ops, self._replays)
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
            theirs = source.activities
            layer[rows[places]] = to_layer(from_rows(theirs["layer"])[at])
            direction[rows[places]] = _codes(theirs["direction"])[at]
            op[rows[places]] = instances.add(source, places, from_rows(theirs["op"])[at], to_layer)
        confidence = np.full(trace.activities.height, np.nan)
        confidence[rows] = self._confidence
        directions = pl.Series(Direction.categories, dtype=Direction).gather(to_rows(direction))
        return trace.with_tables(
            activities=trace.activities.with_columns(
                to_rows(op).alias("op"),
                to_rows(layer).alias("layer"),
                directions.alias("direction"),
                pl.Series("layer_confidence", confidence).fill_nan(None),
            ),
            ops=instances.ops(),
            layers=layers.frame(),
            ledger=pl.concat([trace.ledger, ledger.frame()]),
        )


def _codes(directions: pl.Series) -> Ints:
    return directions.to_physical().cast(pl.Int64).fill_null(NONE).to_numpy()


def _same(rows: Ints) -> Ints:
    return rows


class _Layers:
    """The layers of a trace, and those of others that its work belongs to."""

    def __init__(self, layers: pl.DataFrame) -> None:
        self._parts = [layers]
        self._rows = {row: i for i, row in enumerate(layers.select("path", "role").iter_rows())}

    def of(self, other: Trace) -> Callable[[Ints], Ints]:
        """Return the function from rows of ``other``'s layers to rows here; adds what is new."""
        theirs = other.layers
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

    def __init__(self, ops: pl.DataFrame, replays: _Replays) -> None:
        self._parts, self._height = [ops], ops.height
        self._replays = replays
        self._sequence = int(ops["sequence"].max() or 0) + 1  # type: ignore[arg-type]

    def add(self, source: Trace, places: Ints, op: Ints, to_layer: Callable[[Ints], Ints]) -> Ints:
        """Return the row of the copy of each ``op`` of ``source`` for the replay at ``places``."""
        ops = source.ops
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
