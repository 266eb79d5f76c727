"""Puts the sources of layers in their order and numbers the rows of the ``layers`` table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceana.attribute.layers.annotations import annotation_places
from traceana.attribute.layers.modules import module_places
from traceana.attribute.layers.places import SEPARATOR, Layer, Places
from traceana.attribute.layers.positions import position_layers
from traceana.attribute.layers.roles import collective_layers, role_places
from traceana.attribute.nesting import NONE, Ints, Nesting, inherit
from traceana.trace.schema import empty

UNATTRIBUTED: Layer = ("(unattributed)", None, "unattributed")


@dataclass(frozen=True, slots=True)
class LayerResolution:
    """The layers found, and how to ask for one.

    ``of_op`` indexes ``layers`` for every operator, NONE for none.
    """

    layers: list[Layer]
    of_op: Ints
    _places: list[tuple[Places, int]]

    def at(self, key: Ints, time: Ints) -> Ints:
        """Return the layer in which each thread was at a moment, by ranges alone."""
        found = np.full(len(time), NONE, dtype=np.int64)
        for places, base in self._places:
            found = _first(found, _shifted(places.at(key, time), base))
        return found


def resolve(
    ops: pl.DataFrame,
    op_key: Ints,
    nesting: Nesting,
    op_step: Ints,
    forward: Ints,
    ranges: pl.DataFrame,
    range_key: Ints,
) -> LayerResolution:
    """Find the layer of every operator.

    The first source that answers decides: a role (optimizer, collective), the module being
    called on the thread, for backward operators the layer of their forward operator, the program's
    own named ranges, the position in the step. ``nesting`` is of the operators, ``forward`` of
    :func:`traceana.attribute.backward.forward_of`.
    """
    roles = role_places(ranges, range_key)
    modules = module_places(ranges, range_key)
    communication, collectives = collective_layers(ops, nesting)
    named = annotation_places(ranges, range_key, ops, op_key)
    bases = np.cumsum(
        [0, len(roles.layers), len(modules.layers), len(named.layers), len(collectives)]
    )
    start = ops["start"].to_numpy()

    by_role = _shifted(roles.at(op_key, start), int(bases[0]))
    by_module = _shifted(modules.at(op_key, start), int(bases[1]))
    by_name = _shifted(named.at(op_key, start), int(bases[2]))
    position, positions = position_layers(ops, _roots(nesting), op_step)
    own = _first(_first(by_role, _shifted(communication, int(bases[3]))), by_module)
    fallback = _first(by_name, _shifted(position, int(bases[4])))
    of_forward_op = _first(own, fallback)
    of_forward = np.where(forward == NONE, NONE, of_forward_op[forward]) if len(forward) else own
    of_op = _first(_first(own, of_forward), fallback)
    return LayerResolution(
        [*roles.layers, *modules.layers, *named.layers, *collectives, *positions],
        of_op,
        [(roles, int(bases[0])), (modules, int(bases[1])), (named, int(bases[2]))],
    )


def _roots(nesting: Nesting) -> Ints:
    """Return the outermost operator around each, itself where there is none."""
    rows = np.arange(len(nesting.parent))
    return inherit(nesting, np.where(nesting.parent == NONE, rows, NONE))


def _first(first: Ints, second: Ints) -> Ints:
    return np.where(first == NONE, second, first)


def _shifted(layer: Ints, base: int) -> Ints:
    return np.where(layer == NONE, NONE, layer + base)


def layer_table(layers: list[Layer], used: Ints, time: Ints) -> tuple[pl.DataFrame, Ints]:
    """Return the ``layers`` table of the layers in use, and the row of each entry of ``used``.

    ``used`` indexes ``layers`` (NONE: unattributed), ``time`` says when. Layers of one path and
    role are one row; the modules around a layer get rows too. Rows are in order of first use.
    """
    if not len(used):
        return empty("layers"), used
    all_layers = [*layers, UNATTRIBUTED]
    index = np.where(used == NONE, len(layers), used)
    first = pl.DataFrame({"index": index, "time": time}).group_by("index").agg(pl.col("time").min())
    rows: dict[_Row, _Entry] = {}
    row_of: dict[int, _Row] = {}
    for i, when in first.iter_rows():
        path, kind, role = all_layers[i]
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
    return frame, lookup[index]


_Row = tuple[str, str]
"""(path, role)"""
_Entry = tuple[str | None, int]
"""(type, first use)"""


def _enter(rows: dict[_Row, _Entry], row: _Row, kind: str | None, when: int) -> None:
    known, earlier = rows.get(row, (None, when))
    rows[row] = (known or kind, min(earlier, when))


def _add_ancestors(rows: dict[_Row, _Entry], layers: list[Layer]) -> None:
    types = {path: kind for path, kind, role in layers if role == "layer"}
    for (path, role), (_, when) in list(rows.items()):
        above = path.rpartition(SEPARATOR)[0]
        while role == "layer" and above in types:
            _enter(rows, (above, role), types[above], when)
            above = above.rpartition(SEPARATOR)[0]
