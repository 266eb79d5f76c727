"""Measurements of Nsight Compute, nvprof's metrics and rocprof, summed over their activities."""

from __future__ import annotations

from functools import cache
from typing import Final

import polars as pl

from traceana.table import BYTES, COUNT, FLOP_RATE, RATE, SHARE, TIME, Column
from traceana.table import FLOPS as FLOPS_KIND
from traceana.timeline.work import counted
from traceana.trace import Trace, TraceMeta
from traceana.trace.work import labels

KINDS: Final = ("fp64", "fp32", "fp16", "tensor")
FLOPS: Final = tuple(f"{kind}_flops" for kind in KINDS)
_SUMS: Final = (
    *("measured", "ncu_ns", "measured_flops", *FLOPS, "dram_bytes"),
    # Denominators of the rates and the means: the time, or number, of the launches with a value.
    *("flops_over", "dram_over", "tensor_over", "tensor_weighted"),
    *("occupancy_over", "occupancy_weighted", "efficiency_over", "efficiency_weighted"),
)
_MEANS: Final = {
    "occupancy": "achieved_occupancy_percent",
    "efficiency": "sm_efficiency_percent",
}
_COUNTS: Final = (
    *("duration", "dram_bytes", "tensor_ops"),
    *(f"{kind}_{what}" for kind in ("fp64", "fp32", "fp16") for what in ("add", "mul", "fma")),
    *(f"{kind}_flops" for kind in ("fp64", "fp32", "fp16")),
)
"""Columns of counters that add up: those of a mean count for each of its launches."""
COLUMNS: Final = (
    Column(
        "measured",
        COUNT,
        "how many of the calls Nsight Compute, nvprof or rocprof measured; null without "
        "`--counters`, as are the next eleven columns",
    ),
    Column(
        "ncu_ns",
        TIME,
        "their time while they were measured: Nsight Compute's kernels alone, at clocks that it "
        "locks, caches flushed; rocprof's one dispatch at a time",
    ),
    Column(
        "measured_flops",
        FLOPS_KIND,
        "floating-point operations of the measured calls, a multiply-add being two: the sum of the "
        "next four that were measured (`notes` list the others)",
    ),
    Column("fp64_flops", FLOPS_KIND, "of the CUDA cores, double precision"),
    Column("fp32_flops", FLOPS_KIND, "of the CUDA cores, single precision"),
    Column("fp16_flops", FLOPS_KIND, "of the CUDA cores, half precision"),
    Column("tensor_flops", FLOPS_KIND, "of the tensor cores, all types"),
    Column(
        "measured_flops_per_s",
        FLOP_RATE,
        "`measured_flops` over the time that the timeline gives the same calls",
        title="measured FLOP/s",
    ),
    Column(
        "dram_bytes",
        BYTES,
        "bytes read from and written to the device's memory by the measured calls",
    ),
    Column(
        "dram_bytes_per_s",
        RATE,
        "the same over the time that the timeline gives the same calls",
        title="dram bandwidth",
    ),
    Column(
        "tensor_active",
        SHARE,
        "part of the cycles in which the tensor cores worked; mean weighted by duration",
    ),
    Column(
        "occupancy",
        SHARE,
        "nvprof's `achieved_occupancy` (rocprof: `OccupancyPercent`), mean over the measured "
        "launches",
    ),
    Column(
        "sm_efficiency",
        SHARE,
        "nvprof's `sm_efficiency`, mean over the measured launches",
        title="SM efficiency",
    ),
)
"""Columns of a result with measurements; null: not measured."""


_FLOPS: Final = {
    # per thread instruction: add, multiply, fused multiply-add; an fp16 instruction has two lanes
    "fp64": (1, 1, 2),
    "fp32": (1, 1, 2),
    "fp16": (2, 2, 4),
}


def measured_sums(trace: Trace, *keys: str) -> pl.DataFrame:
    """Return one row per distinct combination of the columns ``keys`` of measured activities.

    Its other columns can be summed (:func:`added`); :func:`with_measured_rates` computes
    :data:`COLUMNS`.
    """
    if trace.tables.counters.is_empty():
        return _unmeasured(keys)
    return _sums(trace, keys)


