"""Whether a launch counts a batch along its grid, where the name of a product serves both."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

_SPLITS: Final = r"(?i)split_?k|stream_?k"
_QUEUE: Final = ("rank", "process", "device", "stream")


def counts_a_batch(activities: pl.DataFrame, names: pl.DataFrame) -> pl.Series:
    """Return true where the grid of a product has several layers, false where it has one.

    Null for all but products whose name serves both, where the grid is not recorded, and where the
    layers are slices of one sum: the kernel's name says so, or the next product on the stream adds
    them up.
    """
    splits = names["name"].str.contains(_SPLITS)
    product = names["category"] == "gemm"
    undecided = product & names["batched"].is_null() & ~splits
    name = activities["name_id"]
    result = pl.repeat(None, activities.height, dtype=pl.Boolean, eager=True)
    if not undecided.gather(name.unique()).any():
        return result
    rows = np.flatnonzero(product.to_numpy()[name.to_numpy()])
    products = (
        activities.select("name_id", "start", "grid_z", *_QUEUE)[rows]
        .with_columns(
            pl.Series("row", rows),
            splits.gather(name[rows]).alias("splits"),
            undecided.gather(name[rows]).alias("undecided"),
        )
        .sort(*_QUEUE, "start", "row")
        .with_columns(pl.struct(*_QUEUE).rle_id().alias("queue"))
    )
    sliced = pl.col("splits").shift(-1).over("queue").fill_null(False)
    judged = products.select(
        "row",
        pl.when(pl.col("undecided") & ~sliced).then(pl.col("grid_z") > 1).alias("many"),
    )
    return result.scatter(judged["row"], judged["many"])
