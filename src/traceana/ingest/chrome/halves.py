"""Begin and end events paired: the spans of programs that write no complete ones."""

from __future__ import annotations

import polars as pl


def spans(halves: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of begin and end events: ``halves`` with ``duration`` in place of ``ends``.

    ``halves`` has ``name``, ``start``, ``ends`` and the columns that tell a thread, as ``pid`` and
    ``tid`` (:data:`traceana.ingest.chrome.decode.HALVES`), in the order of the file. On a thread
    whose ends have names an end closes the latest begin of its name; else they nest like brackets,
    and an end closes the begin of its depth. Names matter where clocks are coarse: of two spans
    that begin in one microsecond CNTK and MXNet write the inner one first.
    """
    thread = [column for column in halves.columns if column not in ("name", "start", "ends")]
    named = (pl.col("ends").not_() | pl.col("name").is_not_null()).all().over(thread)
    alike = [*thread, "_alike"]
    step = pl.when("ends").then(-1).otherwise(1)
    depth = (
        halves.with_columns(pl.when(named).then("name").alias("_alike"))
        .sort("start", maintain_order=True)
        .with_columns(step.cum_sum().over(alike).alias("open"))
        .with_columns((pl.col("open") + pl.col("ends").cast(pl.Int64)).alias("depth"))
    )
    group = [*alike, "depth"]
    return (
        depth.with_columns(
            pl.col("ends").shift(-1).over(group).alias("closed"),
            (pl.col("start").shift(-1).over(group) - pl.col("start")).alias("duration"),
        )
        .filter(~pl.col("ends") & pl.col("closed").fill_null(False))
        .select(*thread, "name", "start", "duration")
    )