@cache
def _unmeasured(keys: tuple[str, ...]) -> pl.DataFrame:
    """Return the sums of a trace without counters: no rows."""
    return _sums(Trace(TraceMeta(source="", format="")), keys)


def _sums(trace: Trace, keys: tuple[str, ...]) -> pl.DataFrame:
    joined = without_moves(trace).filter(pl.col("activity").is_not_null())
    activities = labels(trace.tables, *keys, "duration")[joined["activity"]]
    launches = figures(joined, over=activities["duration"])
    return (
        pl.concat([activities.drop("duration"), launches], how="horizontal")
        .group_by(keys)
        .agg(*added())
    )


_HALF: Final = ("fp16", "bf16")


def without_moves(trace: Trace) -> pl.DataFrame:
    """Return the counters of ``trace``, without half-precision multiply-adds that only move.

    Compilers load constants by HFMA2 instructions, which are counted as arithmetic: launches of
    kernels without half precision, with such multiply-adds and no half-precision additions or
    multiplications.
    """
    counters = trace.tables.counters
    half = _of_kernel(trace, "precision").is_in(_HALF).fill_null(value=False)
    alone = (pl.col("fp16_add") == 0) & (pl.col("fp16_mul") == 0) & ~half
    return counters.with_columns(
        pl.when(alone & (pl.col("fp16_fma") > 0)).then(0).otherwise("fp16_fma").alias("fp16_fma")
    )


def _of_kernel(trace: Trace, column: str) -> pl.Series:
    """Return a column of ``names`` for the kernel of each row of the counters."""
    counters, names = trace.tables.counters, trace.tables.names
    of_name = counters.select("name").join(
        names.select("name", column).unique("name", keep="first"),
        on="name",
        how="left",
        maintain_order="left",
    )[column]
    name = trace.tables.activities["name_id"].gather(counters["activity"])
    return pl.select(pl.coalesce(names[column].gather(name), of_name)).to_series()


def flops(counters: pl.DataFrame) -> pl.DataFrame:
    """Return the FLOPs of each launch on CUDA cores: columns fp64, fp32, fp16 (Int64).

    The operations of tensor cores are ``counters.tensor_ops``. One multiply-add is two operations.
    Null if one of the three counters of a type was not measured, nor their sum. The weights are
    those of Nsight Compute's roofline sections (``…op_hfma_pred_on_x4``).
    """
    return counters.select(
        pl.coalesce(
            f"{kind}_flops",
            pl.sum_horizontal(
                *(
                    weight * pl.col(f"{kind}_{operation}")
                    for operation, weight in zip(("add", "mul", "fma"), weights, strict=True)
                ),
                ignore_nulls=False,
            ),
        ).alias(kind)
        for kind, weights in _FLOPS.items()
    )


def figures(counters: pl.DataFrame, over: pl.Series) -> pl.DataFrame:
    """Return the columns to be summed, a row per launch or per mean of several.

    ``over`` holds their durations (ns).
    """
    launches = pl.col("launches").fill_null(1)
    counters = counters.with_columns(
        (pl.col(column) * launches).alias(column) for column in _COUNTS
    )
    by_type = flops(counters).select(
        *(pl.col(kind).alias(f"{kind}_flops") for kind in KINDS if kind != "tensor")
    )
    some = pl.any_horizontal(pl.col(FLOPS).is_not_null())
    share = pl.col("tensor_active_percent") / 100
    return (
        counters.select(
            launches.alias("measured"),
            *(
                value
                for what, column in _MEANS.items()
                for value in (
                    pl.when(pl.col(column).is_not_null()).then(launches).alias(f"{what}_over"),
                    (pl.col(column) / 100 * launches).alias(f"{what}_weighted"),
                )
            ),
            pl.col("duration").alias("ncu_ns"),
            pl.col("tensor_ops").alias("tensor_flops"),
            "dram_bytes",
            "tensor_active_percent",
            over.alias("over"),
        )
        .hstack(by_type)
        .with_columns(pl.when(some).then(pl.sum_horizontal(FLOPS)).alias("measured_flops"))
        .with_columns(
            pl.when(pl.col("measured_flops").is_not_null()).then("over").alias("flops_over"),
            pl.when(pl.col("dram_bytes").is_not_null()).then("over").alias("dram_over"),
            pl.when(share.is_not_null()).then("over").alias("tensor_over"),
            (share * pl.col("over")).alias("tensor_weighted"),
        )
        .select(_SUMS)
    )


