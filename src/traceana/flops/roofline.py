"""The roofline model: what bounds a piece of work, and how near it came to that bound.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009. All are polars expressions of columns:
``flops`` (operations), ``bytes`` (compulsory), ``time_ns``, ``peak`` (operations per second) and
``bandwidth`` (bytes per second). A null among them makes the result null.
"""

from __future__ import annotations

from typing import Final

import polars as pl

BOUNDS: Final = pl.Enum(["compute", "memory"])
_NS: Final = 1e9


def intensity(flops: pl.Expr, bytes_: pl.Expr) -> pl.Expr:
    """Return the arithmetic intensity, operations per byte; null where nothing is moved."""
    return flops / pl.when(bytes_ > 0).then(bytes_)


def ridge(peak: pl.Expr, bandwidth: pl.Expr) -> pl.Expr:
    """Return the intensity from which on arithmetic is the bound, operations per byte."""
    return peak / pl.when(bandwidth > 0).then(bandwidth)


def bound(flops: pl.Expr, bytes_: pl.Expr, peak: pl.Expr, bandwidth: pl.Expr) -> pl.Expr:
    """Return ``compute`` at the ridge and beyond it, ``memory`` below; null without any work."""
    arithmetic, moving = _times(flops, bytes_, peak, bandwidth)
    return (
        pl.when(pl.max_horizontal(arithmetic, moving) <= 0)
        .then(None)
        .when(arithmetic >= moving)
        .then(pl.lit("compute"))
        .when(arithmetic < moving)
        .then(pl.lit("memory"))
        .cast(BOUNDS)
    )


def attainable_rate(flops: pl.Expr, bytes_: pl.Expr, peak: pl.Expr, bandwidth: pl.Expr) -> pl.Expr:
    """Return min(peak, intensity x bandwidth), operations per second; null without any work."""
    shortest = attainable_ns(flops, bytes_, peak, bandwidth)
    return flops * _NS / pl.when(shortest > 0).then(shortest)


def attainable_ns(flops: pl.Expr, bytes_: pl.Expr, peak: pl.Expr, bandwidth: pl.Expr) -> pl.Expr:
    """Return the shortest time, in ns: arithmetic and memory both at their peak, overlapped."""
    arithmetic, moving = _times(flops, bytes_, peak, bandwidth)
    # max_horizontal passes over nulls: one that is not known would make the other the bound.
    known = arithmetic.is_not_null() & moving.is_not_null()
    return pl.when(known).then(pl.max_horizontal(arithmetic, moving)) * _NS


def attainable_percent(
    flops: pl.Expr, bytes_: pl.Expr, time_ns: pl.Expr, peak: pl.Expr, bandwidth: pl.Expr
) -> pl.Expr:
    """Return the percentage of the attainable rate that was reached.

    As the shortest time over the time taken, which is the same and holds for copies too, that
    compute nothing.
    """
    shortest = attainable_ns(flops, bytes_, peak, bandwidth)
    return 100 * shortest / pl.when(time_ns > 0).then(time_ns)


def _times(
    flops: pl.Expr, bytes_: pl.Expr, peak: pl.Expr, bandwidth: pl.Expr
) -> tuple[pl.Expr, pl.Expr]:
    """Return the seconds that arithmetic and memory take at their peaks."""
    return (
        flops / pl.when(peak > 0).then(peak),
        bytes_ / pl.when(bandwidth > 0).then(bandwidth),
    )


def with_roofline(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``intensity``, ``ridge``, ``bound``, ``attainable_flops_per_s`` and
    ``attainable_percent`` to a frame with the columns that the module's text names.
    """
    names = ("flops", "bytes", "time_ns", "peak", "bandwidth")
    flops, bytes_, time_ns, peak, bandwidth = (pl.col(name) for name in names)
    return frame.with_columns(
        intensity(flops, bytes_).alias("intensity"),
        ridge(peak, bandwidth).alias("ridge"),
        bound(flops, bytes_, peak, bandwidth).alias("bound"),
        attainable_rate(flops, bytes_, peak, bandwidth).alias("attainable_flops_per_s"),
        attainable_percent(flops, bytes_, time_ns, peak, bandwidth).alias("attainable_percent"),
    )
