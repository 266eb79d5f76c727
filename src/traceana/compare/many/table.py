"""A table of several runs: one row a run and an item, and the runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from traceana.result import ratio

RUN: Final = "run"
ITEM: Final = "item"
RATIO: Final = "to_first"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a run and an item.

    ``frame`` begins with ``run`` (its label), ``item`` (the number of the item, the same in all
    runs) and the columns ``keys``, which name the item; of an item that a run does not have there
    is no row. ``figures`` are the columns that are shown side by side, the most telling first;
    ``time`` is the one that ``to_first`` compares: each item's sum over that of the first run, null
    where that has none. ``runs`` are the labels in their order.
    """

    frame: pl.DataFrame
    keys: tuple[str, ...]
    figures: tuple[str, ...]
    time: str
    runs: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def pivot(self) -> pl.DataFrame:
        """Return one row an item: ``keys``, then for each run its ``figures``.

        Their columns are called as :meth:`column` says. Numbers of several rows of an item are
        added up, texts joined by commas.
        """
        kinds = self.frame.schema
        by_item = self.frame.group_by(RUN, ITEM, maintain_order=True).agg(
            _together(figure, kinds[figure]) for figure in self.figures
        )
        wide = self.frame.select(ITEM, *self.keys).unique(ITEM, keep="first").sort(ITEM)
        for run in self.runs:
            own = by_item.filter(pl.col(RUN) == run).drop(RUN)
            named = {figure: self.column(run, figure) for figure in self.figures}
            wide = wide.join(own.rename(named), on=ITEM, how="left", maintain_order="left")
        return wide.drop(ITEM)

    @staticmethod
    def column(run: str, figure: str) -> str:
        """Return the name of a column of :meth:`pivot`."""
        return f"{run} {figure}"


def table(
    parts: Sequence[tuple[str, pl.DataFrame]],
    keys: tuple[str, ...],
    figures: tuple[str, ...],
    time: str,
    *,
    ratios: bool,
    last: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Return the table of ``parts``, a frame a run with its label.

    ``keys`` tell the items apart and are columns of all of them; those of most ``time`` in all runs
    come first, those whose first key is among ``last`` at the end. ``to_first`` is appended, and is
    the last of the figures; null without ``ratios``.
    """
    labels = tuple(label for label, _ in parts)
    rows = pl.concat(
        [frame.with_columns(pl.lit(label).alias(RUN)) for label, frame in parts], how="vertical"
    )
    items = (
        rows.group_by(keys)
        .agg(pl.col(time).sum().alias("_most"))
        .sort(
            [pl.col(keys[0]).is_in(list(last)), "_most", *keys],
            descending=[False, True, *(False for _ in keys)],
            nulls_last=True,
        )
        .drop("_most")
        .with_row_index(ITEM)
        .with_columns(pl.col(ITEM).cast(pl.Int64))
    )
    numbered = rows.join(items, on=list(keys), how="left", nulls_equal=True, maintain_order="left")
    return Table(
        with_ratio(numbered, labels, time, ratios=ratios).select(
            RUN, ITEM, *keys, *(c for c in rows.columns if c not in (RUN, *keys)), RATIO
        ),
        keys,
        (*figures, RATIO),
        time,
        labels,
        tuple(notes),
    )


def with_ratio(
    rows: pl.DataFrame, labels: Sequence[str], time: str, *, ratios: bool
) -> pl.DataFrame:
    """Return ``rows`` by run and item with ``to_first`` (see :class:`Table`), null without
    ``ratios``."""
    summed = rows.group_by(RUN, ITEM).agg(pl.col(time).sum().alias("_sum"))
    first = summed.filter(pl.col(RUN) == labels[0]).select(ITEM, pl.col("_sum").alias("_first"))
    known = (pl.col("_first") > 0) & ratios
    to_first = pl.when(known).then(ratio(pl.col("_sum"), pl.col("_first")))
    by_item = summed.join(first, on=ITEM, how="left").select(RUN, ITEM, to_first.alias(RATIO))
    place = {label: at for at, label in enumerate(labels)}
    order = pl.col(RUN).replace_strict(place, return_dtype=pl.Int64)
    return rows.join(by_item, on=[RUN, ITEM], how="left", maintain_order="left").sort(
        order, ITEM, maintain_order=True
    )


def _together(figure: str, kind: pl.DataType) -> pl.Expr:
    column = pl.col(figure)
    if kind == pl.String:
        return column.drop_nulls().unique(maintain_order=True).str.join(", ").replace("", None)
    if figure == RATIO:
        return column.first()
    return pl.when(column.is_not_null().any()).then(column.sum())
