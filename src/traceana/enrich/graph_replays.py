"""Work of CUDA graphs: operators, layers and directions of the work of replays, from their capture.

A replay launches all of a graph's nodes by one call, within no operator of the network. The
operators ran once, when the graph was captured: their launch calls have no work of their own.
:func:`attributed_replays` finds the node of each activity, from the first source that has it:

1. Nsight Systems records when each node was captured (``capture_time``).
2. The launch calls of a capture, in this trace or in another recording of the program, are in the
   order of the replay's activities.
3. The network ran without graphs, in this trace or in the other recording: work of the same names
   and sizes in the same order belongs to the same layers.

2 and 3 are alignments of two sequences (:func:`traceana.match.alignment.agreed`), whose evidence is
the kind of work and the operator around the launch in one, the kernel and its grid in the other.
Where sources of equal standing disagree on an activity's layer, it gets none. Every replay gets
operators of its own, of no duration, so that counts by operator are counts of executions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.distinct import Texts, numbered
from traceana.columns.nesting import NONE, Flags, Ints, from_rows, take, to_rows
from traceana.enrich.launches import BEGIN_CAPTURE, GRAPH_LAUNCH, KERNEL_LAUNCH
from traceana.enrich.layers.source import NO_LAUNCH
from traceana.match.alignment import agreed, band
from traceana.match.repetition import Repetitions
from traceana.settings import (
    BY_ORDER,
    BY_ORDER_OF_STREAMS,
    BY_SEQUENCE,
    BY_WHOLE_SEQUENCE,
    CAPTURE_DISAGREEMENT,
    LARGEST_CAPTURE_GAP,
)
from traceana.trace import Ledger, Trace
from traceana.trace.schema import DEVICE_WORK, ROW, ActivityKind, Direction, conform

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
    """The number of each replay among the replays of its graph."""

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
        replays = cls(rows, replay.astype(np.int64), launched, np.zeros(len(distinct), np.int64))
        names = activities["name_id"].to_numpy()[rows]
        graphs: dict[bytes, int] = {}
        for number, positions in enumerate(replays.each(activities["start"].to_numpy()[rows])):
            graph = names[positions].tobytes()
            replays.turn[number] = graphs[graph] = graphs.get(graph, -1) + 1
        return replays

    def each(self, order: Ints) -> Iterator[Ints]:
        """Yield the places in ``rows`` of each replay's activities, sorted by ``order``."""
        by_replay = np.lexsort((order, self.replay))
        ends = np.flatnonzero(np.diff(self.replay[by_replay], append=-1)) + 1
        begin = 0
        for end in ends.tolist():
            yield by_replay[begin:end]
            begin = end


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
    for code, pattern in enumerate(_LAUNCH[kind_of_node] for kind_of_node in NODE_KINDS):
        kind[names.matching(pattern)] = code
    has_work = calls["correlation"].is_in(activities["correlation"].drop_nulls().unique().implode())
    without_work = (kind != NONE) & ~has_work.fill_null(value=False).to_numpy()
    empty = {"row": pl.Int64, "kind": pl.Int64, "capture": pl.Int64}
    if not without_work.any() or activities["correlation"].null_count() == activities.height > 0:
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
            pl.Series("alone", without_work[rows]),
            pl.Series("change", begins[rows].astype(np.int64) - ends[rows]),
            pl.Series("marked", begins[rows]),
            # Copies of a loader run beside a capture.
            pl.Series("interrupts", graphs[rows] | ((kind[rows] == 0) & ~without_work[rows])),
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


Bits = npt.NDArray[np.uint32]
_OPERATOR_OF_KERNEL: Final = {
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


_SIZES: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "bytes")
_CODE_OF_KIND: Final = {kind: code for code, kind in enumerate(NODE_KINDS)}
_EQUAL_SCORE: Final = 4
_FITTING_SCORE: Final = 6
_CONFLICT_SCORE: Final = -12
_COST_ALONE: Final = 1
"""Scores of a pair, of one whose operator launches such kernels or does not, and cost of one alone.
A conflict costs more than both alone."""
_PASSES: Final = len(Direction.categories) + 1
_LEAST_PART: Final = 0.5
"""Least part of a replay that has equal work in a step, for it to be of the same program."""
_MOST_STEPS: Final = 4
_MOST_PAIRS: Final = 8_000_000
"""Most pairs of activities that are weighed against each other; time and memory grow with them."""


