"""Which source decides the layer: of every operator, then of every activity. The ``layers`` table.

:func:`resolve` takes the first source that has a layer for an operator. :func:`layers_of_work`
follows a kernel: its own scope, the operator or the ranges at its launch, generated code, updates
of parameters, and for lost launches equal work elsewhere. Work of CUDA graphs
(:mod:`traceana.enrich.graph_replays`) has no operators at its launch and comes afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.nesting import NONE, Flags, Ints, take, to_rows
from traceana.enrich.layers.compiled import CompiledGraphs, compiled_graphs
from traceana.enrich.layers.from_order import positions, short_name
from traceana.enrich.layers.from_ranges import hierarchy, modules, named_ranges
from traceana.enrich.layers.from_scopes import ScopeLayers
from traceana.enrich.layers.roles import (
    MULTI_TENSOR,
    OPTIMIZER,
    batch_fetches,
    collectives,
    optimizers,
    role_ranges,
)
from traceana.enrich.layers.source import (
    NO_LAUNCH,
    SEPARATOR,
    Layer,
    LayerIntervals,
    OpLayers,
    Program,
)
from traceana.trace import Ledger
from traceana.trace.schema import DEVICE_WORK, Direction, empty
from traceana.trace.work import OUTSIDE

if TYPE_CHECKING:
    from traceana.enrich.layers.generated_code import Code


@dataclass(frozen=True)
class LayerResolution:
    """The layers, and lookups of the layer by scope, or by thread and time.

    ``of_op`` is the index into ``layers`` of every operator, NONE without a layer. Sources that are
    looked up later have the index of their first layer.
    """

    layers: list[Layer]
    of_op: Ints
    intervals: list[tuple[LayerIntervals, int]]
    """The ranges that are layers, trusted ones first."""
    scopes: tuple[ScopeLayers, int]
    compiled: CompiledGraphs | None
    of_stretch: Ints
    """The layer of each stretch of generated code, NONE without; the last is NONE's."""

    @property
    def too_long(self) -> int:
        """Number of ranges that have the path of their parent, because theirs is too long."""
        return sum(intervals.too_long for intervals, _ in self.intervals)

    def graph_calls(self, rows: Ints) -> pl.DataFrame:
        """Return the calls of compiled graphs as a table; ``rows`` are the rows of the layers."""
        if self.compiled is None or not self.compiled.codes:
            return empty("graph_calls")
        from traceana.enrich.layers.generated_code import graph_calls

        return graph_calls(self.compiled.codes, self.of_op, self.of_stretch, rows)


@dataclass(frozen=True)
class LaunchPoint:
    """The launch of each activity: its thread (``key``), its ``time`` and the operator around it.

    ``known_op`` is the operator that the activity names itself, ``in_direction`` that of the ranges
    at the launch, ``lost`` whether the launch is not in the trace.
    """

    key: Ints
    time: Ints
    op: Ints
    known_op: Ints
    in_direction: pl.Series
    lost: Flags


