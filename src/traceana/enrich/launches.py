"""Which call launched an activity: by correlation id, within its process."""

from __future__ import annotations

import polars as pl

from traceana.enrich.cpu import DEVICE_WORK
from traceana.trace.ledger import Ledger


def with_calls(activities: pl.DataFrame, calls: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return ``activities`` with the row of their launching call, and its process where unknown.

    Correlation ids are unique within a process; a format of one process leaves the activities'
    process null. Many activities may share one call (a CUDA graph). Device work without a call in
    the trace is counted in ``ledger`` and kept.
    """
    numbered = (
        calls.lazy()
        .with_row_index("call")
        .filter(pl.col("correlation").is_not_null())
        .select("call", "correlation", pl.col("process").alias("call_process"))
    )
    per_process = activities["process"].null_count() == 0
    keys = ["correlation", "call_process"] if per_process else ["correlation"]
    joined = (
        activities.lazy()
        .drop("call")
        .join(
            numbered.unique(keys, keep="first", maintain_order=True),
            left_on=["correlation", "process"] if per_process else ["correlation"],
            right_on=keys,
            how="left",
            maintain_order="left",
        )
        .collect()
    )
    if not per_process:
        joined = joined.with_columns(pl.coalesce("process", "call_process"))
    work = joined.filter(pl.col("call").is_null() & pl.col("kind").is_in(DEVICE_WORK))
    # Without any call in the trace nothing is missing: the recording left calls out as a whole.
    if calls.height:
        ledger.add(
            "no_launch",
            work.height,
            table="activities",
            kept=True,
            time_ns=int(work["duration"].sum()),
        )
    return joined.select(activities.columns)
