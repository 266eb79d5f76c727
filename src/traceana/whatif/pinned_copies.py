"""Factors of copies between host and device from and to pinned instead of pageable memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceana.analyze.copies import HOST_DIRECTIONS, copies, link_peaks
from traceana.errors import NoSuchSelectionError
from traceana.settings import LARGE_COPY_BYTES, SLOW_COPY
from traceana.whatif.factors import Factors

if TYPE_CHECKING:
    from traceana.enrich.nesting import Flags
    from traceana.trace import Trace


def from_pinned_memory(trace: Trace, chosen: Flags) -> Factors:
    """Return the factors of the ``chosen`` copies of pageable memory if it is pinned.

    Their bandwidth is that of the large copies of pinned memory in the same direction, from the
    lower to the upper quartile; without such copies from ``slow_copy`` of the link's peak to all of
    it. A copy takes at least as long as the shortest of the same direction, and not longer than it
    did. Raises :class:`~traceana.errors.NoSuchSelectionError` where there are none, or neither
    bandwidth is known.
    """
    at = np.flatnonzero((trace.activities["kind"] == "memcpy").to_numpy())
    keys = ["rank", "device", "direction"]
    frame = copies(trace).select(
        *keys, "host_memory", "bytes", "duration", pl.Series("chosen", chosen[at]), at=at
    )
    pageable = frame.filter(
        "chosen", pl.col("host_memory") == "pageable", pl.col("direction").is_in(HOST_DIRECTIONS)
    )
    if pageable.is_empty():
        raise NoSuchSelectionError("no copies from or to pageable memory in the trace")
    rate = pl.col("bytes") * 1e9 / pl.col("duration").clip(1)
    seen = (
        frame.filter(pl.col("host_memory") == "pinned", pl.col("bytes") >= LARGE_COPY_BYTES)
        .group_by("direction")
        .agg(
            rate.quantile(0.25, "linear").alias("low"), rate.quantile(0.75, "linear").alias("high")
        )
    )
    peak = pl.col("peak_bytes_per_s").cast(pl.Float64)
    shortest = frame.group_by("direction").agg(pl.col("duration").min().alias("shortest"))
    rows = (
        pageable.join(seen, on="direction", how="left")
        .join(shortest, on="direction", how="left")
        .join(
            link_peaks(trace.devices).select(*keys, "peak_bytes_per_s"),
            on=keys,
            how="left",
            nulls_equal=True,
        )
        .with_columns(pl.coalesce("high", peak), pl.coalesce("low", peak * SLOW_COPY))
        .filter(pl.col("low").is_not_null(), pl.col("bytes").is_not_null())
    )
    if rows.is_empty():
        raise NoSuchSelectionError(
            "no large copies of pinned memory in the trace, and the peak of the link is not known"
        )
    least, most = (
        (pl.max_horizontal(pl.col("bytes") * 1e9 / pl.col(name), "shortest") / pl.col("duration"))
        .clip(0, 1)
        .fill_nan(1)
        .alias(name)
        for name in ("high", "low")
    )
    found = rows.select("at", least, most)
    return Factors.of_rows(
        trace, found["at"].to_numpy(), found["high"].to_numpy(), found["low"].to_numpy()
    )
