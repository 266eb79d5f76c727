"""The work of CUDA graph replays, and its source: in a capture by order, or in equal sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Flags, Ints, from_rows, take, to_rows
from traceana.enrich.launches import GRAPH_LAUNCH
from traceana.enrich.layers.repetition import Repetitions
from traceana.settings import (
    BY_ORDER,
    BY_ORDER_OF_STREAMS,
    BY_SEQUENCE,
    BY_WHOLE_SEQUENCE,
    CAPTURE_DISAGREEMENT,
    LARGEST_CAPTURE_GAP,
)
from traceana.trace import Trace
from traceana.trace.schema import DEVICE_WORK, Direction

NODE_KINDS: Final = tuple(kind for kind in DEVICE_WORK if kind != "graph")
"""Kinds of the work of a node. A graph that was recorded whole has no nodes."""


class Replays(msgspec.Struct, frozen=True):
    """The activities of graph replays, the replay of each, and the launches of the replays."""

    rows: Ints
    """Rows of ``activities``."""
    replay: Ints
    """The replay of each of ``rows``."""
    calls: pl.DataFrame
    """The launch call of each replay: process, thread, start."""
    turn: Ints
    """The number of each replay among those of its graph."""

    @classmethod
    def of(cls, trace: Trace) -> Replays:
        """Return the replays of ``trace``, whose activities have their calls."""
        calls, activities = trace.tables.calls, trace.tables.activities
        launches = Texts.of(calls["name"]).matching(GRAPH_LAUNCH)
        call = from_rows(activities["call"])
        of_graph = np.append(launches, False)[call] & (call != NONE)
        nodes = activities["kind"].is_in(NODE_KINDS)
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


class Found(NamedTuple):
    """Source of each activity of a replay: its recording, the row of the activity there."""

    trace: Trace
    row: Ints
    confidence: npt.NDArray[np.float64]


def pass_codes(directions: pl.Series) -> Ints:
    """Return the number of each direction, NONE without one."""
    return directions.to_physical().cast(pl.Int64).fill_null(NONE).to_numpy()


Bits = npt.NDArray[np.uint32]
Scores = npt.NDArray[np.int32]

_SAME_KIND: Final = 4
_FITS: Final = 2
_CONFLICT: Final = -12
_GAP: Final = -1
"""Scores of a pair and of a launch or activity alone. A conflict costs more than both alone."""
_SPARE: Final = 16
"""Width of the band beside the difference in length: gaps on both sides may follow each other."""
_NEVER: Final = -(1 << 28)


class Launches(msgspec.Struct, frozen=True):
    """The launches of a capture: kind, recognized operators as bits, and the layer's number."""

    kinds: Ints
    operators: Bits
    layers: Ints


def align(launches: Launches, kinds: Ints, kernels: Bits, *, in_order: bool) -> Ints:
    """Return the launch of each activity of a replay, NONE where there is none or several differ.

    ``kinds`` are those of the activities; ``kernels`` are bits: a kernel with a bit is launched by
    operators with it, a kernel without a bit by any. In the best alignments, a pair of one kind
    counts, and a launch or an activity alone costs. An activity has a launch if all alignments of
    the highest score give it the same layer. Activities ``in_order`` are those of one stream, or
    sorted by node: if they are as many as the launches, and of the same kinds, each has its own.

    Global alignment (Needleman and Wunsch, 1970) in a band around the diagonal: n · (|n - m| + 33)
    steps for n activities and m launches.
    """
    n, m = len(kinds), len(launches.kinds)
    if n == m and (kinds == launches.kinds).all():
        conflicts = float(((kernels != 0) & ((kernels & launches.operators) == 0)).mean())
        if conflicts <= (CAPTURE_DISAGREEMENT if in_order else 0):
            return np.arange(n)
    width = abs(n - m) + 2 * _SPARE + 1
    first = min(m - n, 0) - _SPARE
    forward = _table(launches, kinds, kernels, first, width)
    reverse = Launches(*(getattr(launches, key)[::-1] for key in launches.__struct_fields__))
    # Column c of row i stands for launch i + first + c, from either end.
    backward = _table(reverse, kinds[::-1], kernels[::-1], first, width)
    best = forward[n, m - n - first]
    source = np.full(n, NONE, dtype=np.int64)
    for i in range(n):
        j = i + first + np.arange(width)
        valid = (j >= 0) & (j < m)
        j = j[valid]
        before = forward[i, valid]
        after = _after(backward[n - 1 - i], m - 1 - j - (n - 1 - i) - first)
        through = before + _pairs(launches, kinds[i], kernels[i], j) + after
        on_best = j[through == best]
        if len(on_best) and (launches.layers[on_best] == launches.layers[on_best[0]]).all():
            source[i] = on_best[0]
    return source


