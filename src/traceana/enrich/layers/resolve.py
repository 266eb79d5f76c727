"""The layer of every operator, by the first source that has one, and the ``layers`` table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceana.enrich.layers.from_order import position_layers, short_name
from traceana.enrich.layers.from_ranges import annotation_places, hierarchy_layers, module_places
from traceana.enrich.layers.from_scopes import ScopeLayers
from traceana.enrich.layers.places import SEPARATOR, Layer, Places
from traceana.enrich.layers.roles import collective_layers, optimizer_layers, role_places
from traceana.enrich.nesting import NONE, Flags, Ints, Nesting, inherit, roots
from traceana.trace.schema import empty

OUTSIDE: Layer = ("(outside all layers)", None, "unattributed")
NO_LAUNCH: Layer = ("(launched before capture)", None, "unattributed")
"""Rows for what is on no layer, by the reason."""


@dataclass(frozen=True, slots=True)
class LayerResolution:
    """The layers found, and the layer at a scope, or at a thread and time.

    ``of_op`` indexes ``layers`` for every operator, NONE for none.
    """

    layers: list[Layer]
    of_op: Ints
    _places: list[tuple[Places, int]]
    _scopes: tuple[ScopeLayers, int]

    def of_scope(self, scopes: pl.Series) -> Ints:
        """Return the layer that each name scope names, NONE where it names none."""
        scopes_, base = self._scopes
        found = scopes_.layer_of(scopes)
        return np.where(found == NONE, NONE, found + base)

    def at(self, key: Ints, time: Ints) -> Ints:
        """Return the layer in which each thread was at a moment, by ranges alone."""
        found = np.full(len(time), NONE, dtype=np.int64)
        for places, base in self._places:
            here = places.at(key, time)
            found = _first(found, np.where(here == NONE, NONE, here + base))
        return found


def resolve(
    ops: pl.DataFrame,
    op_key: Ints,
    nesting: Nesting,
    op_step: Ints,
    forward: Ints,
    ranges: pl.DataFrame,
    range_key: Ints,
    scopes: ScopeLayers,
    *,
    compiled: bool,
) -> LayerResolution:
    """Find the layer of every operator.

    The first source that has a layer decides: a role (optimizer, collective), the module being
    called on the thread or named by the operator, the operator's name scope, a named range that a
    checkpoint opened again in the backward pass, for backward operators
    the layer of their forward operator, the operators of an optimizer, the program's own named
    ranges, and the position in the step of what is not backward. Where a framework has name scopes,
    an operator without one has no layer, whatever its position; nor is an instruction of a
    ``compiled`` program. ``nesting`` is of the operators,
    ``forward`` of :func:`traceana.enrich.backward.forward_of`.
    """
    start = ops["start"].to_numpy()
    roles = role_places(ranges, range_key)
    modules = module_places(ranges, range_key)
    named = annotation_places(ranges, range_key, ops, op_key)
    layers: list[Layer] = []
    bases: list[int] = []

    def number(found: Ints, rows: list[Layer]) -> Ints:
        bases.append(len(layers))
        layers.extend(rows)
        return np.where(found == NONE, NONE, found + bases[-1])

    by_role = number(roles.at(op_key, start), roles.layers)
    by_module = number(modules.at(op_key, start), modules.layers)
    by_name = number(named.at(op_key, start), named.layers)
    by_collective = number(*collective_layers(ops, nesting))
    by_hierarchy = number(*hierarchy_layers(ops, nesting))
    by_scope = inherit(nesting, number(scopes.layer_of(ops["scope"]), scopes.layers))
    scope_base = bases[-1]
    again = _computed_again(ops, op_key, nesting, named, by_name)
    by_recomputation = np.where(again, by_name, NONE)
    own = _first(by_role, by_collective, by_module, by_hierarchy, by_scope, by_recomputation)
    by_optimizer = number(*optimizer_layers(ops, nesting, forward, op_step, ranges))
    by_position = np.full(ops.height, NONE, dtype=np.int64)
    if scopes.table.is_empty() and not compiled:
        settled = _first(own, by_optimizer)
        by_position = number(*position_layers(ops, roots(nesting), op_step, settled, forward))

    fallback = _first(by_optimizer, by_name, by_position)
    of_forward = _first(own, fallback)[forward] if len(forward) else own
    of_op = _first(own, np.where(forward == NONE, NONE, of_forward), fallback)
    return LayerResolution(
        _typed(layers, ops, of_op, scopes),
        of_op,
        list(zip((roles, modules, named), bases, strict=False)),
        (scopes, scope_base),
    )


def _computed_again(
    ops: pl.DataFrame, op_key: Ints, nesting: Nesting, named: Places, by_name: Ints
) -> Flags:
    """Return whether an operator runs a forward pass again within a node of the backward graph.

    A checkpoint opens the ranges of its layers within the node that needs them; a range that only
    nodes open is none of a layer's forward pass.
    """
    start = ops["start"].to_numpy()
    around = named.nesting.innermost(op_key, start)
    if not len(named.layer) or not len(start):
        return np.zeros(len(start), dtype=np.bool_)
    opened = np.where(around == NONE, NONE, named.nesting.start[around])
    backward = (ops["direction"] == "backward").fill_null(False).to_numpy()
    of_layers = np.isin(by_name, np.unique(by_name[~backward]))
    inside = opened > start[roots(nesting)]
    again: Flags = inside & backward & (by_name != NONE) & of_layers
    return again


def _typed(layers: list[Layer], ops: pl.DataFrame, of_op: Ints, scopes: ScopeLayers) -> list[Layer]:
    """Give layers that have no type the name of the operator that takes most of their forward.

    The operator that a scope names goes before: XLA names instructions by its own transformations
    (``fusion.3``), and a normalization that TensorFlow writes out is not one of its operators.
    """
    by_scope = scopes.operator_of(ops["scope"])
    heaviest = (
        pl.DataFrame(
            {
                "layer": of_op,
                "name": by_scope.fill_null(short_name(ops["name"].cast(pl.String))),
                "by_scope": by_scope.is_not_null(),
                "duration": ops["duration"],
                "forward": ops["direction"] == "forward",
            }
        )
        .filter((pl.col("layer") != NONE) & pl.col("forward"))
        .group_by("layer", "name", "by_scope")
        .agg(pl.col("duration").sum())
        # Of nested operators the outermost takes most, and of equals any will do, but always one.
        .sort("by_scope", "duration", "name", descending=[True, True, False])
        .unique("layer", keep="first", maintain_order=True)
    )
    types = dict(heaviest.select("layer", "name").iter_rows())
    return [
        (path, kind or (types.get(i) if role == "layer" else None), role)
        for i, (path, kind, role) in enumerate(layers)
    ]


def _first(*sources: Ints) -> Ints:
    found = sources[0]
    for source in sources[1:]:
        found = np.where(found == NONE, source, found)
    return found


def merge_like(layers: list[Layer]) -> tuple[Ints, Ints]:
    """Return for each layer the first of its path and role, and that or the first of its role.

    The former are one row of the table; the latter differ in nothing that a report shows, which
    adds up what is not a layer by its role.
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

    ``used`` indexes ``layers`` (NONE: on none), ``time`` is that of each entry, ``lost`` whether
    its launch is missing. Layers of one path and role are one row; the modules around a layer get
    rows too. Rows are in order of first use. Those used ``backward`` alone come last: a compiled
    program may begin a step with what is left of the backward pass.
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
    for (path, role), (_, when) in list(rows.items()):
        above = path.rpartition(SEPARATOR)[0]
        while role == "layer" and above in types:
            _enter(rows, (above, role), types[above], when)
            above = above.rpartition(SEPARATOR)[0]
