"""Which way each segment of a convolution goes: forward, or to the gradient of what."""

from __future__ import annotations

from typing import Final

import polars as pl

_WAYS: Final = ("fprop", "dgrad", "wgrad")
# The last input of aten::convolution_backward: [gradient of input, of weight, of bias].
_MASK: Final = r"\[(True|False), (True|False), (?:True|False)\]\"?\]$"


def with_directions(
    segments: pl.DataFrame, ops: pl.DataFrame, told_direction: pl.Series
) -> pl.DataFrame:
    """Return ``segments`` with ``direction``: fprop, dgrad, wgrad, or null where undecided.

    The operator decides (its name, or the mask of its outputs); where it computes both gradients,
    the kernels' names do; and the rest follows from the order: all of PyTorch's libraries compute
    the gradient of the input first. Where no operator is known only names tell.
    """
    by_op = pl.DataFrame(
        {"told": told_direction, "inputs": ops["inputs"], "way": ops["direction"].cast(pl.String)}
    ).with_row_index("convolution")
    mask = pl.col("inputs").str.extract_groups(_MASK).struct
    needed = segments.select(pl.col("convolution").cast(pl.UInt32)).unique().drop_nulls()
    operators = (
        needed.join(by_op, on="convolution", how="left")
        .with_columns(
            (mask.field(str(i)) == "True").alias(n) for i, n in ((1, "input"), (2, "weight"))
        )
        .select(
            pl.col("convolution").cast(pl.Int64),
            pl.coalesce(
                pl.when(pl.col("told").is_in(_WAYS)).then("told"),
                pl.when(pl.col("told").is_null() & (pl.col("way") == "forward")).then(
                    pl.lit("fprop")
                ),
                pl.when(pl.col("input") & ~pl.col("weight")).then(pl.lit("dgrad")),
                pl.when(pl.col("weight") & ~pl.col("input")).then(pl.lit("wgrad")),
            ).alias("operator_says"),
            (pl.col("told") == "backward").fill_null(False).alias("both"),
        )
    )
    owned = pl.col("convolution").is_not_null()
    told = (
        pl.when("names_wgrad")
        .then(pl.lit("wgrad"))
        .when("names_dgrad")
        .then(pl.lit("dgrad"))
        .when("names_fprop")
        # A backward convolution that runs kernels of the forward one computes the input's gradient.
        .then(pl.when(owned).then(pl.lit("dgrad")).otherwise(pl.lit("fprop")))
    )
    scope_says = pl.coalesce(
        pl.when(pl.col("told_direction").is_in(_WAYS)).then("told_direction"),
        # Where neither says that it is backward: JAX marks what it transposes.
        pl.when(pl.col("activity_direction").fill_null("forward") == "forward").then(
            pl.lit("fprop")
        ),
    )
    run = pl.col("run")
    first = (run != run.shift()).fill_null(True)
    last = (run != run.shift(-1)).fill_null(True)
    behind_wgrad = pl.when(pl.col("told") == "wgrad").then(run).forward_fill() == run
    before_dgrad = pl.when(pl.col("told") == "dgrad").then(run).backward_fill() == run
    by_order = pl.coalesce(
        pl.when(behind_wgrad).then(pl.lit("wgrad")),
        pl.when(before_dgrad).then(pl.lit("dgrad")),
        # Between a gradient of the input and one of the weight nothing is certain.
        pl.when(first & ~last).then(pl.lit("dgrad")),
        pl.when(last & ~first).then(pl.lit("wgrad")),
    )
    return (
        segments.join(operators, on="convolution", how="left", maintain_order="left")
        .with_columns(told.alias("told"))
        .with_columns(
            pl.coalesce(
                "operator_says",
                pl.when("scoped").then(scope_says),
                "told",
                pl.when(owned & pl.col("both").fill_null(False)).then(by_order),
            ).alias("direction")
        )
    )
