"""Pairs the layers of a trace with those of a manifest, and names them after these.

By name, by type, by order; layers identified by position by order and weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.manifest_names import (
    Evidence,
    Matching,
    Pairing,
    tree_of_manifest,
    tree_of_rows,
)
from traceana.analyze.manifest_order import FUSED, fused_parts, paths_in_order
from traceana.model.manifest import Layer, Manifest
from traceana.trace import per_trace
from traceana.trace.schema import conform

if TYPE_CHECKING:
    from traceana.trace import Trace

_UNIQUE_PATHS: Final = frozenset(("PyTorch", "Flax", "JAX"))
"""Frameworks that do not append numbers to the paths of their layers."""


@per_trace
def paired(trace: Trace, model: Manifest) -> Pairing:
    """Return the unambiguous pairs of rows of ``trace.layers`` and layers of ``model``.

    Layers are paired by name, level by level (:class:`Matching`). Layers of the trace without
    names, numbered by type (``Conv2d_2`` is the third convolution), are paired by type and order
    where model and trace have the same number.
    """
    rows = [
        (row, path, kind)
        for row, path, kind, role in trace.tables.layers.with_row_index("row")
        .select("row", "path", "type", "role")
        .iter_rows()
        if role == "layer"
    ]
    evidence = Evidence.of(trace)
    matching = Matching(evidence, model.network, suffixes=model.framework not in _UNIQUE_PATHS)
    found = matching.best(
        tree_of_rows((path, row) for row, path, _ in rows), tree_of_manifest(model)
    )
    if found.another:
        return found
    found = replace(found, together=_fused_together(rows, model))
    left = [one for one in rows if one[0] not in found.layer_of and one[0] not in found.inside]
    if trace.tables.ops["scope"].is_null().all():
        found.layer_of.update(_by_order(left, _absent(model, found), evidence))
    return found


def with_names_of(trace: Trace, model: Manifest | None) -> Trace:
    """Return ``trace`` with the manifest's names for scopes with suffixes, and for positions.

    Layers inside a layer of the manifest become part of it.
    """
    if model is None or not trace.tables.layers.height:
        return trace
    trace = named_in_order(trace, model)
    found = paired(trace, model)
    if not found.paths and not found.inside:
        return trace
    paths = trace.tables.layers["path"].cast(pl.String).to_list()
    for row, path in found.paths.items():
        paths[row] = path
    into = {row: found.inside.get(row, row) for row in range(trace.tables.layers.height)}
    # Calls of one layer have one path, so that they are one row.
    first: dict[str, int] = {}
    for row, path in enumerate(paths):
        if row in found.layer_of and into[row] == row:
            into[row] = first.setdefault(path, row)
    return in_rows(trace, paths, into)


def named_in_order(trace: Trace, model: Manifest | None) -> Trace:
    """Return ``trace`` with the paths of ``model`` on layers identified by position.

    Layers with one path, such as a shared module called twice, become one row. A layer without a
    match keeps its name.
    """
    paths = {} if model is None else paths_in_order(trace, model)
    return _renamed(trace, paths, model) if model is not None and paths else trace


def in_rows(trace: Trace, paths: Sequence[str], into: Mapping[int, int]) -> Trace:
    """Return ``trace`` with the path of each row of its layers, and each row in the row ``into``,
    which is itself or an earlier one."""
    kept = [row for row in range(trace.tables.layers.height) if into[row] == row]
    number = {row: place for place, row in enumerate(kept)}
    parents = trace.tables.layers["parent"].to_list()
    columns: dict[str, Sequence[object]] = {
        "path": [paths[row] for row in kept],
        "parent": [_above(parents, row, into, number) for row in kept],
    }
    layers = trace.tables.layers[kept].with_columns(
        pl.Series(name, values).cast(trace.tables.layers.schema[name])
        for name, values in columns.items()
    )
    rows = pl.Series([number[into[row]] for row in range(len(paths))], dtype=pl.UInt32)
    return _renumbered(trace, layers, rows)


def _renamed(trace: Trace, paths: dict[int, str], model: Manifest) -> Trace:
    """Return ``trace`` with these paths; layers of one path become one row, the first."""
    types = {layer.path: layer.type for layer in model.layers}
    new = pl.DataFrame(
        {
            "row": list(paths),
            "named": list(paths.values()),
            "kind": [types.get(path) for path in paths.values()],
        },
        schema={"row": pl.UInt32, "named": pl.String, "kind": pl.String},
    )
    named = (
        trace.tables.layers.with_row_index("row")
        .join(new, on="row", how="left", maintain_order="left")
        .with_columns(
            pl.coalesce("named", "path").alias("path"),
            # A generated kernel computes other layers too where it has the name of one.
            pl.when(pl.col("named").is_not_null() & pl.col("type").str.starts_with(FUSED))
            .then(pl.lit(FUSED))
            .otherwise(pl.coalesce("kind", "type"))
            .alias("type"),
        )
    )
    kept = named.unique(["path", "role"], keep="first", maintain_order=True).with_row_index("to")
    to = named.join(kept.select("path", "role", "to"), on=["path", "role"], maintain_order="left")
    number = to["to"]
    above = kept.select(pl.col("path").alias("above"), "role", pl.col("to").alias("parent_row"))
    layers = (
        kept.with_columns(pl.col("path").str.replace(r"\.?[^.]*$", "").alias("above"))
        .join(above, on=["above", "role"], how="left", maintain_order="left")
        .with_columns(
            pl.col("parent_row").alias("parent"), pl.int_range(pl.len()).alias("position")
        )
        .select(trace.tables.layers.columns)
    )
    return _renumbered(trace, conform("layers", layers), number)


def _renumbered(trace: Trace, layers: pl.DataFrame, rows: pl.Series) -> Trace:
    """Return ``trace`` with other ``layers``; ``rows`` has the row of each earlier one in them."""
    referring = {
        name: table.with_columns(rows.gather(table["layer"]).alias("layer"))
        for name, table in (
            ("activities", trace.tables.activities),
            ("ops", trace.tables.ops),
            ("graph_calls", trace.tables.graph_calls),
        )
    }
    return trace.with_tables(layers=layers, **referring)


def _above(
    parents: list[int | None], row: int, into: Mapping[int, int], number: dict[int, int]
) -> int | None:
    parent = parents[row]
    return None if parent is None or into[parent] == row else number[into[parent]]


_Row = tuple[int, str, str | None]
"""(row, path, type)"""


def _absent(model: Manifest, found: Pairing) -> list[Layer]:
    present = {layer.position for layer in found.layer_of.values()}
    return [layer for layer in model.layers if layer.position not in present]


def _by_order(rows: list[_Row], layers: list[Layer], evidence: Evidence) -> dict[int, Layer]:
    """Return the pairs by order within a type with the same number in trace and manifest."""
    found: dict[int, Layer] = {}
    mine, theirs = defaultdict(list), defaultdict(list)
    for row, _, kind in rows:
        mine[_word(kind)].append(row)
    for layer in layers:
        theirs[_word(layer.type)].append(layer)
    for word, own in mine.items():
        pairs = list(zip(own, theirs[word], strict=False))
        alike = not any(evidence.against_row(row, layer) for row, layer in pairs)
        if word and alike and len(own) == len(theirs[word]):
            found |= dict(pairs)
    return found


def _word(kind: str | None) -> str:
    return (kind or "").lower().replace("_", "")


def _fused_together(rows: Sequence[_Row], model: Manifest) -> frozenset[str]:
    """Return the paths of the layers that share a row, by :func:`together`."""
    known = {layer.path for layer in model.layers}
    return frozenset(part for _, path, kind in rows for part in fused_parts(path, kind, known))
