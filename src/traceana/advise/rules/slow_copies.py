"""Large copies that stay far below the peak of their link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.copying import LARGE, copied, host_copies, with_saving
from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_SLOW: Final = 0.5


def _finds(figures: Figures) -> Found | None:
    slow = (pl.col("mean_bytes") >= LARGE) & (pl.col("peak_share") < _SLOW)
    rows = host_copies(figures, (pl.col("host_memory") != "pageable") & slow)
    return copied(
        figures,
        with_saving(rows, pl.col("peak_share")),
        ("mean_bytes", "direction", "bytes_per_s", "peak_share", "link"),
        ("bytes_per_s", "link", "peak_bytes_per_s", "peak_share", "saving_ns"),
        saving="saving_ns",
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
