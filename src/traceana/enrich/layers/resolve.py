"""The layer of every operator, by the first source that has one, and the ``layers`` table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Flags, Ints, Nesting, roots, take
from traceana.enrich.layers.compiled_regions import LookedInto, looked_into
from traceana.enrich.layers.from_order import position_layers, short_name
from traceana.enrich.layers.from_ranges import (
    annotation_intervals,
    hierarchy_layers,
    module_intervals,
)
from traceana.enrich.layers.from_scopes import ScopeLayers
from traceana.enrich.layers.layer_intervals import SEPARATOR, Layer, LayerIntervals
from traceana.enrich.layers.roles import (
    closure_operators,
    collective_layers,
    optimizer_layers,
    role_intervals,
)
from traceana.trace.schema import empty

if TYPE_CHECKING:
    from traceana.enrich import Code

OUTSIDE: Layer = ("(outside all layers)", None, "unattributed")
NO_LAUNCH: Layer = ("(launched before capture)", None, "unattributed")
"""Rows for work outside all layers, by reason."""


class LayerResolution(msgspec.Struct, frozen=True):
    """The layers, and lookups of the layer by scope, or by thread and time.

    ``of_op`` is the index into ``layers`` of every operator, NONE without a layer.
    """

    layers: list[Layer]
    of_op: Ints
    _intervals: list[tuple[LayerIntervals, int]]
    _scopes: tuple[ScopeLayers, int]
    _compiled: LookedInto
    _of_stretch: Ints
    """The layer of each stretch of generated code, NONE without; the last is NONE's."""

    @property
    def too_long(self) -> int:
        """Number of ranges that have the path of their parent, because theirs is too long."""
        return sum(intervals.too_long for intervals, _ in self._intervals)

    def of_scope(self, scopes: pl.Series) -> Ints:
        """Return the layer of each name scope, NONE without a layer."""
        scopes_, base = self._scopes
        found = scopes_.layer_of(scopes)
        return np.where(found == NONE, NONE, found + base)

    def with_generated(self, layer: Ints, op: Ints, time: Ints) -> Ints:
        """Return ``layer``, replaced by that of generated code without events, which is part of
        operator ``op`` at ``time``."""
        if (self._of_stretch == NONE).all():
            return layer
        found = self._of_stretch[self._compiled.stretch(op, time)]
        return np.where(found == NONE, layer, found)

    def graph_calls(self, rows: Ints) -> pl.DataFrame:
        """Return the table of the calls of compiled graphs; ``rows`` are those of the layers."""
        if not self._compiled.codes:
            return empty("graph_calls")
        from traceana.enrich.layers.generated_code import graph_calls

        return graph_calls(self._compiled.codes, self.of_op, self._of_stretch, rows)

    def at(self, key: Ints, time: Ints) -> Ints:
        """Return the layer at each (thread, time), by ranges only."""
        found = np.full(len(time), NONE, dtype=np.int64)
        for intervals, base in self._intervals:
            here = intervals.at(key, time)
            found = _first(found, np.where(here == NONE, NONE, here + base))
        return found


