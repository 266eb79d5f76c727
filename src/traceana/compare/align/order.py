"""The order of a run's layers: the manifest's, and that of execution for what it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.work import work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceana.trace import Trace

_PRODUCTS: Final = ("conv", "gemm", "attention", "rnn")
"""Categories of the work that is what a layer is for."""


def execution_order(
    trace: Trace, label_of: Mapping[int, str], positions: Mapping[str, int]
) -> dict[str, int]:
    """Return the place of each layer that did work; ``label_of`` maps rows of ``layers`` to names.

    A layer stands where half of the time of its forward work begins within the step, by the median
    of the steps: what a scheduler runs ahead (casts, random numbers) or behind (moving averages)
    is short. Of a layer with convolutions or products these count alone: turning a weight around,
    which needs no image, may take longer. ``positions`` are those of a manifest and go before; a
    layer that it does not have stands behind the one it ran behind.
    """
    names = pl.DataFrame(
        {"layer": list(label_of), "label": list(label_of.values())},
        schema={"layer": pl.UInt32, "label": pl.String},
    )
    begins = trace.steps.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("step"), pl.col("start").alias("of_step")
    )
    products = trace.names.with_row_index("name_id").filter(
        pl.col("category").cast(pl.String).is_in(_PRODUCTS)
    )["name_id"]
    rows = (
        work(trace)
        .select("layer", "step", "direction", "start", "duration", "name_id")
        .join(names, on="layer", how="inner", maintain_order="left")
        .join(begins, on="step", how="left", maintain_order="left")
        .with_columns(
            (pl.col("start") - pl.col("of_step").fill_null(0)).alias("at"),
            (pl.col("direction") == "backward").fill_null(False).alias("back"),
            pl.col("name_id").is_in(products.implode()).alias("product"),
        )
        .filter(~pl.col("back") | pl.col("back").all().over("label"))
        .filter(pl.col("product") | ~pl.col("product").any().over("label"))
    )
    whole = pl.col("duration").sum().over("label", "step")
    ordered = (
        rows.sort("at", "duration")
        .filter(pl.col("duration").cum_sum().over("label", "step") * 2 >= whole)
        .unique(["label", "step"], keep="first", maintain_order=True)
        .group_by("label")
        .agg(pl.col("at").median())
        .sort("at", "label")["label"]
        .to_list()
    )
    if not positions:
        return {label: place for place, label in enumerate(ordered)}
    place: dict[str, tuple[int, int]] = {}
    last = -1
    for ran, label in enumerate(ordered):
        last = positions.get(label, last)
        place[label] = (last, -1 if label in positions else ran)
    return {label: at for at, label in enumerate(sorted(place, key=lambda one: place[one]))}
