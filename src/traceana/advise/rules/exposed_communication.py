"""Collectives beside which nothing is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu:
        return None
    rows = figures.devices.filter(pl.col("collective_ns") > 0)
    exposed, whole = (int(rows[c].sum()) for c in ("collective_exposed_ns", "collective_ns"))
    waiting = figures.idle_ns("collective")
    if not figures.worth(exposed + waiting):
        return None
    return Found(
        exposed + waiting,
        {
            "time_ns": figures.each(whole),
            "exposed_ns": figures.each(exposed),
            "idle_ns": figures.each(waiting) if waiting else None,
            "share": (exposed + waiting) / figures.window_ns,
        },
        rows.select(
            *("rank", "device", "span_ns", "busy_ns", "collective_ns", "collective_exposed_ns")
        ),
    )


RULE: Final = Rule(
    id="exposed_communication",
    title="communication that no computing hides",
    finds=_finds,
    kind="at most",
    says=(
        "{exposed_ns} of {time_ns} of collectives run with no other kernel beside them[; another "
        "{idle_ns} the device is idle for one]."
    ),
    estimate=(
        "the time of collectives beside which no other kernel runs, and the idle time whose cause "
        "is a collective: gradients sent while the backward pass goes on cost neither."
    ),
    doubt=(
        "A collective also lasts while it waits for the slowest rank: compare the ranks before the "
        "network is blamed."
    ),
    change=Change(
        pytorch="DistributedDataParallel in place of a gather at the end; smaller bucket_cap_mb, "
        "gradient_as_bucket_view=True; no_sync() for accumulated steps; FSDP with prefetch",
        tensorflow="tf.distribute with gradients packed (experimental_hints); NCCL for all-reduce",
        jax="--xla_gpu_enable_latency_hiding_scheduler=true; shard so that less is gathered",
    ),
)
