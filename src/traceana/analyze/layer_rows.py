"""The work of a trace by layer, class and pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.flop_coverage import counted, incomplete
from traceana.analyze.measured import measured_sums
from traceana.enrich.keys import SOURCE, classified, described
from traceana.timeline.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace

PASSES: Final = pl.Enum(["forward", "dgrad", "wgrad", "backward", "optimizer"])
"""``dgrad`` and ``wgrad`` are of convolutions and products; ``backward`` is the rest."""

DIRECTIONS: Final = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns")
"""Columns of :func:`by_direction`."""


def by_direction() -> list[pl.Expr]:
    """Return the sums of ``time_ns`` by direction (:data:`DIRECTIONS`), which add up to its sum.

    ``other_ns`` is of work with unknown direction. Where there is such work, a direction
    without any time is null: the work may be of that direction.
    """
    time = pl.col("time_ns")
    of = {
        name: time.filter(pl.col("direction") == name.removesuffix("_ns")).sum()
        for name in DIRECTIONS[:-1]
    }
    other = time.filter(pl.col("direction").is_null()).sum()
    return [
        *(
            pl.when((value > 0) | (other == 0)).then(value).alias(name)
            for name, value in of.items()
        ),
        other.alias(DIRECTIONS[-1]),
    ]


def located(trace: Trace, reason: pl.Series | None = None) -> pl.DataFrame:
    """Return the work by ``layer_row``, ``direction``, class, precision and tensor cores.

    ``reason`` is the reason why each row of ``work(trace)`` has no FLOP count
    (:func:`traceana.analyze.flop_coverage.coverage`). Columns: ``direction`` (forward, backward,
    optimizer or null), ``pass`` (of :data:`PASSES`, or null), ``category``, ``part``,
    ``precision``, ``tensor_core``, ``calls``, ``time_ns``, ``counted_ns`` (of counted work),
    ``incomplete`` (whether some of it has no count) and those of
    :func:`traceana.analyze.measured.measured_sums`.
    """
    keys = (*SOURCE, "layer", "direction")
    why = pl.col("reason")
    by_source = (
        work(trace, *keys, "duration")
        .with_columns(pl.lit(None, pl.String).alias("reason") if reason is None else reason)
        # A sum of a column takes a fraction of the time of a filtered sum in each group.
        .with_columns(
            pl.when(counted(why)).then("duration").otherwise(0).alias("counted_ns"),
            incomplete(why).fill_null(False).alias("incomplete"),
        )
        .group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration").sum().alias("time_ns"),
            pl.col("counted_ns").sum(),
            pl.col("incomplete").any(),
        )
        .join(measured_sums(trace, *keys), on=keys, how="left", nulls_equal=True)
        .with_columns(pl.col("direction").cast(pl.String))
    )
    of_class = described(by_source.select(SOURCE), trace)
    gradient = of_class["direction"].is_in(["dgrad", "wgrad"]) & of_class["category"].is_in(
        ["conv", "gemm"]
    )
    return (
        classified(by_source, trace)
        .with_columns(
            of_class["precision"],
            of_class["tensor_core"],
            pl.when(gradient)
            .then(of_class["direction"])
            .otherwise("direction")
            .cast(PASSES)
            .alias("pass"),
        )
        .rename({"layer": "layer_row"})
    )