def resolve(
    ops: pl.DataFrame,
    names: Texts,
    op_key: Ints,
    nesting: Nesting,
    op_step: Ints,
    forward: Ints,
    ranges: pl.DataFrame,
    range_key: Ints,
    scopes: ScopeLayers,
    copying: Ints | None,
    *,
    compiled: bool,
    code: Code | None = None,
) -> LayerResolution:
    """Return the layer of every operator, from the first source that has one.

    The sources, in order: a role (optimizer, collective); the module call around the operator, or
    its Module Hierarchy; its name scope; a named range that a checkpoint opens in the backward
    pass; for a backward operator, the layer of its forward operator; the operators of an optimizer;
    the program's own named ranges; for other than backward operators, the position in the step,
    within the path of a range around several layers: ``block0.attention.linear_0``.
    Position is not used in a trace with name scopes, nor for a ``compiled`` program, nor where
    operators of gradients have no scope. ``names`` and ``nesting`` are those of the operators,
    ``forward`` that of :func:`traceana.enrich.operators.forward_of`, ``copying`` the operators that
    called for a copy, None where calls are not recorded, ``code`` returns the graphs of
    Inductor's generated code.
    """
    start = ops["start"].to_numpy()
    within = looked_into(ops, names, nesting, forward, code)
    forward = within.forward
    texts = Texts.of(ranges["text"])
    roles = role_intervals(ranges, texts, range_key)
    modules = module_intervals(ranges, range_key)
    named = annotation_intervals(ranges, texts, range_key, ops, names, op_key)
    layers: list[Layer] = []
    bases: list[int] = []

    nowhere = np.full(ops.height, NONE, dtype=np.int64)

    def number(found: Ints, rows: list[Layer]) -> Ints:
        bases.append(len(layers))
        layers.extend(rows)
        # Most sources are absent: they share one array, because operators are many.
        return np.where(found == NONE, NONE, found + bases[-1]) if rows else nowhere

    around = roles.nesting.innermost(op_key, start)
    in_closure = closure_operators(ops, nesting, forward, roles, around)
    by_role = number(np.where(in_closure, NONE, take(roles.layer, around)), roles.layers)
    by_module = within.finer(number(modules.at(op_key, start), modules.layers))
    around = named.nesting.innermost(op_key, start)
    in_range = number(take(named.layer, around), named.layers)
    several = np.zeros(ops.height, dtype=np.bool_)
    if named.several is not None and named.several.any():
        several = (around != NONE) & named.several[around]
    by_name = np.where(several, NONE, in_range)
    by_collective = number(*collective_layers(ops, nesting))
    by_hierarchy = within.finer(number(*hierarchy_layers(ops, nesting)))
    by_scope = number(scopes.layer_of(ops["scope"]), scopes.layers)
    scope_base = bases[-1]
    own = _first(by_role, by_collective, by_module, by_hierarchy, nesting.inherit(by_scope))
    recomputed = _recomputed(ops, nesting, named, around, by_name)
    own = np.where((own == NONE) & recomputed, by_name, own)
    del by_role, by_collective, by_module, by_hierarchy, by_scope, around, recomputed
    by_optimizer = number(*optimizer_layers(ops, names, nesting, forward, op_step, ranges))
    by_position, first_by_position = nowhere, len(layers)
    if scopes.of_modules and not scopes.trains and not compiled:
        settled = _first(own, by_optimizer)
        positions, positional = position_layers(
            ops, within.root, op_step, settled, forward, copying
        )
        if several.any():
            inside = np.where(several, in_range, NONE)[within.root]
            positions, positional = _within(positions, positional, inside, layers)
        by_position = number(positions, positional)

    fallback = _first(by_optimizer, by_name, by_position)
    of_forward = _first(own, fallback)[forward] if len(forward) else own
    of_op = _first(own, np.where(forward == NONE, NONE, of_forward), fallback)
    layers = _typed(layers, ops, of_op, scopes)
    of_stretch = within.layers_behind(of_op, layers, first_by_position)
    return LayerResolution(
        layers,
        of_op,
        list(zip((roles, modules, named), bases, strict=False)),
        (scopes, scope_base),
        within,
        of_stretch,
    )


def _within(
    positions: Ints, positional: list[Layer], inside: Ints, layers: list[Layer]
) -> tuple[Ints, list[Layer]]:
    """Return the layers by position, those in a range with its path and their number in it.

    ``inside`` is the range around each operator, of ``layers``. One range around all of them, such
    as ``generate``, tells none from another.
    """
    of_layers = np.array([role == "layer" for *_, role in positional], dtype=np.bool_)
    known = np.flatnonzero(positions != NONE)
    if len(np.unique(inside[known[of_layers[positions[known]]]])) < 2:
        return positions, positional
    pairs = pl.DataFrame({"inside": inside, "layer": positions})
    chosen = (pl.col("inside") != NONE) & (pl.col("layer") != NONE)
    found = pairs.filter(chosen).unique().sort("inside", "layer")
    rows, numbers = list(positional), []
    seen: Counter[tuple[str, str]] = Counter()
    for number, layer in found.iter_rows():
        _, kind, role = positional[layer]
        around, short = layers[number][0], str(kind)
        numbers.append(len(rows) if role == "layer" else layer)
        if role == "layer":
            rows.append((f"{around}{SEPARATOR}{short}_{seen[around, short]}", kind, role))
            seen[around, short] += 1
    joined = pairs.join(
        found.with_columns(pl.Series("own", numbers, dtype=pl.Int64)),
        on=["inside", "layer"],
        how="left",
        maintain_order="left",
    )
    return joined.select(pl.coalesce("own", "layer")).to_series().to_numpy(), rows


