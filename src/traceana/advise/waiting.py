"""Findings on idle time: which causes, how long, and what the host was in meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from traceana.advise.model import Found, Value

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_MUCH: Final = 0.3
"""What takes less of the time is not worth to be named for all of it."""
_STEP: Final = r"^ProfilerStep"


def waits(
    figures: Figures,
    *causes: str,
    by: Literal["operator", "range"] = "operator",
    lasting: pl.Expr | None = None,
    more: int = 0,
    **told: Value,
) -> Found | None:
    """Return the finding that the devices were idle for ``causes``, if that is worth a word.

    ``lasting`` is a condition on the gaps; ``more`` further time that the same change would save.
    Figures: ``idle_ns`` a unit, ``share`` of the time looked at, ``count`` of the gaps,
    ``culprit`` (what a good part of it was spent in, as ``by`` tells it, else null) and those
    ``told``, which may replace them.
    """
    gaps = figures.idle("gap").filter(pl.col("cause").cast(pl.String).is_in(causes))
    if lasting is not None:
        gaps = gaps.filter(lasting)
    total = int(gaps["time_ns"].sum())
    if not figures.worth(total + more):
        return None
    time = pl.col("time_ns")
    evidence = (
        gaps.group_by("device", "cause", by)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            time.sum(),
            (time.sum() // pl.len()).cast(pl.Int64).alias("mean_ns"),
            time.max().alias("max_ns"),
        )
        .sort("time_ns", by, "device", "cause", descending=[True, False, False, False])
    )
    return Found(
        total + more,
        {
            "idle_ns": figures.each(total),
            "share": total / figures.window_ns,
            "count": gaps.height,
            "culprit": _culprit(evidence, by, total),
            **told,
        },
        evidence,
    )


def _culprit(evidence: pl.DataFrame, by: str, total: int) -> str | None:
    named = evidence.drop_nulls(by).filter(~pl.col(by).str.contains(_STEP))
    most = named.group_by(by).agg(pl.col("time_ns").sum()).sort("time_ns", by, descending=True)
    if most.is_empty() or most["time_ns"].item(0) < _MUCH * total:
        return None
    return str(most[by].item(0))