def _after(row: Scores, columns: Ints) -> Scores:
    inside = (columns >= 0) & (columns < len(row))
    return np.where(inside, row[np.clip(columns, 0, len(row) - 1)], _NEVER)


def _pairs(launches: Launches, kind: int, kernel: int, j: Ints) -> Scores:
    """Return the score of an activity with each of the launches ``j``."""
    fits = (launches.operators[j] & kernel) != 0
    score = np.where(kernel == 0, _SAME_KIND, np.where(fits, _SAME_KIND + _FITS, _CONFLICT))
    return np.where(launches.kinds[j] == kind, score, _NEVER).astype(np.int32)


def _table(launches: Launches, kinds: Ints, kernels: Bits, first: int, width: int) -> Scores:
    """Return the best score of the first i activities and the first i + first + c launches, at
    row i and column c."""
    n, m = len(kinds), len(launches.kinds)
    table = np.full((n + 1, width), _NEVER, dtype=np.int32)
    steps = np.arange(width)
    for i in range(n + 1):
        j = i + first + steps
        row = np.full(width, _NEVER, dtype=np.int32)
        if i == 0:
            row[(j >= 0) & (j <= m)] = _GAP * j[(j >= 0) & (j <= m)]
            table[0] = row
            continue
        paired = np.flatnonzero((j >= 1) & (j <= m))
        score = _pairs(launches, kinds[i - 1], kernels[i - 1], j[paired] - 1)
        row[paired] = np.maximum(table[i - 1][paired] + score, _NEVER)
        # The activity alone: from row i - 1, one column to the right.
        alone = np.flatnonzero((j[:-1] >= 0) & (j[:-1] <= m))
        row[alone] = np.maximum(row[alone], table[i - 1][alone + 1] + _GAP)
        # Launches alone, from the left: a running maximum of scores less their gaps.
        running = np.maximum.accumulate(row - _GAP * steps) + _GAP * steps
        table[i] = np.where((j >= 0) & (j <= m), np.maximum(row, running), _NEVER)
    return table


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


class Capture(msgspec.Struct, frozen=True):
    """One capture: rows of the activities of its launch calls in ``of``, in order; their kinds."""

    of: Trace
    rows: Ints
    kinds: Ints

    def layers(self) -> npt.NDArray[np.object_]:
        """Return path, role and direction of the layer of each launch, as comparable texts."""
        work = self.of.tables.activities[to_rows(self.rows)]
        named = self.of.tables.layers.select(pl.format("{} {}", "path", "role")).to_series()
        layer = named.gather(work["layer"]).fill_null("")
        direction = work["direction"].cast(pl.String).fill_null("")
        return np.array((layer + " " + direction).to_list(), dtype=object)

    def operators(self) -> pl.Series:
        """Return the names of the operators around each launch, joined; empty outside operators."""
        ops = self.of.tables.ops
        row = from_rows(self.of.tables.activities["op"])[self.rows]
        parent, name = from_rows(ops["parent"]), ops["name"].cast(pl.String)
        text = pl.Series([""] * len(row), dtype=pl.String)
        while (row != NONE).any():
            text = text + "/" + name.gather(to_rows(row)).fill_null("")
            row = take(parent, row)
        return text


def captures(trace: Trace, captured: pl.DataFrame) -> Iterator[Capture]:
    """Yield the captures of ``trace``, whose last activities are those of ``captured``."""
    first = trace.tables.activities.height - captured.height
    numbered = captured.with_columns(pl.int_range(pl.len()).alias("place") + first)
    for _, capture in numbered.group_by("capture", maintain_order=True):
        yield Capture(trace, capture["place"].to_numpy(), capture["kind"].to_numpy())


def by_order(
    trace: Trace,
    replays: Replays,
    captures: list[Capture],
    wanted: Flags,
    *,
    across_streams: bool,
) -> list[Found]:
    """Return the sources of ``wanted`` activities in captures, by order.

    Nodes are in the order of their ids, where the trace has them, else in that of their starts:
    for replays on several streams only if ``across_streams``.
    """
    if not captures:
        return []
    work = trace.tables.activities[replays.rows]
    number = {kind: code for code, kind in enumerate(NODE_KINDS)}
    codes = work["kind"].cast(pl.String).replace_strict(number, return_dtype=pl.Int64)
    kinds, name = codes.to_numpy(), work["name_id"].to_numpy()
    stream, start = from_rows(work["stream"]), work["start"].to_numpy()
    node = from_rows(work["graph_node"])
    size = len(replays.rows)
    rows = {id(one.of): np.full(size, NONE, dtype=np.int64) for one in captures}
    traces = {id(one.of): one.of for one in captures}
    confidence = np.zeros(size)
    known: dict[tuple[bytes, bytes], tuple[Capture, Ints, float] | None] = {}
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
            confidence[places] = (BY_ORDER_OF_STREAMS if several else BY_ORDER) * fit
    return [Found(traces[at], found, confidence) for at, found in rows.items()]


