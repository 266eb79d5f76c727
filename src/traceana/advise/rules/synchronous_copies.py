"""Copies that the host or the device waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.copying import host_copies
from traceana.advise.model import Change, Found, Rule
from traceana.advise.waiting import waits

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu:
        return None
    rows = host_copies(figures, pl.col("synchronous") > 0, by="call")
    exposed = int(rows["exposed_ns"].sum())
    waited = figures.idle_ns("copy")
    found = waits(
        figures,
        "copy",
        more=exposed,
        idle_ns=figures.each(waited) if waited else None,
        exposed_ns=figures.each(exposed) if exposed else None,
        copies_count=int(rows["synchronous"].sum()),
    )
    if found is None or rows.is_empty():
        return found
    return replace(
        found,
        evidence=rows.select(
            *("call", "direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns"),
            *("exposed_ns", "bytes_per_s", "synchronous"),
        ),
    )


RULE: Final = Rule(
    id="synchronous_copies",
    title="copies that the host waits for, and the device then for the host",
    finds=_finds,
    kind="at most",
    says=(
        "Copies are waited for[: the device is idle for {idle_ns} behind them][, mostly of "
        "{culprit}][; {copies_count} of calls that wait take {exposed_ns} that no kernel hides]."
    ),
    estimate=(
        "the idle time whose cause is a copy, and the exposed time of copies by calls that wait "
        "for them."
    ),
    doubt="What is computed from the copied value has to wait for it, however it is copied.",
    change=Change(
        pytorch="pinned memory and .to(device, non_blocking=True); results back to the host on a "
        "stream of their own, an iteration later",
        tensorflow="prefetch to the device; fetch results every N steps",
        jax="jax.device_put ahead of the step; copy_to_host_async() for results",
    ),
)
