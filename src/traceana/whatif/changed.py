"""Changes: the work and host time that they select, and the graph with changed times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.analyze.convolutions import each_convolution
from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Flags, Ints, Tree, from_rows
from traceana.enrich.ranges import ROLE_OF_TEXT
from traceana.errors import NoSuchSelectionError, near
from traceana.settings import LARGE_COPY_BYTES, LONGEST_DISPATCH_NS, REPLAYED_ACTIVITIES
from traceana.timeline.busy import LOADING, named_rows
from traceana.timeline.graph import EVENT, LAUNCH, STREAM, SYNC, WAIT, Graph
from traceana.timeline.threads import Floats
from traceana.timeline.work import work
from traceana.trace.work import labels
from traceana.vocabulary import host_calls
from traceana.whatif.other_hardware import (
    Factors,
    from_pinned_memory,
    on_another_gpu,
    over_another_link,
    with_fused_optimizer,
    with_ranks,
    with_tensor_cores,
)
from traceana.whatif.other_runs import as_in, with_batch
from traceana.whatif.scenario import Change

if TYPE_CHECKING:
    from traceana.trace import Trace

_NO_WAIT: Final = -(1 << 60)
"""A lag with which an edge holds nothing up."""


class ChangedGraph(NamedTuple):
    """Lags of the edges and durations of the nodes of a graph, in nanoseconds, and the factors of
    the pieces of its threads.

    ``beside`` and ``host_beside`` are the times (ns) of nodes and pieces that nothing waits for:
    they run beside the step, which takes at least as long as their sum.
    """

    lag: Ints
    duration: Ints
    host: Floats
    beside: Ints
    host_beside: Floats


def changed_graph(
    graph: Graph,
    changes: Sequence[Change],
    selections: Sequence[Selection],
    where: float,
    host: Floats,
) -> ChangedGraph:
    """Return ``graph`` with ``changes``, each of what is selected, at ``where`` (0 to 1) between
    their least and most factors.

    ``host`` is how many times as long each piece of its threads takes before them.
    """
    work_factors, host_factors = np.ones(len(graph.at)), host.copy()
    removed = np.zeros(len(graph.at), dtype=np.bool_)
    edges = graph.edges
    unblocked, at_once = (np.zeros(len(edges.target), dtype=np.bool_) for _ in range(2))
    beside, host_beside = removed.copy(), np.zeros(len(host_factors), dtype=np.bool_)
    for change, selection in zip(changes, selections, strict=True):
        least, most = change.factors
        factor = least + where * (most - least)
        if change.by is None or selection.factors is None:
            work_factors[selection.work] *= factor
        else:
            low, high = selection.factors
            work_factors[selection.work] *= (low + where * (high - low))[selection.work]
        host_factors[selection.host] *= factor
        removed |= selection.work & change.remove
        beside |= selection.work & change.beside
        host_beside |= selection.host & change.beside
        if selection.returned is not None:
            # Whatever the call waited for, it returns at once.
            returns = np.isin(edges.target, selection.returned)
            unblocked |= returns & (edges.kind == SYNC)
            if change.what == "sync":
                at_once |= returns & (edges.kind == WAIT)
    duration = np.rint(graph.duration * work_factors).astype(np.int64)
    own_time = (graph.host.end - graph.host.begin) * host_factors
    host_factors[host_beside] = 0
    # Work that begins before other work has ended, and calls that return before, go with it.
    early = np.flatnonzero(edges.lag < 0)
    shorter = duration[edges.source[early]] / np.maximum(graph.duration[edges.source[early]], 1)
    lag = edges.lag.copy()
    lag[early] = np.rint(lag[early] * shorter).astype(np.int64)
    rows = np.flatnonzero(edges.thread != NONE)
    begin, until = edges.begin[rows], edges.until[rows]
    lag[rows] += graph.host.lengths(edges.thread[rows], begin, until, host_factors) - (
        until - begin
    )
    # Work that does not run, or elsewhere, needs no time before it either.
    removed |= beside
    lag[removed[edges.target] & np.isin(edges.kind, [STREAM, EVENT, LAUNCH])] = 0
    lag[unblocked], lag[at_once] = _NO_WAIT, 0
    return ChangedGraph(
        lag,
        np.where(beside, 0, duration),
        host_factors,
        np.where(beside, duration, 0),
        np.where(host_beside, own_time, 0.0),
    )


_MOST_NAMED: Final = 6


class Selection(msgspec.Struct, frozen=True):
    """The nodes of ``work`` and the pieces of ``host`` time that a change selects in a graph.

    ``factors`` are the ends of how many times as long each node takes; ``None`` where it is the
    factor of the change. ``returned`` are nodes at which calls return that no longer wait.
    """

    work: Flags
    host: Flags
    factors: tuple[Floats, Floats] | None = None
    returned: Ints | None = None


def selected(trace: Trace, processes: Sequence[Graph], change: Change) -> list[Selection]:
    """Return what ``change`` selects in each of the graphs ``processes`` of ``trace``.

    Raises :class:`~traceana.errors.NoSuchSelectionError` where that is nothing of the trace.
    """
    whole = trace.whole
    if change.what == "sync":
        return _sync_selections(whole, processes)
    if change.what != "work":
        _check_host_time(whole, change)
        return [
            Selection(np.zeros(len(graph.at), dtype=np.bool_), _host_pieces(whole, graph, change))
            for graph in processes
        ]
    flags = selected_work(whole, change)
    if change.beside and change.part == "DtoH":
        # What is small is a result that the host waits for.
        flags &= (whole.tables.activities["bytes"] >= LARGE_COPY_BYTES).fill_null(False).to_numpy()
        if not flags.any():
            raise NoSuchSelectionError("no copies to overlap in the trace")
        calls = whole.tables.calls.filter(_copy_calls(whole, flags, "DtoH"))
        return [
            replace(_selection(whole, graph, flags, change), returned=_return_nodes(graph, calls))
            for graph in processes
        ]
    if change.by is None:
        return [_selection(whole, graph, flags, change) for graph in processes]
    factors = _factors(whole, processes, flags, change)
    # What is copied to the host is needed there, so these calls wait as before.
    to_device = whole.tables.calls.filter(_copy_calls(whole, factors.chosen, "HtoD"))
    selections = []
    for graph in processes:
        low, high = (np.append(factor, [1.0])[graph.activity] for factor in factors[1:])
        selections.append(
            replace(
                _selection(whole, graph, factors.chosen, change),
                factors=(low, high),
                returned=_return_nodes(graph, to_device) if change.by == "pinned" else None,
            )
        )
    return selections


def _selection(trace: Trace, graph: Graph, flags: Flags, change: Change) -> Selection:
    return Selection(
        (graph.activity != NONE) & np.append(flags, [False])[graph.activity],
        _pieces_of_work(trace, graph, flags, remove=change.remove),
    )


def _sync_selections(trace: Trace, processes: Sequence[Graph]) -> list[Selection]:
    """Return the waits for the device: synchronizing calls, and copies to the host that block."""
    synchronizing = Texts.of(trace.tables.calls["name"]).matching(host_calls.SYNCHRONIZES)
    if not synchronizing.any():
        raise NoSuchSelectionError("no calls that wait for the device in the trace")
    waiting = synchronizing | _copy_calls(
        trace, np.ones(trace.tables.activities.height, np.bool_), "DtoH"
    )
    pieces = np.append(synchronizing, [False])
    return [
        Selection(
            np.zeros(len(graph.at), dtype=np.bool_),
            pieces[graph.host.call],
            returned=_return_nodes(graph, trace.tables.calls.filter(waiting)),
        )
        for graph in processes
    ]


def _copy_calls(trace: Trace, flags: Flags, direction: str) -> Flags:
    """Return the calls that launched the activities ``flags`` that copy in ``direction``."""
    copied = (trace.tables.activities["copy_kind"] == direction).fill_null(value=False).to_numpy()
    launching = np.zeros(trace.tables.calls.height + 1, dtype=np.bool_)
    launching[from_rows(trace.tables.activities["call"])[flags & copied]] = True
    return launching[:NONE]


def _return_nodes(graph: Graph, calls: pl.DataFrame) -> Ints:
    """Return the nodes at which ``calls`` return."""
    ends = (calls["start"] + calls["duration"]).to_numpy()
    return np.flatnonzero((graph.activity == NONE) & np.isin(graph.at, ends))


def _factors(trace: Trace, processes: Sequence[Graph], flags: Flags, change: Change) -> Factors:
    """Return the factors of the activities ``flags`` by the kind of ``change``."""
    kind, _, argument = (change.by or "").partition(":")
    if kind in ("tensor-cores", "amp", "fused-optimizer", "gpu"):
        part, rows = trace, np.arange(trace.tables.activities.height)
        # Of a long trace a small part is replayed: counts of the rest take longer than the replay.
        if len(rows) > REPLAYED_ACTIVITIES:
            replayed = [graph.activity[graph.activity != NONE] for graph in processes]
            rows = np.unique(np.concatenate(replayed))
            part = trace.selection(trace.meta, activities=trace.tables.activities[rows])
        chosen = flags[rows]
        if kind in ("tensor-cores", "amp"):
            factors_of_part = with_tensor_cores(part, chosen, autocast=kind == "amp")
        elif kind == "fused-optimizer":
            factors_of_part = with_fused_optimizer(part, chosen)
        else:
            factors_of_part = on_another_gpu(part, chosen, argument)
        kept = factors_of_part.chosen
        return Factors.of_rows(
            trace, rows[kept], factors_of_part.least[kept], factors_of_part.most[kept]
        )
    if kind == "batch":
        return with_batch(trace, flags, float(argument), change.recordings)
    if kind == "pinned":
        return from_pinned_memory(trace, flags)
    if kind == "recording":
        return as_in(trace, flags, argument)
    if kind == "link":
        return over_another_link(trace, flags, float(argument))
    return with_ranks(trace, flags, int(argument))


def selected_work(trace: Trace, change: Change) -> Flags:
    """Return which activities of ``trace`` a ``change`` of work selects.

    Raises :class:`~traceana.errors.NoSuchSelectionError` where there are none.
    """
    activities = trace.tables.activities
    selected = activities["kind"].ne("sync").to_numpy().copy()
    if change.category or change.part or change.kernel:
        selected &= _of_class(trace, change)
    if change.direction is not None:
        selected &= (
            (activities["direction"].cast(pl.String) == change.direction)
            .fill_null(False)
            .to_numpy()
        )
    if change.layer is not None:
        is_layer = trace.tables.layers["role"].cast(pl.String) == "layer"
        layers = trace.tables.layers["path"].str.contains(_pattern(change.layer)) & is_layer
        wanted = np.append(layers.fill_null(value=False), [False])
        selected &= wanted[from_rows(activities["layer"])]
    if change.operator is not None:
        named = Texts.of(trace.tables.ops["name"]).matching(_pattern(change.operator))
        selected &= _or_inside(trace.tables.ops, named)[from_rows(activities["op"])]
    if change.outside_loading:
        ops, ranges = _loading(trace)
        selected &= ~(ops[from_rows(activities["op"])] | ranges[from_rows(activities["range"])])
    if change.input_gradient:
        # Data gradients of the networks' inputs, which nothing uses.
        unused = each_convolution(trace).filter("unused")["episode"]
        selected &= activities["episode"].is_in(unused.implode()).fill_null(value=False).to_numpy()
        if not selected.any():
            raise NoSuchSelectionError(
                "no convolution in the trace computes a gradient of its input that nothing uses"
            )
    if not selected.any():
        fields = {
            "class": change.category,
            "part": change.part,
            "direction": change.direction,
            "layer": change.layer,
            "kernel": change.kernel,
            "operator": change.operator,
        }
        given = ", ".join(f"{name} {value!r}" for name, value in fields.items() if value)
        raise NoSuchSelectionError(
            f"no work of {given or 'a device'} in the trace{_suggestion(trace, change)}"
        )
    return selected


def _check_host_time(trace: Trace, change: Change) -> None:
    """Raise ``NoSuchSelectionError`` where the host has no time that ``change`` is about."""
    ranges = trace.tables.ranges["text"]
    if change.what == "launch" and not trace.tables.activities["call"].is_not_null().any():
        raise NoSuchSelectionError("no calls that launch kernels in the trace")
    if change.what == "data" and not any(rows.any() for rows in named_rows(trace, LOADING)):
        raise NoSuchSelectionError("no waits for the next batch in the trace")
    if change.range is not None and not Texts.of(ranges).matching(_pattern(change.range)).any():
        raise NoSuchSelectionError(f"no annotation {change.range!r} in the trace")


def _of_class(trace: Trace, change: Change) -> Flags:
    conditions = [pl.lit(value=True)]
    if change.category:
        conditions.append(pl.col("category") == change.category)
    if change.part:
        conditions.append(pl.col("part") == change.part)
    if change.kernel:
        is_named = trace.tables.names["name"].str.contains(change.kernel)
        conditions.append(pl.col("kind").is_in(["kernel", "graph", "op"]))
        conditions.append(pl.lit(is_named).gather(pl.col("name_id")))
    rows = labels(trace.tables, "category", "part", "kind", "name_id")
    wanted = rows.select(pl.all_horizontal(conditions).fill_null(value=False)).to_series()
    return np.asarray(wanted.to_numpy())


def _pattern(glob: str) -> str:
    """Return the regular expression of a pattern in which ``*`` is any text."""
    return "^" + ".*".join(re.escape(part) for part in glob.split("*")) + "$"


def _suggestion(trace: Trace, change: Change) -> str:
    """Return the name nearest to the class or layer of ``change``, else what there is instead."""
    if change.category is None:
        layers = trace.tables.layers["path"].drop_nulls().to_list()
        layer = near(change.layer or "", layers)
        return f": did you mean layer:{layer}?" if layer else ""
    classes = work(trace, "category", "part", "direction").unique()
    if (classes["direction"].cast(pl.String) == change.category).any():
        return f": did you mean direction:{change.category}?"
    classes = classes.select(pl.col("category", "part").cast(pl.String)).unique()
    parts = classes.filter(pl.col("category") == change.category)["part"].drop_nulls().sort()
    alternatives = parts if len(parts) else classes["category"].unique().sort()
    if not len(alternatives):
        return ""
    more = ", …" if len(alternatives) > _MOST_NAMED else ""
    prefix = f"{change.category}/" if len(parts) else ""
    names = ", ".join(prefix + name for name in alternatives.head(_MOST_NAMED))
    return f": it has {names}{more}"


def _pieces_of_work(trace: Trace, graph: Graph, flags: Flags, *, remove: bool) -> Flags:
    """Return the pieces of host threads that are of the selected activities.

    Of work of the CPU these are the pieces of its operators, or of its ranges in a trace without
    operators. Of device work that is removed, they are those of operators and calls that launched
    nothing else.
    """
    activities, host = trace.tables.activities, graph.host
    is_op = (activities["kind"] == "op").to_numpy()
    is_range = is_op & activities["op"].is_null().to_numpy()
    pieces = np.zeros(len(host.begin), dtype=np.bool_)
    for row_of_activity, row_of_piece, height in (
        (from_rows(activities["op"]), host.op, trace.tables.ops.height),
        (from_rows(activities["call"]), host.call, trace.tables.calls.height),
        (
            np.where(is_range, from_rows(activities["range"]), NONE),
            host.range,
            trace.tables.ranges.height,
        ),
    ):
        of_selected, of_others = (np.zeros(height + 1, dtype=np.bool_) for _ in range(2))
        wanted = flags if remove else flags & is_op
        of_selected[row_of_activity[wanted]] = True
        of_others[row_of_activity[~wanted & activities["kind"].ne("sync").to_numpy()]] = True
        of_selected[NONE] = False
        pieces |= (of_selected & ~of_others)[row_of_piece]
    return pieces


def _host_pieces(trace: Trace, graph: Graph, change: Change) -> Flags:
    host = graph.host
    if change.what == "launch":
        launches, _ = _launching_calls(trace)
        launching = launches[host.call]
        if change.outside_loading:
            launching = launching & ~_loading_pieces(trace, graph)
        return np.asarray(launching)
    if change.what == "data":
        return _loading_pieces(trace, graph)
    if change.direction is not None:
        return _optimizer_pieces(trace, graph)
    if change.range is not None:
        named = Texts.of(trace.tables.ranges["text"]).matching(_pattern(change.range))
        return _or_inside(trace.tables.ranges, named)[host.range]
    if change.between_layers:
        return _between_layers(trace, graph)
    if change.operator is None:
        return np.ones(len(host.begin), dtype=np.bool_)
    named = Texts.of(trace.tables.ops["name"]).matching(_pattern(change.operator))
    # What loads the next batch is an operator by its form only.
    _, loading_code = _launching_calls(trace)
    loading = _loading_pieces(trace, graph) | loading_code[host.call]
    return np.asarray(_or_inside(trace.tables.ops, named)[host.op] & ~loading)


def _launching_calls(trace: Trace) -> tuple[Flags, Flags]:
    """Return which calls launch kernels, and which load the code of one they launch; false for -1.

    A first launch loads the kernel's code, which is neither the launch's time nor the operator's.
    """
    launching = np.zeros(trace.tables.calls.height + 1, dtype=np.bool_)
    launching[from_rows(trace.tables.activities.filter(pl.col("kind") == "kernel")["call"])] = True
    launching[NONE] = False
    long = np.append(trace.tables.calls["duration"].to_numpy() > LONGEST_DISPATCH_NS, [False])
    return launching & ~long, launching & long


def _loading_pieces(trace: Trace, graph: Graph) -> Flags:
    """Return the pieces in which a thread waits for the next batch, or makes it itself."""
    ops, ranges = _loading(trace)
    return np.asarray(ops[graph.host.op] | ranges[graph.host.range])


def _loading(trace: Trace) -> tuple[Flags, Flags]:
    """Return which operators and which ranges load the next batch; false for row -1."""
    ops, ranges = named_rows(trace, LOADING)
    return _or_inside(trace.tables.ops, ops), _or_inside(trace.tables.ranges, ranges)


def _between_layers(trace: Trace, graph: Graph) -> Flags:
    """Return the pieces of a thread between two operators of layers, in one step.

    Between steps the program does more than call its model; without steps they are not known.
    """
    host = graph.host
    has_op, row = host.op != NONE, np.arange(len(host.op))
    if trace.tables.steps.is_empty() or not has_op.any():
        return np.zeros(len(host.op), dtype=np.bool_)
    roles = trace.tables.layers["role"].gather(trace.tables.ops["layer"]).cast(pl.String)
    in_layer = np.append((roles == "layer").fill_null(value=False).to_numpy(), [False])[host.op]
    before = np.maximum.accumulate(np.where(has_op, row, 0))
    after = np.minimum.accumulate(np.where(has_op, row, len(row) - 1)[::-1])[::-1]
    step = np.searchsorted(np.sort(graph.steps["begin"].to_numpy()), host.begin, side="right")
    same = (host.thread[before] == host.thread[after]) & (step[before] == step[after])
    between = ~has_op & same & in_layer[before] & in_layer[after]
    return np.asarray(between & ~_loading_pieces(trace, graph))


def _optimizer_pieces(trace: Trace, graph: Graph) -> Flags:
    """Return the pieces in the optimizer's operators, and in its range after one of them.

    Python before the first is as long where the optimizer is fused. The closure of a step is
    forward and backward pass.
    """
    host = graph.host
    roles = trace.tables.layers["role"].gather(trace.tables.ops["layer"]).cast(pl.String)
    is_optimizer = np.append((roles == "optimizer").fill_null(value=False).to_numpy(), [False])
    ranges = Texts.of(trace.tables.ranges["text"]).matching(ROLE_OF_TEXT["optimizer"])
    in_range = _or_inside(trace.tables.ranges, ranges)[host.range]
    last = np.maximum.accumulate(np.where(host.op != NONE, np.arange(len(host.op)), 0))
    return np.asarray(
        is_optimizer[host.op] | (in_range & (host.op == NONE) & is_optimizer[host.op[last]])
    )


def _or_inside(table: pl.DataFrame, chosen: Flags) -> Flags:
    """Return which rows of ``table`` are ``chosen`` or inside one that is; false for row -1."""
    return np.append(chosen | Tree.of_table(table).inside(chosen), [False])
