"""What the rules on copies between host and device share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Found, Value
from traceana.analyze.transfers.links import HOST_DIRECTIONS
from traceana.analyze.transfers.table import SMALL_BYTES

if TYPE_CHECKING:
    from traceana.advise.figures import Figures
    from traceana.analyze.transfers import By

LARGE: Final = 1 << 20
"""From this many bytes on the link decides, and no longer the call."""

NOT_SMALL: Final = (pl.col("mean_bytes") >= SMALL_BYTES).fill_null(value=True)
"""Of small copies the call is what costs: they have a rule of their own."""

_EVIDENCE: Final = (
    *("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns"),
)


def host_copies(figures: Figures, chosen: pl.Expr, by: By = "direction") -> pl.DataFrame:
    """Return those rows of the copies over the host's link that are ``chosen``."""
    return figures.transfers(by).filter(pl.col("direction").is_in(HOST_DIRECTIONS) & chosen)


def with_saving(rows: pl.DataFrame, reached: pl.Expr) -> pl.DataFrame:
    """Return ``rows`` with ``saving_ns``, most first.

    It is the exposed time that they would not take at their full rate, of which they reached the
    part ``reached``.
    """
    saving = (pl.col("exposed_ns") * (1 - reached)).cast(pl.Int64).alias("saving_ns")
    return rows.with_columns(saving).sort("saving_ns", descending=True, nulls_last=True)


def copied(
    figures: Figures,
    rows: pl.DataFrame,
    told: Sequence[str],
    shown: Sequence[str],
    *,
    saving: str = "exposed_ns",
    **more: Value,
) -> Found | None:
    """Return the finding on the copies ``rows``, if the sum of their ``saving`` is worth a word.

    Figures: ``count`` of all, the columns ``told`` of the row that saves most, ``exposed_ns`` of
    all (a unit) and ``more``, which may replace them. The evidence ends with the columns ``shown``.
    """
    total = int(rows[saving].sum())
    if not figures.worth(total):
        return None
    first = rows.row(rows[saving].arg_max() or 0, named=True)
    return Found(
        total,
        {
            "count": int(rows["count"].sum()),
            **{name: first[name] for name in told},
            "exposed_ns": figures.each(int(rows["exposed_ns"].sum())),
            **more,
        },
        rows.select(*_EVIDENCE, *shown),
    )


def large_rates(figures: Figures) -> pl.DataFrame:
    """Return ``direction`` and ``large_bytes_per_s``, of copies of :data:`LARGE` bytes and more."""
    return (
        figures.transfers("size")
        .filter((pl.col("size") >= LARGE) & (pl.col("time_ns") > 0))
        .group_by("direction")
        .agg((pl.col("bytes").sum() * 1e9 / pl.col("time_ns").sum()).alias("large_bytes_per_s"))
    )
