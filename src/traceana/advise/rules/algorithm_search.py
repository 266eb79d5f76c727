"""cuDNN's search for algorithms inside the steps that are timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    rows = figures.convolutions.filter(pl.col("tried") > 0)
    total = int(rows["tried_ns"].sum())
    if not figures.worth(total):
        return None
    evidence = (
        rows.group_by("layer", "operator", "direction")
        .agg(
            pl.col("algorithm").unique().sort().str.join(", ").alias("algorithms"),
            pl.col("tried", "tried_ns").sum(),
        )
        .sort("tried_ns", "layer", descending=[True, False])
    )
    return Found(
        total,
        {
            "count": int(rows["tried"].sum()),
            "calls": evidence.height,
            "time_ns": figures.each(total),
            "share": total / figures.work_ns,
        },
        evidence,
    )


RULE: Final = Rule(
    id="algorithm_search",
    title="convolution algorithms tried out inside the timed steps",
    finds=_finds,
    kind="estimate",
    says=(
        "cuDNN tries algorithms in the timed steps: {count} convolutions ({time_ns}, {share} of "
        "the work) were computed again by another right after."
    ),
    estimate="the time of all but the last algorithm of each call that ran three or more.",
    doubt="It happens once a shape: in longer runs it is spread over more steps.",
    change=Change(
        pytorch="start to measure after the first steps (schedule(wait=…, warmup=…)), and keep "
        "input shapes fixed: cudnn.benchmark searches anew for each new shape",
        tensorflow="leave the first steps out, and keep shapes fixed (drop_remainder=True)",
        jax="compile ahead (jit(...).lower().compile()) and measure after; keep shapes fixed",
    ),
)
