"""Large copies that stay far below the peak of their link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.copying import LARGE
from traceana.advise.model import Change, Found, Rule
from traceana.analyze.transfers.links import HOST_DIRECTIONS

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_SLOW: Final = 0.5


def _finds(figures: Figures) -> Found | None:
    rows = figures.transfers().filter(
        pl.col("direction").is_in(HOST_DIRECTIONS)
        & (pl.col("host_memory") != "pageable")
        & (pl.col("mean_bytes") >= LARGE)
        & (pl.col("peak_share") < _SLOW)
    )
    rows = rows.with_columns(
        (pl.col("exposed_ns") * (1 - pl.col("peak_share"))).cast(pl.Int64).alias("saving_ns")
    ).sort("saving_ns", descending=True, nulls_last=True)
    total = int(rows["saving_ns"].sum())
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
            "peak_share": first["peak_share"],
            "link": first["link"],
            "exposed_ns": figures.each(int(rows["exposed_ns"].sum())),
        },
        rows.select(
            *("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns"),
            *("bytes_per_s", "link", "peak_bytes_per_s", "peak_share", "saving_ns"),
        ),
    )


RULE: Final = Rule(
    id="slow_copies",
    title="large copies at less than half of the link's peak",
    finds=_finds,
    kind="at most",
    says=(
        "{count} copies of {mean_bytes} on average; {direction} at {bytes_per_s}, {peak_share} of "
        "the peak of {link}. {exposed_ns} no kernel hides."
    ),
    estimate="exposed time x (1 - throughput / peak of the link, one way).",
    doubt=(
        "The machine may give the slot fewer lanes or an older generation, and several devices may "
        "share one: nvidia-smi -q shows the link in use."
    ),
    change=Change(
        pytorch="pinned buffers, one process a device bound to its socket (numactl), and copies on "
        "a stream of their own",
        tensorflow="bind each process to its device's socket, and prefetch to the device",
        jax="bind each process to its device's socket, and copy the next batch ahead",
    ),
)