def resolve(
    program: Program, scopes: ScopeLayers, code: Code | None = None, *, compiled: bool
) -> LayerResolution:
    """Return the layer of every operator: that of the first of these which has one.

    1. What is around the operator: a role (optimizer, collective, data); the module call, or the
       Module Hierarchy; the name scope; a named range that a checkpoint opens in the backward pass.
    2. For a backward operator, the layer of its forward operator.
    3. The operators of an optimizer; the program's own named ranges; for other than backward
       operators, the position in the step, within the path of a range around several layers:
       ``block0.attention.linear_0``.

    Position is not used in a trace with name scopes, nor for a ``compiled`` program, nor where
    operators of gradients have no scope. ``scopes`` are the layers of the name scopes; ``code``
    returns the graphs of Inductor's generated code.
    """
    ops, nesting = program.ops, program.nesting
    graphs = compiled_graphs(ops, program.names, nesting, program.forward, code)
    if graphs is not None:
        program = replace(program, forward=graphs.forward)
    forward, root = program.forward, program.root if graphs is None else graphs.root
    layers: list[Layer] = []
    intervals: list[tuple[LayerIntervals, int]] = []

    def numbered(found: OpLayers) -> Ints:
        base = len(layers)
        layers.extend(found.layers)
        if found.intervals is not None:
            intervals.append((found.intervals, base))
        return _offset(found.of_op, base)

    around_op = no_layer = np.full(ops.height, NONE, dtype=np.int64)
    for source in (role_ranges, collectives, batch_fetches, modules, hierarchy):
        source_layer = numbered(source(program))
        if graphs is not None and source in (modules, hierarchy):
            source_layer = graphs.finer(source_layer)
        around_op = _first_known((around_op, source_layer))
    first_of_scopes = len(layers)
    # An operator without a scope has that of the operator around it.
    scope_layer = nesting.inherit(scopes.layer_of(ops["scope"]))
    around_op = _first_known((around_op, numbered(OpLayers(scope_layer, scopes.layers))))
    ranges, holds_layers, is_recomputed = named_ranges(program)
    range_layer = numbered(ranges)
    around_op = _first_known((around_op, np.where(is_recomputed, range_layer, NONE)))
    by_optimizer = numbered(optimizers(program))
    by_position, first_by_position = no_layer, len(layers)
    if scopes.of_modules and not scopes.trains and not compiled:
        settled, around = (
            _first_known((around_op, by_optimizer)),
            np.where(holds_layers, range_layer, NONE),
        )
        by_position = numbered(positions(program, root, settled, around, layers))
    fallback = _first_known((by_optimizer, np.where(holds_layers, NONE, range_layer), by_position))

    of_op = _first_known((around_op, fallback))
    # A backward operator has the layer of its forward operator.
    if len(forward):
        of_op = _first_known((around_op, np.where(forward == NONE, NONE, of_op[forward]), fallback))
    layers = _with_types(layers, ops, of_op, scopes)
    of_stretch = np.full(1, NONE, dtype=np.int64)
    if graphs is not None:
        of_stretch = graphs.layers_behind(of_op, layers, first_by_position)
    scopes_from = scopes, first_of_scopes
    return LayerResolution(layers, of_op, intervals, scopes_from, graphs, of_stretch)


def layers_of_work(
    resolved: LayerResolution,
    program: Program,
    activities: pl.DataFrame,
    names: pl.DataFrame,
    launched: LaunchPoint,
    ledger: Ledger,
) -> tuple[list[Layer], Ints, pl.Series]:
    """Return all layers, and the layer (an index into them) and direction of each activity.

    The layer is that of the first of these which has one:

    1. Generated code without events that runs at the launch, which is part of an operator.
    2. The activity's own name scope; the operator around the launch, or without one the ranges.
    3. The optimizer, for kernels that libraries launch outside operators to update parameters.
    4. Where the launch is not recorded, the layer of equal work elsewhere in the trace.

    The direction is that of the layer's role, else of the scope, the operator or the range.
    """
    scopes, base = resolved.scopes
    in_range = _first_known(
        _offset(ranges.at(launched.key, launched.time), first_number)
        for ranges, first_number in resolved.intervals
    )
    layer = _first_known(
        (
            _offset(scopes.layer_of(activities["scope"]), base),
            np.where(launched.op == NONE, in_range, take(resolved.of_op, launched.op)),
        )
    )
    if resolved.compiled is not None and (resolved.of_stretch != NONE).any():
        stretch = resolved.compiled.stretch(launched.known_op, launched.time)
        layer = _first_known((resolved.of_stretch[stretch], layer))
    layers = [*resolved.layers, OPTIMIZER]
    updates = names["name"].cast(pl.String).str.contains(MULTI_TENSOR)
    is_update = updates.gather(activities["name_id"]).fill_null(value=False).to_numpy()
    is_update = is_update & ~launched.lost & (launched.op == NONE) & (layer == NONE)
    layer = np.where(is_update, len(layers) - 1, layer)

    of_optimizer = np.array([*(role == "optimizer" for _, _, role in layers), False])[layer]
    direction = pl.select(
        pl.when(pl.Series(of_optimizer))
        .then(pl.lit("optimizer", Direction))
        .otherwise(
            pl.coalesce(
                scopes.direction_of(activities["scope"]).cast(Direction),
                program.ops["direction"].gather(to_rows(launched.op)),
                launched.in_direction,
            )
        )
    ).to_series()

    unknown = layer == NONE
    wanted = pl.Series(unknown) & activities["kind"].is_in(DEVICE_WORK)
    if unknown.all() or not wanted.any():
        return layers, layer, direction
    from traceana.match.repetition import Repetitions

    code = direction.to_physical().cast(pl.Int64).fill_null(len(Direction.categories)).to_numpy()
    # Layers of the same path and role are one row of the table. Repetitions that differ in the
    # layer may agree in the role, such as a collective.
    first_number: dict[tuple[str | None, str], int] = {}
    row, of_role = np.array(
        [
            (
                first_number.setdefault((path, role), number),
                first_number.setdefault((path if role == "layer" else None, role), number),
            )
            for number, (path, _, role) in enumerate(layers)
        ]
    ).T
    directed = np.where(unknown, NONE, row[layer] * (len(Direction.categories) + 1) + code)
    role = np.where(unknown, NONE, of_role[layer])
    source, source_of_role = Repetitions(activities).sources((directed, role), wanted)
    any_source = np.where(source == NONE, source_of_role, source)
    by_repetition = pl.Series(any_source != NONE)
    ledger.add(
        "by_repetition",
        int(by_repetition.sum()),
        table="activities",
        kept=True,
        time_ns=int(activities["duration"].filter(by_repetition).sum()),
    )
    return (
        layers,
        np.where(any_source == NONE, layer, layer[any_source]),
        direction.zip_with(pl.Series(source == NONE), direction.gather(to_rows(source))),
    )