def _recomputed(
    ops: pl.DataFrame, nesting: Nesting, named: LayerIntervals, enclosing: Ints, by_name: Ints
) -> Flags:
    """Return which operators recompute a forward pass within a node of the backward graph.

    ``enclosing`` is the innermost of the ``named`` intervals around each.

    A checkpoint opens the ranges of its layers within the node that needs them. A range that only
    occurs within nodes is not part of a layer's forward pass.
    """
    start = ops["start"].to_numpy()
    if not len(named.layer) or not len(start):
        return np.zeros(len(start), dtype=np.bool_)
    opened = np.where(enclosing == NONE, NONE, named.nesting.start[enclosing])
    backward = (ops["direction"] == "backward").fill_null(False).to_numpy()
    of_layers = np.isin(by_name, np.unique(by_name[~backward]))
    inside = opened > start[roots(nesting)]
    recomputed: Flags = inside & backward & (by_name != NONE) & of_layers
    return recomputed


_LAST_IN_SCOPE: Final = r"([^/]+?)(?:_\d+)?$"
"""The operator that an instruction implements, without TensorFlow's number."""


def _typed(layers: list[Layer], ops: pl.DataFrame, of_op: Ints, scopes: ScopeLayers) -> list[Layer]:
    """Return ``layers`` with missing types set to the operator with most of the forward time.

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
        .agg(pl.col("duration").sum())
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


def _first(*sources: Ints) -> Ints:
    found, *others = {id(source): source for source in sources}.values()
    for source in others:
        found = np.where(found == NONE, source, found)
    return found


def merge_like(layers: list[Layer]) -> tuple[Ints, Ints]:
    """Return, for each layer, the first of the same path and role, and the first of the same role.

    Layers of the same path and role are one row of the table. The second result distinguishes
    layers by path and other work by role only, as reports do.
    """
    rows: dict[_Row, int] = {}
    roles: dict[_Row, int] = {}
    same_row = [rows.setdefault((path, role), i) for i, (path, _, role) in enumerate(layers)]
    same_role = [
        roles.setdefault((path if role == "layer" else "", role), i)
        for i, (path, _, role) in enumerate(layers)
    ]
    return np.array(same_row, dtype=np.int64), np.array(same_role, dtype=np.int64)


def layer_table(
    layers: list[Layer],
    used: Ints,
    time: Ints,
    lost: Flags,
    backward: Flags,
) -> tuple[pl.DataFrame, Ints, Ints]:
    """Return the ``layers`` table of the layers in use, the row of each entry of ``used``, and
    the row of each of ``layers`` (NONE: not in use).

    ``used`` indexes ``layers`` (NONE: outside all layers). ``time`` is the time of each entry, and
    ``lost`` whether its launch is missing. Layers of one path and role are one row. The enclosing
    modules of a layer get rows too. Rows are in order of first use. Layers that are used in the
    ``backward`` pass only come last, because a compiled program may start a step with the rest of
    the backward pass.
    """
    if not len(used):
        return empty("layers"), used, np.full(len(layers), NONE, dtype=np.int64)
    all_layers = [*layers, OUTSIDE, NO_LAUNCH]
    index = np.where(used == NONE, len(layers) + lost, used)
    first = (
        pl.DataFrame({"index": index, "time": time, "backward": backward})
        .group_by("index")
        .agg(
            pl.col("backward").all(),
            pl.coalesce(pl.col("time").filter(~pl.col("backward")).min(), pl.col("time").min()),
        )
    )
    rows: dict[_Row, _Entry] = {}
    row_of: dict[int, _Row] = {}
    for i, only_backward, time_of_first in first.iter_rows():
        path, kind, role = all_layers[i]
        when = (only_backward and role == "layer", time_of_first)
        row_of[i] = (path, role)
        _enter(rows, (path, role), kind, when)
    _add_ancestors(rows, layers)
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
    for i, row in row_of.items():
        lookup[i] = number[row]
    return frame, lookup[index], lookup[: len(layers)]


_Row = tuple[str, str]
"""(path, role)"""
_When = tuple[bool, int]
"""(of the backward pass, time)"""
_Entry = tuple[str | None, _When]
"""(type, first use)"""


def _enter(rows: dict[_Row, _Entry], row: _Row, kind: str | None, when: _When) -> None:
    known, earlier = rows.get(row, (None, when))
    rows[row] = (known or kind, min(earlier, when))


def _add_ancestors(rows: dict[_Row, _Entry], layers: list[Layer]) -> None:
    types = {path: kind for path, kind, role in layers if role == "layer"}
    reached: set[str] = set()
    # In the order of first use an ancestor is reached first by the layer that is used first: the
    # work does not grow with the depth of every layer.
    for (path, role), (_, when) in sorted(rows.items(), key=lambda item: item[1][1]):
        above = path.rpartition(SEPARATOR)[0]
        while role == "layer" and above in types and above not in reached:
            reached.add(above)
            _enter(rows, (above, role), types[above], when)
            above = above.rpartition(SEPARATOR)[0]