def _chosen(
    captures: list[Capture], trace: Trace, kinds: Ints, names: Ints, in_order: bool
) -> tuple[Capture, Ints, float] | None:
    """Return the capture of a replay, the launch of each activity in it, and how well they fit.

    ``kinds`` and ``names`` are those of the replay's activities. Of several captures the last that
    fits best is taken, and an activity whose layer differs among them has the launch NONE. None if
    no capture fits.
    """
    of_kernel = _recognized(trace.tables.names["name"].gather(names), list(_OF_OPERATOR))
    found = []
    for capture in captures:
        if abs(len(capture.kinds) - len(kinds)) > LARGEST_CAPTURE_GAP * len(kinds):
            continue
        allowed = _recognized(capture.operators(), list(_OF_OPERATOR.values()))
        layers = capture.layers()
        numbers = np.unique(layers, return_inverse=True)[1]
        launches = Launches(capture.kinds, allowed, numbers)
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
    texts = np.append(layers, "")[source]
    for _, other_source, other_layers in equal[:-1]:
        source = np.where(np.append(other_layers, "")[other_source] == texts, source, NONE)
    return capture, source, best


def _recognized(texts: pl.Series, patterns: list[str]) -> Bits:
    """Return a bit for each of ``patterns`` that each of ``texts`` contains."""
    bits = np.zeros(len(texts), dtype=np.uint32)
    for place, pattern in enumerate(patterns):
        found = texts.str.contains(pattern).fill_null(value=False).to_numpy()
        bits |= found.astype(np.uint32) << np.uint32(place)
    return bits


_PASSES: Final = len(Direction.categories) + 1
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "bytes")


def by_sequence(trace: Trace, replays: Replays, other: Trace, wanted: Flags) -> list[Found]:
    """Return sources in the work of ``other`` that no replay launched, in equal sequences.

    Both traces are searched as one, ``other`` behind ``trace``.
    """
    own = trace.tables.activities.height
    same = other is trace
    searched = trace.tables.activities if same else _behind(trace, other)
    offset = 0 if same else own
    layer = from_rows(other.tables.activities["layer"])
    role = other.tables.layers["role"].cast(pl.String)
    attributed = np.append((role != "unattributed").to_numpy(), False)[layer]
    if same:
        attributed[replays.rows] = False
    code = pass_codes(other.tables.activities["direction"]) + 1
    known = np.full(searched.height, NONE, dtype=np.int64)
    known[offset:] = np.where(attributed, layer * _PASSES + code, NONE)
    asked = np.zeros(searched.height, dtype=np.bool_)
    asked[replays.rows[wanted]] = True
    whole = _whole(searched, known, asked, replays)
    at = np.where(whole == NONE, NONE, whole - offset)[replays.rows]
    found = Found(other, at, np.full(len(at), BY_WHOLE_SEQUENCE))
    asked[replays.rows[at != NONE]] = False
    (row,) = Repetitions(searched).sources((known,), pl.Series(asked))
    runs = row[replays.rows]
    runs = np.where(runs == NONE, NONE, runs - offset)
    count = replays.calls.height
    met = np.bincount(replays.replay, weights=(runs != NONE) | (at != NONE), minlength=count)
    of = np.bincount(replays.replay, minlength=count)
    part = met / np.maximum(of, 1)
    return [found, Found(other, runs, BY_SEQUENCE * part[replays.replay])]


def _whole(searched: pl.DataFrame, known: Ints, asked: Flags, replays: Replays) -> Ints:
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
    work = searched["kind"].is_in(NODE_KINDS).to_numpy()
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


def _with_ends(symbol: npt.NDArray[Any], lane: Ints, rows: Ints) -> tuple[bytes, Ints]:
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
    own = trace.tables.names.select("name", pl.int_range(pl.len(), dtype=pl.UInt32).alias("id"))
    theirs = other.tables.names.select("name").join(
        own, on="name", how="left", maintain_order="left"
    )
    beyond = pl.int_range(pl.len(), dtype=pl.UInt32) + trace.tables.names.height
    ids = theirs.select(pl.coalesce("id", beyond)).to_series()
    last, first = (
        trace.tables.activities["start"].max() or 0,
        other.tables.activities["start"].min() or 0,
    )
    later = other.tables.activities.with_columns(
        ids.gather(other.tables.activities["name_id"]).alias("name_id"),
        pl.col("start") + (int(last) - int(first) + 1),  # type: ignore[arg-type]
    )
    return pl.concat([trace.tables.activities, later])
