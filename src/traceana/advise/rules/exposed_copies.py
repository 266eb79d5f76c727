"""Copies over the host's link that no kernel hides, however fast they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule
from traceana.analyze.transfers.links import HOST_DIRECTIONS
from traceana.analyze.transfers.table import SMALL_BYTES

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    # Pageable memory keeps a copy from running beside kernels, and small copies cost their calls:
    # both have rules of their own.
    rows = figures.transfers().filter(
        pl.col("direction").is_in(HOST_DIRECTIONS)
        & (pl.col("host_memory") != "pageable")
        & (pl.col("mean_bytes") >= SMALL_BYTES).fill_null(value=True)
    )
    rows = rows.sort("exposed_ns", descending=True, nulls_last=True)
    total = int(rows["exposed_ns"].sum())
    if not figures.worth(total):
        return None
    first = rows.row(0, named=True)
    return Found(
        total,
        {
            "count": int(rows["count"].sum()),
            "mean_bytes": first["mean_bytes"],
            "direction": first["direction"],
            "bytes_per_s": first["bytes_per_s"],
            "time_ns": figures.each(int(rows["time_ns"].sum())),
            "exposed_ns": figures.each(total),
            "kernel_ns": figures.each(int(figures.busy["kernel_ns"].sum())),
        },
        rows.select(
            *("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns"),
            *("bytes_per_s", "link", "peak_share", "waits"),
        ),
    )


RULE: Final = Rule(
    id="exposed_copies",
    title="large copies between host and device that no kernel hides",
    finds=_finds,
    kind="at most",
    says=(
        "{exposed_ns} of {time_ns} of copies run with no kernel beside them: {count} copies, "
        "{direction}[ of {mean_bytes} on average][ at {bytes_per_s}]; kernels take {kernel_ns}."
    ),
    estimate=(
        "all their exposed time: what stays on the device is not copied. Copied beside kernels, "
        "they save no more than the kernels take."
    ),
    doubt=(
        "A recording without steps has the first copy of the weights in it, which happens once. "
        "Weights that do not fit the device have to be copied."
    ),
    change=Change(
        pytorch="keep weights and states on the device (no .to(device) of a model or offload in "
        "the step); copy the next batch on a stream of its own while this one computes",
        tensorflow="prefetch_to_device at the end of the input pipeline; keep variables on the "
        "device, not under tf.device('CPU')",
        jax="keep parameters on the device between steps (donate_argnums), and jax.device_put "
        "the next batch before the step that runs",
    ),
)