class _Sequence(msgspec.Struct, frozen=True):
    """Activities of a recording in the order of their launches: what a replay may repeat.

    ``meaning`` is the number of the path, role and direction of the layer of each.
    """

    of: Trace
    rows: Ints
    meaning: Ints


class _Capture(_Sequence, frozen=True):
    """The launch calls of a capture: the kind of each, recognized operators around it as bits."""

    kinds: Ints
    operators: Bits


class _Step(_Sequence, frozen=True):
    """Work that was launched one by one: the number of the name and the sizes of each."""

    symbols: Ints


class _Match(NamedTuple):
    """The sequence that a replay repeats, the place in it of each activity, and the confidence."""

    sequence: _Sequence
    place: Ints
    confidence: float


class _Sources:
    """The sequences of a trace and of another recording, and what replays repeat of them."""

    def __init__(
        self, trace: Trace, replays: Replays, captured: list[tuple[Trace, pl.DataFrame]]
    ) -> None:
        """``captured`` are recordings, and the captured calls of each: its last activities."""
        self._replays = replays
        work = trace.tables.activities[replays.rows]
        self._stream, self._start = from_rows(work["stream"]), work["start"].to_numpy()
        self._node = from_rows(work["graph_node"])
        kind = work["kind"].cast(pl.String)
        self._kind = kind.replace_strict(_CODE_OF_KIND, return_dtype=pl.Int64).to_numpy()
        self._name = work["name_id"]
        self._names = trace.tables.names["name"]
        self._meanings: dict[str, int] = {}
        self._captures = [
            capture for recording in captured for capture in self._of_captures(*recording)
        ]

    def _meaning(self, recording: Trace, rows: Ints) -> Ints:
        """Return the number of the layer and direction of each of ``rows``, NONE without one."""
        work, layers = recording.tables.activities[to_rows(rows)], recording.tables.layers
        named = pl.when(pl.col("role") != "unattributed").then(pl.format("{} {}", "path", "role"))
        layer = layers.select(named).to_series().gather(work["layer"])
        texts = layer + " " + work["direction"].cast(pl.String).fill_null("")
        numbers = self._meanings
        codes = [NONE if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
        return np.array(codes, dtype=np.int64)

    def _of_captures(self, recording: Trace, calls: pl.DataFrame) -> Iterator[_Capture]:
        first = recording.tables.activities.height - calls.height
        ops, names = recording.tables.ops, recording.tables.ops["name"].cast(pl.String)
        parent, op = from_rows(ops["parent"]), from_rows(recording.tables.activities["op"])
        numbered = calls.with_columns(pl.int_range(pl.len()).alias("place") + first)
        for _, capture in numbered.group_by("capture", maintain_order=True):
            rows = capture["place"].to_numpy()
            around = pl.Series([""] * len(rows), dtype=pl.String)
            row = op[rows]
            while (row != NONE).any():
                around = around + "/" + names.gather(to_rows(row)).fill_null("")
                row = take(parent, row)
            operators = _pattern_bits(around, list(_OPERATOR_OF_KERNEL.values()))
            kinds = capture["kind"].to_numpy()
            yield _Capture(recording, rows, self._meaning(recording, rows), kinds, operators)

    def captured(self, wanted: Flags, *, across_streams: bool) -> Iterator[tuple[Ints, _Match]]:
        """Yield places of ``wanted`` activities in the replays with the capture that they repeat.

        Nodes are in the order of their ids, where the trace has them, else in that of their starts:
        for replays on several streams only if ``across_streams``.
        """
        if not self._captures or not wanted.any():
            return
        kernel = _pattern_bits(self._names, list(_OPERATOR_OF_KERNEL))[self._name.to_numpy()]
        done = ~wanted
        matches: dict[tuple[bytes, bytes], _Match | None] = {}
        for order in [self._node, self._start] if (self._node != NONE).all() else [self._start]:
            for positions in self._replays.each(order):
                if done[positions].all():
                    continue
                if order is self._node and len(np.unique(order[positions])) != len(positions):
                    continue
                on_streams = order is self._start and len(np.unique(self._stream[positions])) > 1
                if on_streams and not across_streams:
                    continue
                kinds, kernels = self._kind[positions], kernel[positions]
                key = (kinds.tobytes(), kernels.tobytes())
                if key not in matches:
                    candidates = [
                        _in_capture(capture, kinds, kernels, not on_streams)
                        for capture in self._captures
                    ]
                    matches[key] = _best_match(
                        [capture for capture in candidates if capture is not None]
                    )
                match = matches[key]
                if match is not None:
                    done[positions] = True
                    confidence = BY_ORDER_OF_STREAMS if on_streams else BY_ORDER
                    yield positions, match._replace(confidence=confidence * match.confidence)

    def eager(self, trace: Trace, other: Trace, wanted: Flags) -> Iterator[tuple[Ints, _Match]]:
        """Yield places of ``wanted`` activities with the work of ``other`` that they repeat.

        It is the work of one of the last distinct steps that no replay launched, or all of it
        without steps.
        """
        if not wanted.any():
            return
        work = other.tables.activities.with_row_index("at").filter(pl.col("kind").is_in(NODE_KINDS))
        if other is trace:
            work = work.filter(~pl.col("at").is_in(self._replays.rows))
        replayed = trace.tables.activities[self._replays.rows]
        # Sizes that the replays were recorded without do not tell them from other work.
        kernels = replayed.filter(pl.col("kind") == "kernel")
        sizes = [name for name in _SIZES if name == "bytes" or not kernels[name].null_count()]
        texts = [recording.tables.names["name"].cast(pl.String) for recording in (trace, other)]
        name = pl.concat(texts).rank("dense")
        of_trace, of_other = name.head(len(texts[0])), name.tail(len(texts[1]))
        symbols, symbols_of_work = numbered(
            replayed.select(of_trace.gather(replayed["name_id"]).alias("name"), *sizes),
            work.select(of_other.gather(work["name_id"]).alias("name"), *sizes),
        )
        launched = other.tables.calls["start"].gather(work["call"])
        in_order = work.with_columns(
            pl.Series("symbol", symbols_of_work), pl.coalesce(launched, "start").alias("launched")
        ).sort("launched", "start")
        last_steps: dict[bytes, tuple[Ints, Ints]] = {}
        for _, step in in_order.group_by("step", maintain_order=True):
            of_step = step["symbol"].to_numpy()
            last_steps.pop(of_step.tobytes(), None)
            last_steps[of_step.tobytes()] = step["at"].to_numpy(), of_step
        steps = (
            _Step(other, rows, self._meaning(other, rows), symbol)
            for rows, symbol in reversed(last_steps.values())
        )
        with_layers = (step for step in steps if (step.meaning != NONE).any())
        candidates = [*islice(with_layers, _MOST_STEPS)][::-1]
        matches: dict[bytes, _Match | None] = {}
        order = self._node if (self._node != NONE).all() else self._start
        for positions in self._replays.each(order):
            key = symbols[positions].tobytes()
            if wanted[positions].any() and key not in matches:
                fitting = [_in_step(recording, symbols[positions]) for recording in candidates]
                matches[key] = _best_match(
                    [recording for recording in fitting if recording is not None]
                )
            if wanted[positions].any() and (match := matches[key]) is not None:
                yield positions, match


def _in_capture(capture: _Capture, kinds: Ints, kernels: Bits, in_order: bool) -> _Match | None:
    """Return the launch in ``capture`` of each activity of a replay; None for another network.

    ``kinds`` are those of the activities; ``kernels`` are bits: a kernel with a bit is launched by
    operators with it, a kernel without a bit by any. In the best alignments, a pair of one kind
    counts, and a launch or an activity alone costs. Activities ``in_order`` are those of one
    stream, or sorted by node: if they are as many as the launches, and of the same kinds, each has
    its own.
    """
    activities, launches = len(kinds), len(capture.kinds)
    if abs(activities - launches) > LARGEST_CAPTURE_GAP * activities:
        return None
    conflict = (
        (kernels != 0) & ((kernels & capture.operators) == 0)
        if activities == launches
        else np.ones(1)
    )
    allowed = CAPTURE_DISAGREEMENT if in_order else 0
    if activities == launches and (kinds == capture.kinds).all() and conflict.mean() <= allowed:
        position = np.arange(activities)
    else:

        def score(i: int, j: Ints) -> npt.NDArray[np.float64]:
            fits = (capture.operators[j] & kernels[i]) != 0
            pair = np.where(
                kernels[i] == 0, _EQUAL_SCORE, np.where(fits, _FITTING_SCORE, _CONFLICT_SCORE)
            )
            return np.where(capture.kinds[j] == kinds[i], pair, -np.inf)

        position = agreed(score, (activities, launches), _COST_ALONE, capture.meaning)
    with_operator = (kernels != 0) & (position != NONE)
    fits = (np.append(capture.operators, np.uint32(0))[position] & kernels) != 0
    fit = float(fits[with_operator].mean()) if with_operator.any() else 1.0
    placed = float((position != NONE).mean())
    if fit < 1 - CAPTURE_DISAGREEMENT or placed < 1 - LARGEST_CAPTURE_GAP:
        return None
    return _Match(capture, position, fit * placed)


def _in_step(step: _Step, symbols: Ints) -> _Match | None:
    """Return the equal work in ``step`` of each activity of a replay; None for other work."""
    size = len(symbols), len(step.symbols)
    if size[0] * band(size, within=True)[1] > _MOST_PAIRS:
        return None
    position = agreed(
        lambda i, j: np.where(step.symbols[j] == symbols[i], _EQUAL_SCORE, -np.inf),
        size,
        _COST_ALONE,
        step.meaning,
    )
    placed = float((position != NONE).mean())
    if placed < _LEAST_PART:
        return None
    position = np.where(np.append(step.meaning, NONE)[position] == NONE, NONE, position)
    return _Match(step, position, BY_WHOLE_SEQUENCE if placed == 1 else BY_SEQUENCE * placed)


def _best_match(matches: list[_Match]) -> _Match | None:
    """Return the last match of those that fit best; an activity that means another layer in another
    of them has no place."""
    if not matches:
        return None
    highest = max(match.confidence for match in matches)
    *others, chosen = (match for match in matches if match.confidence == highest)
    meaning = np.append(chosen.sequence.meaning, NONE)[chosen.place]
    position = chosen.place
    for other in others:
        agrees = np.append(other.sequence.meaning, NONE)[other.place] == meaning
        position = np.where(agrees, position, NONE)
    return chosen._replace(place=position)


def _pattern_bits(texts: pl.Series, patterns: list[str]) -> Bits:
    """Return a bit for each of ``patterns`` that each of ``texts`` contains."""
    bits = np.zeros(len(texts), dtype=np.uint32)
    for bit, pattern in enumerate(patterns):
        matched = texts.cast(pl.String).str.contains(pattern).fill_null(value=False).to_numpy()
        bits |= matched.astype(np.uint32) << np.uint32(bit)
    return bits


_BY_NODE: Final = 1.0
"""Confidence of the records of nodes."""


def attributed_replays(
    trace: Trace, captured: pl.DataFrame, reference: tuple[Trace, pl.DataFrame] | None
) -> Trace:
    """Return ``trace`` with operator, layer and direction of the activities of graph replays.

    ``captured`` are its captured calls, by :func:`with_captured`, whose activities are removed
    again. ``reference`` is another recording of the same program, attributed, and its captured
    calls. The ledger counts what each source contributed.
    """
    with_captured_calls, replays = trace, Replays.of(trace)
    kept = trace.tables.activities.height - captured.height
    trace = trace.with_tables(
        activities=trace.tables.activities.head(kept),
        names=trace.tables.names.head(trace.tables.names.height - (1 if captured.height else 0)),
    )
    rows = replays.rows
    if not len(rows):
        return trace
    activities = trace.tables.activities
    layers, instances = _Layers(trace.tables.layers), _Instances(trace.tables.ops, replays)
    frames = [trace.tables.frames]
    op, layer, frame = (from_rows(activities[key]).copy() for key in ("op", "layer", "frame"))
    direction = _codes(activities["direction"]).copy()
    confidence = np.full(activities.height, np.nan)
    ledger = Ledger()

    def count(reason: str, counted: Ints) -> None:
        time_ns = int(activities["duration"].gather(counted).sum())
        ledger.add(reason, len(counted), table="activities", kept=True, time_ns=time_ns)

    def is_open() -> Flags:
        without_source: Flags = np.isnan(confidence[rows])
        return without_source

    def accept(reason: str, matches: Iterator[tuple[Ints, _Match]]) -> None:
        """Accept sources for activities that have none."""
        before = is_open()
        by_recording: dict[int, tuple[Trace, Ints]] = {}
        for positions, match in matches:
            recording = match.sequence.of
            no_source = np.full(len(rows), NONE)
            _, source = by_recording.setdefault(id(recording), (recording, no_source))
            new = before[positions] & (match.place != NONE)
            source[positions[new]] = match.sequence.rows[match.place[new]]
            confidence[rows[positions[new]]] = match.confidence
        for recording, source in by_recording.values():
            positions = np.flatnonzero(source != NONE)
            work = recording.tables.activities[to_rows(source[positions])]
            same_layers = recording is trace or recording is with_captured_calls
            to_layer = _unchanged if same_layers else layers.of(recording)
            offset = 0
            if not same_layers:
                offset = sum(map(len, frames))
                frames.append(
                    recording.tables.frames.with_columns((pl.col("parent") + offset).cast(ROW))
                )
            replayed = rows[positions]
            layer[replayed] = to_layer(from_rows(work["layer"]))
            of_source = from_rows(work["frame"])
            frame[replayed] = np.where(of_source == NONE, frame[replayed], of_source + offset)
            direction[replayed] = _codes(work["direction"])
            op[replayed] = instances.add(
                recording, positions, from_rows(work["op"]), to_layer, offset
            )
        count(reason, rows[before & ~is_open()])

    # The operators and layers at the times of capture are those in the trace.
    by_node = np.flatnonzero(activities["capture_time"][to_rows(rows)].is_not_null().to_numpy())
    if len(by_node):
        confidence[rows[by_node]] = _BY_NODE
        op[rows[by_node]] = instances.add(trace, by_node, op[rows[by_node]], _unchanged, 0)
        count("graph_capture", rows[by_node])
    recordings = [(with_captured_calls, captured)] + ([] if reference is None else [reference])
    sources = _Sources(trace, replays, recordings)
    accept("graph_capture", sources.captured(is_open(), across_streams=False))
    for other in [trace] if reference is None else [trace, reference[0]]:
        accept("graph_sequence", sources.eager(trace, other, is_open()))
    accept("graph_capture", sources.captured(is_open(), across_streams=True))

    # Repetitions: equal work around what is still open, and around work of replays that were
    # launched before the recording.
    still_open, codes = is_open(), layer * _PASSES + direction + 1
    paths, roles = (layers.frame()[key].cast(pl.String) for key in ("path", "role"))
    attributed = np.append((roles != "unattributed").to_numpy(), False)[layer]
    replayed, unknown = (np.zeros(activities.height, dtype=np.bool_) for _ in range(2))
    replayed[rows], unknown[rows[still_open]] = True, True
    early = np.append((paths == NO_LAUNCH).to_numpy(), False)[layer] & ~replayed
    repetitions = Repetitions(activities)
    launched_codes = np.where(attributed & ~replayed, codes, NONE)
    known_codes = np.where(attributed & ~unknown, codes, NONE)
    (launched,) = repetitions.sources([launched_codes], pl.Series(unknown))
    (repeated,) = repetitions.sources([known_codes], pl.Series(early))
    positions = np.flatnonzero(still_open & (launched[rows] != NONE))
    source_op = op[launched[rows[positions]]]
    op[rows[positions]] = instances.add(trace, positions, source_op, _unchanged, 0)
    early &= repeated != NONE
    source = np.where(early, repeated, NONE)
    source[rows[positions]] = launched[rows[positions]]
    has_source = source != NONE
    layer[has_source] = layer[source[has_source]]
    direction[has_source] = direction[source[has_source]]
    of_source = frame[source[has_source]]
    frame[has_source] = np.where(of_source == NONE, frame[has_source], of_source)
    confidence[has_source] = BY_SEQUENCE
    count("graph_sequence", rows[positions])
    # What has no source keeps the layer around the launch of the graph, if any.
    count("graph_unknown", rows[is_open() & ~attributed[rows]])
    count("by_repetition", np.flatnonzero(early))
    directions = pl.Series(Direction.categories, dtype=Direction).gather(to_rows(direction))
    return trace.with_tables(
        activities=activities.with_columns(
            to_rows(op).alias("op"),
            to_rows(layer).alias("layer"),
            to_rows(frame).alias("frame"),
            directions.alias("direction"),
            pl.Series("layer_confidence", confidence).fill_nan(None),
        ),
        ops=instances.ops(),
        layers=layers.frame(),
        frames=pl.concat(frames),
        ledger=pl.concat([trace.tables.ledger, ledger.frame()]),
    )


def _codes(directions: pl.Series) -> Ints:
    """Return the number of each direction, NONE without one."""
    return directions.to_physical().cast(pl.Int64).fill_null(NONE).to_numpy()


def _unchanged(rows: Ints) -> Ints:
    return rows


class _Layers:
    """The layers of a trace, and layers of other recordings that its work belongs to."""

    def __init__(self, layers: pl.DataFrame) -> None:
        self._parts = [layers]
        self._rows = {row: i for i, row in enumerate(layers.select("path", "role").iter_rows())}

    def of(self, other: Trace) -> Callable[[Ints], Ints]:
        """Return the function from rows of ``other``'s layers to rows here; adds what is new."""
        other_layers = other.tables.layers
        keys = list(other_layers.select("path", "role").iter_rows())
        new = [i for i, key in enumerate(keys) if key not in self._rows]
        for i in new:
            self._rows[keys[i]] = len(self._rows)
        row = np.array([self._rows[key] for key in keys], dtype=np.int64)
        if new:
            parent = to_rows(take(row, from_rows(other_layers["parent"])))
            added = other_layers.with_columns(
                parent.alias("parent"),
                pl.Series("position", row).cast(other_layers.schema["position"]),
            )[new]
            self._parts.append(added)
        return lambda rows: take(row, rows)

    def frame(self) -> pl.DataFrame:
        """Return the table."""
        return pl.concat(self._parts)


class _Instances:
    """The operators of a trace, and copies of them for each replay: no duration, at the launch."""

    def __init__(self, ops: pl.DataFrame, replays: Replays) -> None:
        self._parts, self._height = [ops], ops.height
        self._replays = replays
        self._sequence = int(ops["sequence"].max() or 0) + 1  # type: ignore[arg-type]

    def add(
        self,
        source: Trace,
        places: Ints,
        op: Ints,
        to_layer: Callable[[Ints], Ints],
        frames_before: int,
    ) -> Ints:
        """Return the row of the copy of each ``op`` of ``source`` for the replay at ``places``.

        Their layers are those of ``to_layer``, their frames stand behind ``frames_before`` others.
        """
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
        replay_of_copy, row = wanted // height, wanted % height
        calls = self._replays.calls[replay_of_copy]
        # A replay's operators have sequence numbers of their own, as in a step.
        offset = pl.Series((self._replays.turn[replay_of_copy] + 1) * self._sequence)
        copies = ops[to_rows(row)].with_columns(
            pl.lit(0, pl.Int64).alias("duration"),
            calls["start"].alias("start"),
            calls["process"].alias("process"),
            calls["thread"].alias("thread"),
            to_rows(self._at(wanted, replay_of_copy, take(parent, row), height)).alias("parent"),
            (pl.col("sequence") + offset).alias("sequence"),
            # The forward operators of the copies are not among them.
            pl.lit(None, ROW).alias("forward"),
            (pl.col("frame") + frames_before).cast(ROW).alias("frame"),
            to_rows(to_layer(from_rows(ops["layer"])[row])).alias("layer"),
        )
        row_of_copy = self._at(wanted, replay, op, height)
        self._parts.append(copies)
        self._height += copies.height
        return row_of_copy

    def _at(self, wanted: Ints, replay: Ints, op: Ints, height: int) -> Ints:
        place = np.searchsorted(wanted, replay * height + op)
        return np.where(op == NONE, NONE, place + self._height)

    def ops(self) -> pl.DataFrame:
        """Return the table."""
        return pl.concat(self._parts)
