"""Batches that do not fill the device: by the time per image of others, or by kernels' blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule
from traceana.analyze.classes import SEARCH

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_LONG_NS: Final = 5_000
_PART: Final = 0.05
"""Less of the busy time than this is left unused by the tails of any network."""


def _finds(figures: Figures) -> Found | None:
    measured = figures.batches
    few = _few_blocks(figures)
    if measured is None or not measured.told:
        return few
    # What was measured decides, whatever the blocks of the kernels say.
    row = measured.best
    if row is None:
        return None
    best = measured.frame.row(row, named=True)
    (own,) = measured.frame.filter(pl.col("batch") == measured.own).iter_rows(named=True)
    total = int(figures.window_ns * (1 - best["image_ns"] / own["image_ns"]))
    return Found(
        total,
        {
            **(dict.fromkeys(_FEW) if few is None else few.figures),
            "image_ns": own["image_ns"],
            "batch": own["batch"],
            "larger_image_ns": best["image_ns"],
            "larger_batch": best["batch"],
        },
        measured.frame,
    )


_FEW: Final = ("calls", "time_ns", "share", "multiprocessors", "unused_share")
_FALLS: Final = ("image_ns", "batch", "larger_image_ns", "larger_batch")


def _few_blocks(figures: Figures) -> Found | None:
    """Return what the kernels' blocks tell."""
    if figures.on_cpu:
        return None
    # A collective takes few blocks on purpose; what lasts microseconds is a matter of launches.
    rows = figures.occupancy.filter(
        (pl.col("unused_ns") > 0)
        & ~pl.col("category").is_in(["collective", SEARCH])
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
            **dict.fromkeys(_FALLS),
        },
        rows.select(
            *("name", "category", "calls", "time_ns", "blocks", "multiprocessors"),
            *("short_calls", "short_ns", "unused_ns"),
        ),
    )


RULE: Final = Rule(
    id="small_batch",
    title="a batch too small for the device",
    finds=_finds,
    kind="at most",
    says=(
        "[{calls} kernels ({time_ns}, {share} of the work) have fewer blocks than the device has "
        "multiprocessors ({multiprocessors}): {unused_share} of these did nothing meanwhile. ]"
        "[Time per image falls from {image_ns} at batch {batch} to {larger_image_ns} at batch "
        "{larger_batch} (other runs of the sweep, without profiler).]"
    ),
    estimate=(
        "of a run in a sweep over batch: the steps x (1 - least time per image of a larger batch / "
        "time per image of this one), if that is 5 % or more and the middle halves of the steps of "
        "both do not meet; else nothing is said. Without such runs: "
        "time x (1 - blocks / multiprocessors) of kernels with fewer blocks than multiprocessors, "
        "x the part of the work that ran "
        "alone: what a batch that fills the device would take less for as many images. Kernels of "
        "less than 5 µs on average are left out."
    ),
    doubt=(
        "The time of a step does not fall with a larger batch, that of an image does; where that "
        "was not measured, do: traceana record --sweep batch=…, then advise on this batch's run."
    ),
    change=Change(
        pytorch="a larger batch (with torch.amp it fits sooner); torch.compile to join small "
        "kernels; several streams or processes (MPS) where the batch must stay",
        tensorflow="a larger batch; jit_compile=True to join small kernels",
        jax="a larger batch, or jax.vmap over more examples; the whole step under jax.jit",
    ),
)
