"""Copies from or to pageable memory of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule
from traceana.analyze.transfers.links import HOST_DIRECTIONS
from traceana.analyze.transfers.table import SMALL_BYTES

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    # Of small copies the call is what costs, whatever the memory.
    rows = figures.transfers().filter(
        pl.col("direction").is_in(HOST_DIRECTIONS)
        & (pl.col("host_memory") == "pageable")
        & (pl.col("mean_bytes") >= SMALL_BYTES).fill_null(value=True)
    )
    total = int(rows["exposed_ns"].sum())
    if not figures.worth(total):
        return None
    first = rows.sort("exposed_ns", descending=True, nulls_last=True).row(0, named=True)
    return Found(
        total,
        {
            "count": int(rows["count"].sum()),
            "bytes": first["bytes"],
            "direction": first["direction"],
            "bytes_per_s": first["bytes_per_s"],
            "peak_share": first["peak_share"],
            "exposed_ns": figures.each(total),
        },
        rows.select(
            *("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns"),
            *("bytes_per_s", "link", "peak_share", "waits"),
        ),
    )


RULE: Final = Rule(
    id="pageable_copies",
    title="copies from or to pageable host memory",
    finds=_finds,
    kind="at most",
    says=(
        "{count} copies of pageable host memory; {direction}[ at {bytes_per_s}][ ({peak_share} of "
        "the link's peak)]. {exposed_ns} no kernel hides."
    ),
    estimate=(
        "all their exposed time: from pinned memory the copy is faster, and runs beside the "
        "kernels of the step before."
    ),
    doubt="Pinning costs the host time itself: pin buffers once, not a batch at a time.",
    change=Change(
        pytorch="DataLoader(pin_memory=True) and batch.to(device, non_blocking=True)",
        tensorflow="tf.data's prefetch_to_device, or dataset.prefetch(AUTOTUNE) at its end",
        jax="put the next batch on the device ahead of the step (flax.jax_utils."
        "prefetch_to_device, or jax.device_put before the step that runs)",
    ),
)
