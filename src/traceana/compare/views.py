"""The work of two runs by layer, class, algorithm or kernel: what is one row."""

from __future__ import annotations

from typing import Final, Literal, get_args

import polars as pl

from traceana.compare.align import Alignment, Side
from traceana.compare.rows import IDLE, REMAINDER, series, whole
from traceana.compare.samples import Sample
from traceana.compare.verdict import Criteria

By = Literal["layer", "class", "algorithm", "kernel"]
VIEWS: Final[tuple[By, ...]] = get_args(By)

_KEYS: Final[dict[By, tuple[str, ...]]] = {
    "class": ("category", "part"),
    "algorithm": ("category", "algorithm", "pass"),
    "kernel": ("name", "category", "part"),
}


def view(a: Sample, b: Sample, by: By, pairs: pl.DataFrame, criteria: Criteria) -> pl.DataFrame:
    """Return all work of two runs, most difference first; the rows add up to the step.

    ``pairs`` is that of :func:`layer_rows`. By layer the columns are ``a`` and ``b`` (names),
    ``role``, ``type_a``, ``type_b``, ``confidence``, ``how``, ``flops_a``, ``flops_b``; by class
    ``category`` and ``part``; by algorithm ``category`` and, of convolutions, ``algorithm`` and
    ``pass``; by kernel ``name``, ``category`` and ``part``. Then those of
    :data:`traceana.compare.rows.SCHEMA`. The rows of idle time and of the remainder are called so
    in the first column.
    """
    if by == "layer":
        rows, place_a, place_b = _by_layer(a, b, pairs)
    else:
        rows, place_a, place_b = _by_keys(a, b, by)
    count = rows.height
    figures = whole(a, b, series(a, place_a, count), series(b, place_b, count), criteria)
    first = rows.columns[0]
    rest = pl.DataFrame({first: [IDLE, REMAINDER]})
    if by == "layer":
        rest = rest.with_columns(pl.col("a").alias("b"), pl.lit("unattributed").alias("role"))
    named = pl.concat([rows, rest], how="diagonal")
    names = [column for column in named.columns if named.schema[column] == pl.String]
    return (
        named.hstack(figures)
        .with_columns(pl.col("delta_ns").abs().alias("_size"))
        .sort("_size", *names, descending=[True, *(False for _ in names)], nulls_last=True)
        .drop("_size")
    )


def layer_rows(
    side_a: Side, side_b: Side, alignment: Alignment, a: Sample, b: Sample
) -> pl.DataFrame:
    """Return one row a pair of layers, a layer without partner, and a role: columns of the view.

    FLOPs are per step. Roles (optimizer, data …) are paired by their names.
    """
    partner = {pair.a: pair for pair in alignment.pairs}
    paired_b = {pair.b for pair in alignment.pairs}
    rows: list[dict[str, object]] = []
    for place, layer in enumerate(side_a.layers):
        pair = partner.get(place)
        other = None if pair is None else side_b.layers[pair.b]
        confidence = alignment.alone_a[place] if pair is None else pair.confidence
        rows.append(
            {
                "a": layer.label,
                "b": None if other is None else other.label,
                "role": "layer",
                "type_a": layer.type,
                "type_b": None if other is None else other.type,
                "confidence": confidence,
                "how": None if pair is None else pair.how,
                "flops_a": _step_flops(layer.flops, side_a),
                "flops_b": None if other is None else _step_flops(other.flops, side_b),
            }
        )
    for place, layer in enumerate(side_b.layers):
        if place not in paired_b:
            rows.append(
                {
                    "b": layer.label,
                    "role": "layer",
                    "type_b": layer.type,
                    "confidence": alignment.alone_b[place],
                    "flops_b": _step_flops(layer.flops, side_b),
                }
            )
    roles = [
        set(cells.filter(pl.col("role") != "layer").select("layer", "role").iter_rows())
        for cells in (a.cells, b.cells)
    ]
    for label, role in sorted(roles[0] | roles[1]):
        in_a, in_b = ((label, role) in side for side in roles)
        rows.append({"a": label if in_a else None, "b": label if in_b else None, "role": role})
    return pl.DataFrame(
        rows,
        schema={
            "a": pl.String,
            "b": pl.String,
            "role": pl.String,
            "type_a": pl.String,
            "type_b": pl.String,
            "confidence": pl.Float64,
            "how": pl.String,
            "flops_a": pl.Float64,
            "flops_b": pl.Float64,
        },
    )


def pair_of(cells: pl.DataFrame, pairs: pl.DataFrame, side: Literal["a", "b"]) -> pl.Series:
    """Return for each cell the row of ``pairs`` that its layer or role is in."""
    numbered = pairs.with_row_index("pair").select("pair", pl.col(side).alias("layer"), "role")
    is_layer = (pl.col("role") == "layer").alias("_layer")
    known = numbered.with_columns(is_layer).filter(pl.col("layer").is_not_null())
    joined = cells.select("layer", is_layer).join(
        known.select("pair", "layer", "_layer"),
        on=["layer", "_layer"],
        how="left",
        maintain_order="left",
    )
    return joined["pair"]


def _by_layer(
    a: Sample, b: Sample, pairs: pl.DataFrame
) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    return pairs, pair_of(a.cells, pairs, "a"), pair_of(b.cells, pairs, "b")


def _by_keys(a: Sample, b: Sample, by: By) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    keys = _KEYS[by]
    cells = [_keyed(sample.cells).select(keys) for sample in (a, b)]
    rows = pl.concat(cells).unique().sort(keys, nulls_last=True)
    numbered = rows.with_row_index("row")
    places = [
        one.join(numbered, on=keys, how="left", nulls_equal=True, maintain_order="left")["row"]
        for one in cells
    ]
    return rows, places[0], places[1]


def _keyed(cells: pl.DataFrame) -> pl.DataFrame:
    conv = pl.col("category") == "conv"
    return cells.with_columns(
        pl.when(conv).then("part").alias("algorithm"),
        pl.when(conv).then(pl.col("pass").cast(pl.String)).alias("pass"),
    )


def _step_flops(flops: float | None, side: Side) -> float | None:
    return None if flops is None else flops * (side.batch or 1)
