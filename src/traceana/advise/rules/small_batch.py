"""Kernels of fewer blocks than the device has multiprocessors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_LONG_NS: Final = 5_000
_PART: Final = 0.05
"""Less of the busy time than this is left unused by the tails of any network."""


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu:
        return None
    # A collective takes few blocks on purpose; what lasts microseconds is a matter of launches.
    rows = figures.occupancy.filter(
        (pl.col("unused_ns") > 0)
        & (pl.col("category") != "collective")
        & (pl.col("short_ns") >= _LONG_NS * pl.col("short_calls"))
    )
    if rows.is_empty():
        return None
    unused = int(rows["unused_ns"].sum())
    # Beside each other kernels can fill what one leaves.
    together = min(figures.busy_ns / figures.work_ns, 1.0) if figures.work_ns else 0.0
    total = int(unused * together)
    if not figures.worth(total) or total < _PART * figures.busy_ns:
        return None
    short = int(rows["short_ns"].sum())
    return Found(
        total,
        {
            "calls": int(rows["short_calls"].sum()),
            "time_ns": figures.each(short),
            "share": short / figures.work_ns,
            "multiprocessors": int(rows["multiprocessors"].to_numpy().max()),
            "unused_share": unused / short,
        },
        rows.select(
            *("name", "category", "calls", "time_ns", "blocks", "multiprocessors"),
            *("short_calls", "short_ns", "unused_ns"),
        ),
    )


RULE: Final = Rule(
    id="small_batch",
    title="a batch too small for the device: fewer blocks than multiprocessors",
    finds=_finds,
    kind="at most",
    says=(
        "{calls} kernels ({time_ns}, {share} of the work) have fewer blocks than the device has "
        "multiprocessors ({multiprocessors}): {unused_share} of these did nothing meanwhile."
    ),
    estimate=(
        "time x (1 - blocks / multiprocessors) of these kernels, x the part of the work that ran "
        "alone: what a batch that fills the device would take less for as many images. Kernels of "
        "less than 5 µs on average are left out."
    ),
    doubt=(
        "The time of a step does not fall with a larger batch, that of an image does; measure the "
        "time per image at twice the batch."
    ),
    change=Change(
        pytorch="a larger batch (with torch.amp it fits sooner); torch.compile to join small "
        "kernels; several streams or processes (MPS) where the batch must stay",
        tensorflow="a larger batch; jit_compile=True to join small kernels",
        jax="a larger batch, or jax.vmap over more examples; the whole step under jax.jit",
    ),
)