def added() -> list[pl.Expr]:
    """Return the sums of these columns, null where every value is null."""
    return [
        pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).alias(column)
        for column in _SUMS
    ]


def with_measured_rates(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return ``frame`` with :data:`COLUMNS` instead of the summed columns."""
    if trace.tables.counters.height:
        frame = frame.with_columns(pl.col("measured").fill_null(0))

    def per(value: str, over: str, scale: float) -> pl.Expr:
        return pl.when(pl.col(over) > 0).then(pl.col(value) * scale / pl.col(over))

    return frame.with_columns(
        per("measured_flops", "flops_over", 1e9).alias("measured_flops_per_s"),
        per("dram_bytes", "dram_over", 1e9).alias("dram_bytes_per_s"),
        per("tensor_weighted", "tensor_over", 1.0).alias("tensor_active"),
        per("occupancy_weighted", "occupancy_over", 1.0).alias("occupancy"),
        per("efficiency_weighted", "efficiency_over", 1.0).alias("sm_efficiency"),
    ).drop(column for column in _SUMS if column.endswith(("_over", "_weighted")))


def measured_notes(trace: Trace) -> tuple[str, ...]:
    """Return notes on the measured values; empty without counters."""
    counters = trace.tables.counters
    if counters.is_empty():
        return ()
    notes = [_where(trace)]
    notes += [
        f"{profiler(trace)}: {message}"
        for message in trace.meta.properties.get("counters_messages", ())
    ]
    disagreement = trace.tables.ledger.filter(pl.col("reason") == "unmatched")
    notes += [
        f"{detail}: {count:,}"
        for detail, count in disagreement.select("detail", "count").iter_rows()
    ]
    sums = figures(without_moves(trace), counters["duration"])
    missing = [kind for kind in KINDS if sums[f"{kind}_flops"].null_count() == sums.height]
    if len(missing) == len(KINDS):
        notes.append("FLOP counters not measured")
    elif missing:
        notes.append(f"FLOP counters not measured: {', '.join(missing)}")
    # On Hopper the counters of operations reportedly exclude its own instructions (wgmma). HFMA2
    # instructions run in the same pipe.
    on_tensor_cores = _of_kernel(trace, "tensor_core").fill_null(value=False)
    unseen = counters.filter(
        (pl.col("tensor_ops") == 0) & (pl.col("tensor_active_percent") > 0),
        on_tensor_cores | ~(pl.col("fp16_fma") > 0).fill_null(value=False),
    ).height
    if unseen:
        notes.append(
            f"tensor FLOPs too low: {unseen:,} launches with active tensor cores but no counted "
            "tensor operations"
        )
    return tuple(notes)


def profiler(trace: Trace) -> str:
    """Return the profiler that measured the counters of ``trace``."""
    producer = trace.meta.properties.get("counters_producer", trace.meta.producer) or ""
    return producer.removeprefix("AMD ") if producer.startswith("AMD roc") else "Nsight Compute"


def _where(trace: Trace) -> str:
    counters = trace.tables.counters
    means = counters["launches"].null_count() < counters.height
    if means and trace.tables.activities.is_empty():
        launches = counted(int(counters["launches"].sum()), "launch", "launches")
        return (
            f"nvprof's metrics without a timeline: {launches}, "
            "means of all launches of a kernel, no durations"
        )
    by = profiler(trace)
    if trace.tables.activities.is_empty():
        clocks = " at locked clocks" if by == "Nsight Compute" else ""
        timed = by == "Nsight Compute" or counters["duration"].count()
        durations = f"rates over its own durations{clocks}" if timed else "no durations"
        launches = counted(counters.height, "launch", "launches")
        return f"{by} without a timeline: {launches}, {durations}"
    joined = counters.height - counters["activity"].null_count()
    kernels = int((trace.tables.activities["kind"] == "kernel").sum())
    if means:
        return (
            f"measured by nvprof: {joined:,} of {kernels:,} kernels, each with the mean of its name"
        )
    return f"measured by {by}: {joined:,} of {kernels:,} kernels"
