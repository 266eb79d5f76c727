"""One row a direction, kind of host memory and what the copies are told apart by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.intervals import Busy
from traceana.analyze.steps import available_ns, measured_steps, step_windows
from traceana.analyze.transfers.askers import By, asker
from traceana.analyze.transfers.copies import ASYNCHRONOUS, STAGED, SYNCHRONOUS, WAITS, copies
from traceana.analyze.transfers.exposed import computing, exposed
from traceana.analyze.transfers.links import peaks
from traceana.analyze.transfers.notes import notes
from traceana.result import Result, sums, with_share

if TYPE_CHECKING:
    from traceana.trace import Trace

SMALL_BYTES: Final = 64 * 1024
"""Copies of fewer bytes on average are small: what they cost is hardly the bytes."""

MANY: Final = 100
"""Fewer small copies are not worth a word."""

COLUMNS: Final = (
    *("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "share", "exposed_ns"),
    *("bytes_per_s", "median_bytes_per_s", "link", "peak_bytes_per_s", "peak_share"),
    *("waits", "synchronous", "staged", "asynchronous"),
    *("step_count", "step_bytes", "step_ns", "step_share", "small"),
)
_KEYS: Final = ("direction", "host_memory")


def transfers(trace: Trace, by: By = "direction") -> Result:
    """Return one row a direction and kind of host memory, and what ``by`` tells apart.

    Columns:

    ``operator``, ``layer``, ``range``, ``call``, ``step`` or ``size``
        As ``by`` has it: :func:`traceana.analyze.transfers.askers.asker`.
    ``direction``, ``host_memory``
        As of :func:`traceana.analyze.transfers.copies.copies`.
    ``count``, ``bytes``, ``mean_bytes`` (rounded down), ``time_ns``, ``share``
        Number, sizes, summed durations and their part of all copies' time. Sizes are null when the
        format does not tell that of every copy of the row.
    ``exposed_ns``
        Time in which a copy of the row ran and no kernel ran on its device, of whatever step or
        stream: :func:`traceana.analyze.transfers.exposed.exposed`. The total counts copies that
        overlap once, and may be less than the sum of the rows. Null where no device is known.
    ``bytes_per_s``, ``median_bytes_per_s``
        All bytes over the summed time; the median of the copies' own throughputs, those that last
        0 ns left out.
    ``link``, ``peak_bytes_per_s``, ``peak_share``
        What the copies go over, its peak one way (:mod:`traceana.analyze.transfers.links`), and
        ``bytes_per_s`` over it. Null where unknown, or not the same on all devices of the row.
    ``waits``
        Whether the host waits for the copies in the calls that asked for them: ``yes``, ``no``,
        ``maybe`` (pageable memory in an asynchronous call) or ``mixed``; of the known calls.
    ``synchronous``, ``staged``, ``asynchronous``
        How many copies are of each kind; what ``count`` has besides them is not known.
    ``step_count``, ``step_bytes``, ``step_ns``, ``step_share``
        Means over the measured steps of what they launched (bytes and time rounded down), and the
        part of the steps' wall time, times the devices they used, in which a copy of the row ran
        (:func:`traceana.analyze.steps.step_windows`): at most 1. By step, of the row's own step.
    ``small``
        Whether they are a hundred copies or more, of fewer than 64 KiB on average.

    Most time first; steps and sizes in their order.
    """
    each = copies(trace)
    told = asker(trace, each, by)
    keys: tuple[str, ...] = _KEYS
    if told is not None:
        each, keys = each.with_columns(told), (by, *_KEYS)
    known = peaks(trace.devices)
    each = each.join(known, on=["rank", "device", "direction"], how="left", nulls_equal=True)
    kernels = computing(trace.whole.activities)
    frame = (
        each.group_by(keys)
        .agg(_figures(measured_steps(trace).rows))
        .join(exposed(each, kernels, keys), on=keys, how="left", nulls_equal=True)
    )
    frame = _with_step_share(trace, _per_step(trace, with_share(_rates(frame)), by), each, keys)
    frame = _ordered(frame, by)
    frame = frame.select(*keys[:-2], *COLUMNS).with_columns(pl.col(pl.Categorical).cast(pl.String))
    return Result(frame, _totals(frame, each, kernels), notes(trace, each, frame))


def _figures(measured: list[int]) -> list[pl.Expr]:
    duration, size, waits = pl.col("duration"), pl.col("bytes"), pl.col("waits")
    in_steps = pl.col("step_row").is_in(measured)
    own = pl.when(duration > 0).then(size * 1e9 / duration)
    return [
        pl.len().cast(pl.Int64).alias("count"),
        _all_or_null(size).alias("bytes"),
        duration.sum().alias("time_ns"),
        own.median().alias("median_bytes_per_s"),
        *(_one_or_null(pl.col(column)) for column in ("link", "peak_bytes_per_s")),
        *((waits == kind).sum().cast(pl.Int64).alias(kind) for kind in WAITS),
        in_steps.sum().cast(pl.Int64).alias("step_count"),
        _all_or_null(size.filter(in_steps)).alias("step_bytes"),
        duration.filter(in_steps).sum().alias("step_ns"),
    ]


def _rates(frame: pl.DataFrame) -> pl.DataFrame:
    count, time_ns = pl.col("count"), pl.col("time_ns")
    known = pl.sum_horizontal(WAITS)
    return (
        frame.with_columns(
            (pl.col("bytes") // count).alias("mean_bytes"),
            pl.when(time_ns > 0).then(pl.col("bytes") * 1e9 / time_ns).alias("bytes_per_s"),
            pl.when(known == 0)
            .then(None)
            .when(known == pl.col(SYNCHRONOUS))
            .then(pl.lit("yes"))
            .when(known == pl.col(STAGED))
            .then(pl.lit("maybe"))
            .when(known == pl.col(ASYNCHRONOUS))
            .then(pl.lit("no"))
            .otherwise(pl.lit("mixed"))
            .alias("waits"),
        )
        .with_columns(
            (pl.col("bytes_per_s") / pl.col("peak_bytes_per_s")).alias("peak_share"),
            ((count >= MANY) & (pl.col("mean_bytes") < SMALL_BYTES)).alias("small"),
        )
        .with_columns(pl.col("small").fill_null(value=False))
    )


def _per_step(trace: Trace, frame: pl.DataFrame, by: By) -> pl.DataFrame:
    rows = measured_steps(trace).rows
    time = pl.DataFrame({"step": trace.steps["number"], "available_ns": available_ns(trace)})
    count, size, time_ns = (pl.col(f"step_{what}") for what in ("count", "bytes", "ns"))
    if by == "step":
        in_step = pl.col("step").is_not_null()
        own = time.group_by("step").agg(pl.col("available_ns").sum())
        steps = 1
        frame = frame.join(own, on="step", how="left", nulls_equal=True).with_columns(
            pl.when(in_step).then("count").alias("step_count"),
            pl.when(in_step).then("bytes").alias("step_bytes"),
            pl.when(in_step).then("time_ns").alias("step_ns"),
        )
    else:
        steps = len(rows)
        of_all = int(time["available_ns"].gather(rows).sum()) if rows else None
        frame = frame.with_columns(pl.lit(of_all, pl.Int64).alias("available_ns"))
    means = pl.when(pl.lit(steps > 0))
    return frame.with_columns(
        means.then(count / steps).alias("step_count"),
        means.then(size // steps).alias("step_bytes"),
        means.then(time_ns // steps).alias("step_ns"),
    )


def _with_step_share(
    trace: Trace, frame: pl.DataFrame, each: pl.DataFrame, keys: tuple[str, ...]
) -> pl.DataFrame:
    """Return ``frame`` with ``step_share``: what of the steps' windows a copy of the row ran in."""
    rows = measured_steps(trace).rows
    windows = step_windows(trace)
    own = "step" in keys
    found = []
    for copied in each.partition_by(keys, maintain_order=True):
        of = windows.filter(pl.col("row").is_in([*copied["step_row"].unique()] if own else rows))
        ran = int(Busy.of(copied).within(of).sum())
        found.append(copied.select(keys).head(1).with_columns(pl.lit(ran).alias("ran_ns")))
    if not found:
        return frame.with_columns(pl.lit(None, pl.Float64).alias("step_share"))
    available = pl.col("available_ns")
    return frame.join(pl.concat(found), on=keys, how="left", nulls_equal=True).with_columns(
        pl.when(available > 0).then(pl.col("ran_ns") / available).alias("step_share")
    )


def _ordered(frame: pl.DataFrame, by: By) -> pl.DataFrame:
    last = ["direction", "host_memory"]
    if by == "step":
        return frame.sort("step", *last, nulls_last=True)
    if by == "size":
        return frame.sort(*last, "size", nulls_last=True)
    names = [] if by == "direction" else [pl.col(by).cast(pl.String)]
    descending = [True, *[False] * (len(names) + 2)]
    return frame.sort("time_ns", *names, *last, descending=descending, nulls_last=True)


def _totals(frame: pl.DataFrame, each: pl.DataFrame, kernels: Busy) -> dict[str, int]:
    known = ["bytes"] if frame.height and not frame["bytes"].null_count() else []
    together = exposed(each, kernels, ())["exposed_ns"].sum()
    return {**sums(frame, "count", *known, "time_ns"), "exposed_ns": int(together)}


def _all_or_null(column: pl.Expr) -> pl.Expr:
    # A sum over some of the copies would read as the sum over all.
    return pl.when(column.is_not_null().all()).then(column.sum())


def _one_or_null(column: pl.Expr) -> pl.Expr:
    return pl.when(column.n_unique() == 1).then(column.first())
