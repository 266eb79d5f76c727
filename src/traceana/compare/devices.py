"""The devices that a run used, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace


def devices(trace: Trace) -> str:
    """Return the names of the devices that worked, with their numbers: ``2 x Tesla V100``."""
    if trace.on_cpu:
        return "CPU"
    used = work(trace).select("rank", "device").drop_nulls("device").unique()
    known = trace.devices.with_columns(pl.col("device").cast(pl.Int32))
    names = used.join(known, on=["rank", "device"], how="left", nulls_equal=True)
    counted = names.group_by(pl.col("name").fill_null("GPU of unknown name")).len().sort("name")
    return ", ".join(f"{n} x {name}" if n > 1 else str(name) for name, n in counted.iter_rows())
