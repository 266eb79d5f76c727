"""The time of a trace as a tree: layers inside layers, and in each its passes and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.flop_coverage import NO_ARITHMETIC, PRODUCTS
from traceana.analyze.layer_rows import By, layer_keys, located, with_layer_keys
from traceana.analyze.manifest_pairing import with_names_of
from traceana.enrich.layers.intervals import SEPARATOR

if TYPE_CHECKING:
    from traceana.model import Manifest
    from traceana.trace import Trace

SMALLEST: Final = 50_000
"""Nodes below this part of the whole are one node of their parent, if there are many nodes."""

MOST_NODES: Final = 20_000

_NODE: Final = "\x1f"
"""Separates the parts of a node's key; no path of a layer contains it as a part of its own."""


def layer_tree(trace: Trace) -> pl.DataFrame:
    """Return one row per node, parents before children, siblings in order of first execution.

    The root is all work; below it are the layers by the parts of their paths, and the roles outside
    layers; in each layer its own work, a node per pass and category. Columns: ``parent`` (row
    number, null for the root), ``label``, ``path``, ``category`` (that of most of its time),
    ``calls``, ``time_ns`` (with its children). The children of a node add up to its time. With more
    than :data:`MOST_NODES` nodes, small ones are merged into one child of their parent, which its
    label says. Empty without work.
    """
    return work_tree(with_layer_keys(located(trace), layer_keys(trace.layers, "layer", None)))


def layer_classes(
    trace: Trace,
    *,
    by: By = "layer",
    depth: int | None = None,
    direction: bool = False,
    model: Manifest | None = None,
) -> pl.DataFrame:
    """Return the class that computes of each layer: ``layer`` and ``category``.

    It is the class with most time among those with most FLOPs (:data:`PRODUCTS`), else among those
    that compute, else among all. Layers have the names, and are grouped, as in
    :func:`traceana.analyze.layers.layers`; with ``direction`` there is a row per pass.
    """
    trace = with_names_of(trace, model)
    work = with_layer_keys(located(trace), layer_keys(trace.layers, by, depth))
    keys = ["layer", *(["direction"] if direction else [])]
    category = pl.col("category")
    rank = (
        pl.when(category.is_in(PRODUCTS))
        .then(0)
        .when(category.is_in((*NO_ARITHMETIC, "indexing")))
        .then(2)
        .otherwise(1)
    )
    of_layers = work.filter(pl.col("role") == "layer").with_columns(
        pl.col("pass").alias("direction")
    )
    return _largest(of_layers.filter(rank == rank.min().over(keys)), *keys)


def work_tree(work: pl.DataFrame) -> pl.DataFrame:
    """Return the tree of ``work``, as :func:`layer_tree`.

    ``work`` has ``layer``, ``role``, ``position`` (the order of layers), ``direction``,
    ``category``, ``calls`` and ``time_ns``.
    """
    rows = _leaves(work)
    if rows.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    nodes = _nodes(rows)
    if nodes.height > MOST_NODES:
        nodes = _without_small(nodes)
    return _numbered(nodes)


_SCHEMA: Final[dict[str, type[pl.DataType]]] = {
    "parent": pl.Int64,
    "label": pl.String,
    "path": pl.String,
    "category": pl.String,
    "calls": pl.Int64,
    "time_ns": pl.Int64,
}


def _leaves(work: pl.DataFrame) -> pl.DataFrame:
    """Return ``work`` by layer, pass and category: its ``parts``, ``order``, calls and time."""
    grouped = (
        work.group_by("layer", "role", "position", "direction", "category")
        .agg(pl.col("calls").sum(), pl.col("time_ns").sum())
        .sort("position", "layer", "direction", "category", nulls_last=True)
        .with_row_index("order")
    )
    inside = pl.when(pl.col("role") == "layer").then(pl.col("layer").str.split(SEPARATOR))
    leaf = pl.concat_str("direction", "category", separator=" ", ignore_nulls=True)
    return grouped.select(
        pl.concat_list(inside.otherwise(pl.concat_list("layer")), leaf).alias("parts"),
        "order",
        "category",
        "calls",
        "time_ns",
    )


def _nodes(leaves: pl.DataFrame) -> pl.DataFrame:
    """Return every node with its ``key`` and that of its parent, ``depth`` and ``order``."""
    every = (
        leaves.with_columns(pl.int_ranges(0, pl.col("parts").list.len() + 1).alias("depth"))
        .explode("depth")
        .with_columns(pl.col("parts").list.head("depth").alias("parts"))
        .with_columns(
            pl.col("parts").list.join(_NODE).alias("key"),
            pl.col("parts").list.last().fill_null("all work").alias("label"),
            _path().alias("path"),
        )
    )
    return (
        every.group_by("key")
        .agg(
            pl.col("label").first(),
            pl.col("path").first(),
            pl.col("depth").first(),
            pl.col("parts").first().list.head(pl.col("depth").first() - 1).alias("above"),
            pl.col("order").min(),
            pl.col("calls").sum(),
            pl.col("time_ns").sum(),
        )
        .with_columns(
            pl.when(pl.col("depth") > 0).then(pl.col("above").list.join(_NODE)).alias("above")
        )
        .join(_largest(every, "key"), on="key")
        .sort("order", "depth")
    )


def _largest(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return the ``category`` with most time of each of ``keys``."""
    return (
        rows.group_by(*keys, "category")
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", "category", descending=[True, False])
        .unique(keys, keep="first", maintain_order=True)
        .select(*keys, "category")
    )


def _path() -> pl.Expr:
    joined = pl.col("parts").list.join(SEPARATOR)
    return pl.when(joined == "").then(pl.lit("all work")).otherwise(joined)


def _without_small(nodes: pl.DataFrame) -> pl.DataFrame:
    """Return ``nodes`` with the small children of a node merged into one."""
    whole = nodes["time_ns"].max()
    assert isinstance(whole, int)
    small = pl.col("time_ns") * SMALLEST < whole
    kept = nodes.filter(~small)
    # Of a small subtree only its top is merged: what is below it is part of its time.
    merged = (
        nodes.filter(small & pl.col("above").is_in(kept["key"].implode()))
        .group_by("above", maintain_order=True)
        .agg(
            pl.len().alias("count"),
            pl.col("depth").first(),
            pl.col("order").max(),
            pl.col("calls").sum(),
            pl.col("time_ns").sum(),
            pl.lit("other").alias("category"),
        )
        .with_columns(pl.format("{} smaller", "count").alias("label"))
        .with_columns(
            pl.concat_str("above", pl.lit(_NODE), "label").alias("key"),
            pl.col("above").str.replace_all(_NODE, SEPARATOR).alias("path"),
        )
    )
    return pl.concat([kept, merged.select(kept.columns)], how="vertical_relaxed").sort(
        "order", "depth"
    )


def _numbered(nodes: pl.DataFrame) -> pl.DataFrame:
    numbers = nodes.select(pl.col("key").alias("above")).with_row_index("parent")
    return (
        nodes.join(numbers, on="above", how="left", maintain_order="left")
        .select(list(_SCHEMA))
        .cast(_SCHEMA)  # type: ignore[arg-type]
    )
