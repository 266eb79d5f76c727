"""Many small copies over the host's link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.copying import copied, host_copies, large_rates, with_saving
from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    rows = host_copies(figures, pl.col("small"))
    if rows.is_empty():
        return None
    rows = rows.join(large_rates(figures), on="direction", how="left").with_columns(
        pl.coalesce("large_bytes_per_s", "peak_bytes_per_s").alias("large_bytes_per_s")
    )
    needed = (pl.col("bytes_per_s") / pl.col("large_bytes_per_s")).clip(0, 1).fill_null(0)
    return copied(
        figures,
        with_saving(rows, needed),
        ("mean_bytes", "direction", "bytes_per_s", "large_bytes_per_s"),
        ("bytes_per_s", "large_bytes_per_s", "waits", "saving_ns"),
        saving="saving_ns",
        mean_bytes=int(rows["bytes"].sum()) // int(rows["count"].sum()),
    )


RULE: Final = Rule(
    id="small_copies",
    title="many small copies between host and device",
    finds=_finds,
    kind="estimate",
    says=(
        "{count} copies of {mean_bytes} on average; {direction} at {bytes_per_s}[ where large "
        "copies reach {large_bytes_per_s}]; {exposed_ns} no kernel hides."
    ),
    estimate=(
        "exposed time x (1 - throughput / throughput of a large copy): of this trace's copies of "
        "1 MiB and more in the same direction, else the peak of the link; without either all of it."
    ),
    doubt="The host's cost of each call comes on top, and shows as idle time of the device.",
    change=Change(
        pytorch="gather what is copied (collate on the host, one .to(device)); keep scalars on the "
        "device (no .item(), .cpu() or print of losses every step)",
        tensorflow="keep operations on one device (tf.debugging.set_log_device_placement), batch "
        "the input before it is copied, fetch metrics every N steps",
        jax="device_put one pytree of stacked arrays; do not pull scalars (float(loss)) each step",
    ),
)
