"""Flows that tie a backward operator to its forward one, to the canonical ``links``."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.trace.ledger import Ledger

_KEPT: Final = "fwdbwd"


def links(flow: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Pair the two ends of each forward-backward flow.

    Of every pair the start becomes a row and the end is counted in ``ledger``, as are flows of
    other categories and ends that have no partner.
    """
    kept = flow.filter(pl.col("category").cast(pl.String).str.to_lowercase() == _KEPT)
    start = kept.filter(~pl.col("ends")).unique("id", keep="first", maintain_order=True)
    end = kept.filter("ends").unique("id", keep="first", maintain_order=True)
    pairs = start.join(end, on="id", suffix="_to", maintain_order="left")
    ledger.add("flow", pairs.height, table="links", detail="second ends of the flows in links")
    ledger.add("flow", kept.height - 2 * pairs.height, table="links", detail="without a partner")
    ledger.add("flow", flow.height - kept.height, table="links", detail="of other kinds")
    return pairs.select(
        pl.col("category").alias("kind"),
        pl.col("pid").alias("from_process"),
        pl.col("tid").alias("from_thread"),
        pl.col("time").alias("from_time"),
        pl.col("pid_to").alias("to_process"),
        pl.col("tid_to").alias("to_thread"),
        pl.col("time_to").alias("to_time"),
    )
