"""Matrix products of one shape, one after the other, that one batched call could compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu:
        return None
    filled = pl.col("blocks") / pl.col("multiprocessors")
    alone = 1 / pl.col("longest")
    part = (1 - pl.max_horizontal(filled, alone)).clip(0, 1).fill_null(0)
    rows = (
        figures.products.filter(pl.col("in_runs") > 0)
        .with_columns(
            (pl.col("in_runs_ns") * part + pl.col("gaps_ns")).cast(pl.Int64).alias("saving_ns")
        )
        .sort("saving_ns", descending=True)
    )
    total = int(rows["saving_ns"].sum())
    if not figures.worth(total):
        return None
    first = rows.row(0, named=True)
    evidence = rows.select(
        *("layer", "operator", "name", "blocks", "multiprocessors", "in_runs", "longest"),
        *("in_runs_ns", "gaps_ns", "saving_ns"),
    )
    return Found(
        total,
        {
            "calls": int(rows["in_runs"].sum()),
            "time_ns": figures.each(int(rows["in_runs_ns"].sum())),
            "count": first["longest"],
            "name": first["name"],
            "layer": first["layer"],
        },
        evidence,
    )


RULE: Final = Rule(
    id="batchable_gemms",
    title="plain matrix products of one shape in a row that could be one batched call",
    finds=_finds,
    kind="at most",
    says=(
        "{calls} products ({time_ns}) follow others of the same kernel, layer and size, up to "
        "{count} in a row: {name} in {layer}."
    ),
    estimate=(
        "of runs of four or more: the gaps between them, and time x (1 - the larger of blocks / "
        "multiprocessors and 1 / products of the run), since batched they fill the device together."
    ),
    doubt="Products of which one needs the other's result cannot be batched.",
    change=Change(
        pytorch="torch.bmm or einsum over stacked operands, torch.vmap; grouped convolution in "
        "place of a loop over images",
        tensorflow="tf.matmul on a stack of operands (BatchMatMul), tf.vectorized_map",
        jax="jax.vmap over the loop, or lax.dot_general with batch dimensions",
    ),
)
