"""Sources of the work of replays in captures, by the order of the launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.graphs.alignment import Bits, Launches, align
from traceana.enrich.graphs.replayed_work import NODE_KINDS, Found, Replays
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, take, to_rows
from traceana.settings import CAPTURE_DISAGREEMENT, LARGEST_CAPTURE_GAP
from traceana.trace import Trace

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

_BY_ORDER: Final = 0.98
_BY_ORDER_OF_STREAMS: Final = 0.7
"""Confidence. Without node ids, the order in which several streams ran is not that of the
capture."""


class Capture(msgspec.Struct, frozen=True):
    """One capture: rows of the activities of its launch calls in ``of``, in order; their kinds."""

    of: Trace
    rows: Ints
    kinds: Ints

    def layers(self) -> npt.NDArray[np.object_]:
        """Return path, role and direction of the layer of each launch, as comparable texts."""
        work = self.of.activities[to_rows(self.rows)]
        named = self.of.layers.select(pl.format("{} {}", "path", "role")).to_series()
        layer = named.gather(work["layer"]).fill_null("")
        direction = work["direction"].cast(pl.String).fill_null("")
        return np.array((layer + " " + direction).to_list(), dtype=object)

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


def captures(trace: Trace, captured: pl.DataFrame) -> Iterator[Capture]:
    """Yield the captures of ``trace``, whose last activities are those of ``captured``."""
    first = trace.activities.height - captured.height
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
    work = trace.activities[replays.rows]
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
            confidence[places] = (_BY_ORDER_OF_STREAMS if several else _BY_ORDER) * fit
    return [Found(traces[at], found, confidence) for at, found in rows.items()]


def _chosen(
    captures: list[Capture], trace: Trace, kinds: Ints, names: Ints, in_order: bool
) -> tuple[Capture, Ints, float] | None:
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
