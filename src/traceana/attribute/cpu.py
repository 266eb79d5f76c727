"""A trace without device work: its leaf operators are what ran."""

from __future__ import annotations

import polars as pl

from traceana.trace.schema import CPU_DEVICE, conform

DEVICE_WORK = ("kernel", "memcpy", "memset")


def leaf_activities(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (activities, names) made of the operators that enclose no other.

    Their own ``op`` column points at the operator; ``stream`` is its thread.
    """
    parents = ops["parent"].drop_nulls().unique()
    leaves = ops.with_row_index("op").filter(~pl.col("op").is_in(parents.implode()))
    names = leaves.select(pl.col("name").unique(maintain_order=True)).with_row_index("name_id")
    activities = leaves.join(names, on="name", maintain_order="left").select(
        "name_id",
        pl.lit("op").alias("kind"),
        "start",
        "duration",
        "process",
        pl.lit(CPU_DEVICE).alias("device"),
        pl.col("thread").alias("stream"),
        "external",
        "op",
    )
    return (
        conform("activities", activities),
        names.select(pl.col("name").cast(pl.String)),
    )
