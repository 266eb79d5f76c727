"""Which activities can be part of a convolution, in runs that belong together."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.enrich.nesting import NONE, Ints, from_rows
from traceana.enrich.refine.model import Context
from traceana.enrich.refine.operators import Operators

PRODUCTS: Final = ("conv", "gemm")
_PARTS: Final = (*PRODUCTS, "layout")
_PLACE: Final = ("rank", "process", "device", "stream")


def candidates(
    activities: pl.DataFrame, names: pl.DataFrame, operators: Operators, context: Context
) -> pl.DataFrame:
    """Return the activities that can be part of a convolution, run by run in order of time.

    A run holds what one convolution operator launched; without such an operator, the neighbours on
    a stream that could be parts of a convolution. Columns: ``row`` (of ``activities``), ``run``,
    ``start``, ``convolution`` (row of the operator; null without), ``scoped`` (a name scope says
    that it is a convolution), ``told_direction`` (which way the scope says), ``direction`` (of the
    activity), and of the name: ``name_id``, ``category``, ``algorithm``, ``named_direction``,
    ``function``, ``precision``, ``phase`` and ``told_phase``.
    """
    by_name = _names(names, context)
    op = from_rows(activities["op"])
    convolution = _of(operators.convolution_of, op)
    rows = (
        activities.lazy()
        .select("name_id", "kind", "start", "op", "scope", "direction", *_PLACE)
        .with_row_index("row")
        .with_columns(
            pl.Series("convolution", convolution),
            pl.Series("launched", (convolution != NONE) & (convolution == op)),
        )
        .filter(pl.col("kind") != "sync")
        .join(by_name.lazy(), on="name_id", how="left", maintain_order="left")
        .join(
            operators.scopes.lazy().select(
                "scope", pl.col("convolution").alias("scoped"), "told_direction"
            ),
            on="scope",
            how="left",
            maintain_order="left",
        )
        .collect()
    )
    part = pl.col("category").is_in(_PARTS)
    compute = pl.col("kind").is_in(["kernel", "op"])
    owned = rows.filter((pl.col("convolution") != NONE) & (pl.col("launched") | part)).with_columns(
        pl.col("convolution").alias("run")
    )
    others = rows.filter((pl.col("convolution") == NONE) & compute)
    chosen = [owned, _neighbours(others, part, len(operators.of_op))]
    columns = [
        *by_name.columns,
        *("row", "run", "start", "convolution", "scoped", "told_direction", "direction"),
    ]
    return (
        pl.concat(
            [frame.select(columns) for frame in chosen if frame.height] or [owned.select(columns)]
        )
        .sort("run", "start", "row")
        .with_columns(pl.when(pl.col("convolution") != NONE).then("convolution"))
    )


def _neighbours(rows: pl.DataFrame, part: pl.Expr, first_run: int) -> pl.DataFrame:
    """Return the runs of possible parts among ``rows``, which no convolution operator launched."""
    possible = (part | pl.col("told_phase")).fill_null(False)
    certain = (pl.col("category") == "conv") | pl.col("scoped").fill_null(False)
    if not rows.select(certain.any()).item():
        return rows.clear().with_columns(pl.lit(0, pl.Int64).alias("run"))
    runs = (
        rows.sort(*_PLACE, "start", "row")
        .with_columns(possible.alias("possible"))
        .with_columns(
            (
                pl.struct("possible", "op", "scope", *_PLACE).rle_id().cast(pl.Int64) + first_run
            ).alias("run")
        )
    )
    return _with_complex_products(runs).filter("possible")


def _with_complex_products(runs: pl.DataFrame) -> pl.DataFrame:
    """Return ``runs`` with complex products between transforms of a device in the run before them.

    An FFT convolution computes its tiles on several streams: the product may be alone on its own.
    """
    transform = (pl.col("category") == "conv") & (pl.col("algorithm") == "fft")
    product = (pl.col("category") == "gemm") & pl.col("precision").is_in(["c64", "c128"])
    if not runs.select(product.any()).item():
        return runs
    place = [part for part in _PLACE if part != "stream"]
    near = pl.when(transform | pl.col("told_phase")).then("run")
    # -1 for what is neither: it stands between a product and the transforms of something else.
    seen = pl.when(product).then(None).otherwise(near.fill_null(-1))
    before, behind = seen.forward_fill().over(place), seen.backward_fill().over(place)
    alone = ~(transform.any().over("run"))
    return (
        runs.sort(*place, "start", "row")
        .with_columns(
            pl.when(product & alone & (before >= 0) & (behind >= 0)).then(before).alias("its_run")
        )
        .with_columns(pl.coalesce("its_run", "run").alias("run"))
        .drop("its_run")
    )


def _names(names: pl.DataFrame, context: Context) -> pl.DataFrame:
    text = names["name"]
    phase = pl.coalesce(
        *(
            pl.when(text.str.contains(pattern.name)).then(pl.lit(pattern.phase))
            for pattern in context.phases
        )
    )
    category = names["category"]
    return names.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"),
        "category",
        "algorithm",
        pl.col("direction").alias("named_direction"),
        "function",
        "precision",
        phase.alias("phase"),
    ).with_columns(
        pl.col("phase").is_not_null().alias("told_phase"),
        pl.coalesce(
            pl.when(category.is_in(["memcpy", "memset"])).then(pl.lit("before")),
            pl.when(category == "layout").then(pl.lit("layout")),
            "phase",
            pl.when(category.is_in(PRODUCTS)).then(pl.lit("main")),
            pl.lit("after"),
        ).alias("phase"),
    )


def _of(values: Ints, rows: Ints) -> Ints:
    if not len(values):
        return rows * 0 + NONE
    found: Ints = values[rows]
    found[rows == NONE] = NONE
    return found
