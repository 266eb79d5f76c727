"""Copies from or to pageable memory of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.copying import NOT_SMALL, copied, host_copies
from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    return copied(
        figures,
        host_copies(figures, (pl.col("host_memory") == "pageable") & NOT_SMALL),
        ("bytes", "direction", "bytes_per_s", "peak_share"),
        ("bytes_per_s", "link", "peak_share", "waits"),
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