def agreed_layers(program: Program, of_op: Ints, layer: Ints, op: Ints) -> tuple[Ints, Ints]:
    """Return the layers of activities and of operators, completed for operators without a layer.

    An operator without a layer (its forward operator is not recorded) has that of its work, where
    repetitions know it: so do its FLOPs, and those of its kernels that are the same in several
    layers. ``op`` is the operator of each activity; what an outermost operator holds is of one
    layer, unless its work is of several.
    """
    inferred = (layer != NONE) & (op != NONE) & (take(of_op, op) == NONE)
    if not inferred.any():
        return layer, of_op
    root, inside = np.unique(program.root[op[inferred]], return_inverse=True)
    lowest, highest = np.full(len(root), layer.max() + 1), np.full(len(root), NONE)
    np.minimum.at(lowest, inside, layer[inferred])
    np.maximum.at(highest, inside, layer[inferred])
    of_root = np.full(len(of_op), NONE, dtype=np.int64)
    of_root[root] = np.where(lowest == highest, lowest, NONE)
    of_op = _first_known((of_op, of_root[program.root]))
    return _first_known((layer, take(of_op, op))), of_op


def _offset(indices: Ints, base: int) -> Ints:
    """Return the indices ``indices`` counted from ``base``."""
    return np.where(indices == NONE, NONE, indices + base) if base else indices


def _first_known(sources: Iterable[Ints]) -> Ints:
    """Return the first of the sources' values that is not NONE."""
    values, *others = sources
    for source in others:
        values = np.where(values == NONE, source, values)
    return values


_LAST_IN_SCOPE: Final = r"([^/]+?)(?:_\d+)?$"
"""The operator that an instruction implements, without TensorFlow's number."""


def _with_types(
    layers: list[Layer], ops: pl.DataFrame, of_op: Ints, scopes: ScopeLayers
) -> list[Layer]:
    """Return ``layers`` with missing types set to the operator with most of the forward time.

    Its calls count by their lower median: a single call whose thread lost its processor may take
    longer than all others of the layer.

    The operator in the name scope takes precedence, because XLA names instructions by its own
    transformations (``fusion.3``, ``Conv2D.2``), and an unfused normalization of TensorFlow has no
    operator of that name.
    """
    forward = (ops["direction"] == "forward").fill_null(False).to_numpy()
    # Summed by name first: layers have few names, and texts cost more than sums.
    summed = (
        ops.select(
            *("name", "scope", "duration"),
            pl.Series("layer", of_op),
            pl.col("instruction").is_not_null().alias("compiled"),
        )
        .filter(pl.Series((of_op != NONE) & forward, dtype=pl.Boolean))
        .group_by("layer", "name", "scope", "compiled")
        .agg(pl.col("duration").quantile(0.5, "lower") * pl.len())
    )
    by_scope = scopes.operator_of(summed["scope"])
    last = pl.col("scope").cast(pl.String).str.extract(_LAST_IN_SCOPE)
    heaviest = (
        summed.with_columns(
            pl.coalesce(by_scope, pl.when("compiled").then(last), short_name(summed["name"])).alias(
                "name"
            ),
            by_scope.is_not_null().alias("by_scope"),
        )
        .group_by("layer", "name", "by_scope")
        .agg(pl.col("duration").sum())
        # Of nested operators the outermost takes most time. Equal times are sorted by name, so that
        # the choice is deterministic.
        .sort("by_scope", "duration", "name", descending=[True, True, False])
        .unique("layer", keep="first", maintain_order=True)
    )
    types = dict(heaviest.select("layer", "name").iter_rows())
    return [
        (path, kind or (types.get(i) if role == "layer" else None), role)
        for i, (path, kind, role) in enumerate(layers)
    ]


