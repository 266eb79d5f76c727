"""Algorithm search (cuDNN's, XLA's, TensorFlow's) inside the steps that are timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule
from traceana.analyze.classes import SEARCH

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    search = figures.breakdown.filter(pl.col("category") == SEARCH)
    total = int(search["time_ns"].sum())
    if not figures.worth(total):
        return None
    tried = (
        figures.convolutions.filter(pl.col("tried") > 0)
        .group_by("layer", "operator", "direction")
        .agg(
            pl.col("algorithm").unique().sort().str.join(", ").alias("algorithms"),
            pl.col("tried", "tried_ns").sum(),
        )
        .sort("tried_ns", "layer", descending=[True, False])
    )
    rest = total - int(tried["tried_ns"].sum())
    others = pl.DataFrame({"operator": ["(other kernels of the search)"], "tried_ns": [rest]})
    evidence = pl.concat([tried, others], how="diagonal") if rest else tried
    return Found(
        total,
        {
            "calls": int(search["calls"].sum()),
            "time_ns": figures.each(total),
            "share": total / figures.work_ns,
        },
        evidence,
    )


RULE: Final = Rule(
    id="algorithm_search",
    title="algorithm search inside the timed steps",
    finds=_finds,
    kind="estimate",
    says="Algorithm search in the timed steps: {calls} kernels, {time_ns}, {share} of the work.",
    estimate="the time of the search: the kernels of autotuners and their trials, and of each call "
    "that runs three algorithms or more all but the last.",
    doubt="It happens once a shape: in longer runs it is spread over more steps.",
    change=Change(
        pytorch="start to measure after the first steps (schedule(wait=…, warmup=…)), and keep "
        "input shapes fixed: cudnn.benchmark searches anew for each new shape",
        tensorflow="leave the first steps out, and keep shapes fixed (drop_remainder=True)",
        jax="compile ahead (jit(...).lower().compile()) and measure after; keep shapes fixed",
    ),
)
