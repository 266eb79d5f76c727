"""Factors of convolutions that take as long as in another recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.convolutions import each_convolution
from traceana.analyze.executed_flops import SHAPE
from traceana.errors import NoSuchSelectionError
from traceana.whatif.factors import Factors

if TYPE_CHECKING:
    from traceana.enrich.nesting import Flags
    from traceana.trace import Trace

_KEY: Final = [*(name for name in SHAPE if name != "element_bytes"), "direction"]


def as_in(trace: Trace, chosen: Flags, path: str) -> Factors:
    """Return the factors of the ``chosen`` convolutions if they take as long as in the trace
    ``path``: from the lower to the upper quartile of those of the same shape and direction there,
    layout changes included.

    Raises :class:`~traceana.errors.NoSuchSelectionError` where no shape is in both, and what
    :func:`traceana.open` raises.
    """
    from traceana.opening import open_trace

    whole = pl.col("time_ns") + pl.col("layout_ns")
    there = (
        each_convolution(open_trace(path))
        .filter(~pl.col("tried"), pl.col("batch").is_not_null())
        .group_by(_KEY)
        .agg(
            whole.quantile(0.25, "linear").alias("least"),
            whole.quantile(0.75, "linear").alias("most"),
        )
    )
    here = (
        each_convolution(trace)
        .filter(~pl.col("tried"), whole > 0)
        .join(there, on=_KEY, how="inner")
        .select("episode", pl.col("least") / whole, pl.col("most") / whole)
    )
    if here.is_empty():
        raise NoSuchSelectionError(f"no convolution has a shape of one in {path}")
    episodes = trace.activities.select("episode").with_row_index("row")
    found = (
        episodes.filter(pl.Series(chosen)).join(here, on="episode", how="inner").drop_nulls("least")
    )
    if found.is_empty():
        raise NoSuchSelectionError(f"no selected convolution has a shape of one in {path}")
    ends = (found[end].to_numpy() for end in ("least", "most"))
    return Factors.of_rows(trace, found["row"].cast(pl.Int64).to_numpy(), *ends)
