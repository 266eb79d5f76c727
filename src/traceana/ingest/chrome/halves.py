"""Begin and end events paired: the spans of programs that write no complete ones."""

from __future__ import annotations

import polars as pl


def spans(halves: pl.DataFrame) -> pl.DataFrame:
    """Return spans (pid, tid, name, start, duration) of begin and end events.

    Per thread they nest like brackets: an end closes the begin of its depth. ``halves`` has the
    columns of :data:`traceana.ingest.chrome.decode.HALVES`.
    """
    thread = ["pid", "tid"]
    step = pl.when("ends").then(-1).otherwise(1)
    depth = (
        halves.sort("start", maintain_order=True)
        .with_columns(step.cum_sum().over(thread).alias("open"))
        .with_columns((pl.col("open") + pl.col("ends").cast(pl.Int64)).alias("depth"))
    )
    group = [*thread, "depth"]
    return (
        depth.with_columns(
            pl.col("ends").shift(-1).over(group).alias("closed"),
            (pl.col("start").shift(-1).over(group) - pl.col("start")).alias("duration"),
        )
        .filter(~pl.col("ends") & pl.col("closed").fill_null(False))
        .select(*thread, "name", "start", "duration")
    )
