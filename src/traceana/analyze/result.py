"""What an analysis gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True, slots=True)
class Result:
    """A frame with the figures that hold for the whole of it.

    ``totals`` maps a column to its sum over all rows, or to what the analysis says it is of all of
    them together, without columns of which nothing is known; ``notes`` are sentences a reader of
    the figures has to know (what is left out, what is not in the file); an empty ``frame`` always
    has a note that says why it is empty.
    """

    frame: pl.DataFrame
    totals: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def with_share(frame: pl.DataFrame, of: str = "time_ns") -> pl.DataFrame:
    """Append ``share``, each row's fraction of the sum of column ``of``; null where that is 0."""
    total = int(frame[of].sum())
    share = pl.col(of) / total if total else pl.lit(None, pl.Float64)
    return frame.with_columns(share.alias("share"))


def ratio(value: pl.Expr, reference: pl.Expr) -> pl.Expr:
    """Return ``value`` over ``reference``, exactly 1 where they are equal.

    polars divides by a column that holds one value by multiplying with its reciprocal, which gives
    0.9999999999999999 for some.
    """
    return pl.when((value == reference) & (reference != 0)).then(1.0).otherwise(value / reference)


def sums(frame: pl.DataFrame, *columns: str) -> dict[str, int]:
    """Return the sum of each of ``columns``, without those of which no row has a value."""
    known = [name for name in columns if frame.is_empty() or frame[name].count()]
    return {column: int(frame[column].sum()) for column in known}