def layer_table(
    layers: list[Layer],
    used: Ints,
    time: Ints,
    start: Ints,
    lost: Flags,
    backward: Flags,
) -> tuple[pl.DataFrame, Ints, Ints]:
    """Return the ``layers`` table of the layers in use, the row of each entry of ``used``, and
    the row of each of ``layers`` (NONE: not in use).

    ``used`` indexes ``layers`` (NONE: outside all layers). ``time`` is the time of each entry, and
    ``start`` decides where it is equal, as in a launch of a graph; ``lost`` is whether its launch
    is missing. Layers of one path and role are one row. The enclosing
    modules of a layer get rows too. Rows are in order of first use. Layers that are used in the
    ``backward`` pass only come last, because a compiled program may start a step with the rest of
    the backward pass.
    """
    if not len(used):
        return empty("layers"), used, np.full(len(layers), NONE, dtype=np.int64)
    all_layers = [*layers, *((path, None, "unattributed") for path in (OUTSIDE, NO_LAUNCH))]
    index = np.where(used == NONE, len(layers) + lost, used)
    # The first time in another than the backward pass, if there is one.
    counts = ~pl.col("backward") | pl.col("backward").all()
    time_of_first = pl.col("time").filter(counts).min()
    first = (
        pl.DataFrame({"index": index, "time": time, "start": start, "backward": backward})
        .group_by("index")
        .agg(
            pl.col("backward").all(),
            time_of_first,
            pl.col("start").filter(counts & (pl.col("time") == time_of_first)).min(),
        )
        .sort("index")
    )
    rows: dict[tuple[str, str], tuple[str | None, tuple[bool, int, int]]] = {}
    """By (path, role): the type, and when the layer is used first."""

    def enter(path: str, kind: str | None, role: str, when: tuple[bool, int, int]) -> None:
        known, earlier = rows.get((path, role), (None, when))
        rows[path, role] = known or kind, min(earlier, when)

    for i, only_backward, first_time, first_start in first.iter_rows():
        path, kind, role = all_layers[i]
        enter(path, kind, role, (only_backward and role == "layer", first_time, first_start))
    types = {path: kind for path, kind, role in layers if role == "layer"}
    reached: set[str] = set()
    # In the order of first use an ancestor is reached first by the layer that is used first: the
    # work does not grow with the depth of every layer.
    for (path, role), (_, when) in sorted(rows.items(), key=lambda item: item[1][1]):
        above = path.rpartition(SEPARATOR)[0]
        while role == "layer" and above in types and above not in reached:
            reached.add(above)
            enter(above, types[above], role, when)
            above = above.rpartition(SEPARATOR)[0]
    order = sorted(rows, key=lambda row: (rows[row][1], row))
    number = {row: i for i, row in enumerate(order)}
    frame = pl.DataFrame(
        {
            "path": [path for path, _ in order],
            "type": pl.Series([rows[row][0] for row in order], dtype=pl.String),
            "role": [role for _, role in order],
            "parent": pl.Series(
                [number.get((path.rpartition(SEPARATOR)[0], role)) for path, role in order],
                dtype=pl.UInt32,
            ),
            "position": list(range(len(order))),
        }
    )
    lookup = np.full(len(all_layers), NONE, dtype=np.int64)
    for i in first["index"]:
        path, _, role = all_layers[i]
        lookup[i] = number[path, role]
    return frame, lookup[index], lookup[: len(layers)]
