"""FLOP/s, share of the device's peak, and the roofline of a table's rows.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.charges import COUNTS
from traceana.flops.call import Refusal
from traceana.flops.peaks import Peaks, peak_for, peaks_of
from traceana.table import (
    BYTES,
    FLOP_RATE,
    FLOPS,
    INTENSITY,
    OF_FLOPS,
    SHARE,
    TEXT,
    Column,
    whole_sum,
)
from traceana.timeline.work import work
from traceana.trace.schema import CPU_DEVICE
from traceana.trace.taxonomy import PRODUCTS
from traceana.trace.work import PASSES

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final = (
    Column(
        "flops",
        FLOPS,
        "of a direct computation, a multiply-accumulate being two; null where no shapes are known. "
        "From the trace's operators, a compiled program's instructions, or the layer manifest",
        scale=OF_FLOPS,
        additive=True,
    ),
    Column(
        "executed_flops",
        FLOPS,
        "what the convolutions' algorithms execute instead: fewer for Winograd and FFT, transforms "
        "included; of causal attention what the mask keeps; null where an algorithm is not known",
        scale=OF_FLOPS,
        additive=True,
    ),
    Column(
        "flops_per_s",
        FLOP_RATE,
        "`flops` over the time of the work with FLOP counts; null where some of the row's work has "
        "no count",
        title="FLOP/s",
    ),
    Column(
        "of_peak",
        SHARE,
        "`flops_per_s` over the device's peak for the precision of most of the work (float32 where "
        "no precision is known); of products of several precisions, for their FLOPs over the time "
        "that they take at the peak of each; null where the device is not known",
    ),
    Column(
        "over_peak",
        TEXT,
        "of rows above the peak: `executed fewer` where the algorithm explains it, else "
        "`unexplained`",
    ),
    Column(
        "bytes",
        BYTES,
        "compulsory: each operand read and each result written once; null where a shape or type is "
        "not known",
        additive=True,
    ),
    Column("arithmetic_intensity", INTENSITY, "`flops` over `bytes`"),
    Column("bound", TEXT, "`compute` or `memory` in the roofline model"),
    Column(
        "of_attainable",
        SHARE,
        "share reached of what the bound allows, the attainable performance of the roofline model",
    ),
)
"""Columns that :func:`with_flop_rates` adds."""

EXPLAINED: Final = "executed fewer"
UNEXPLAINED: Final = "unexplained"

_PASSES_OF: Final[dict[str | None, tuple[str | None, ...]]] = {
    "forward": ("forward", "optimizer", "backward", None, "dgrad", "wgrad"),
    "dgrad": ("dgrad", "backward", None, "wgrad", "forward", "optimizer"),
    "wgrad": ("wgrad", "backward", None, "dgrad", "forward", "optimizer"),
    "bias_grad": ("backward", "wgrad", None, "dgrad", "forward", "optimizer"),
    "backward": ("backward", "dgrad", "wgrad", None, "optimizer", "forward"),
    None: (None, "optimizer", "forward", "backward", "dgrad", "wgrad"),
}
"""The possible rows of a part of the work, in order of preference. Forward work inside a backward
pass is recomputed. All rows are listed, so that no count is lost."""


def machine(trace: Trace) -> tuple[Peaks | None, str]:
    """Return the peaks common to all devices with work, and a note with their source.

    None for a CPU (its peaks are measured on request), for different devices, and for an unknown
    device; the note has the reason.
    """
    used = work(trace, "device")["device"].drop_nulls().unique()
    if (used == CPU_DEVICE).any():
        return None, "CPU peak unknown: run --calibrate"
    rows = trace.tables.devices.filter(pl.col("device").is_in(used.implode()))
    devices = rows.drop("device", "rank").unique(maintain_order=True)
    if devices.is_empty():
        return None, "device peak unknown: no device recorded (name it with --device-model)"
    results = [peaks_of(row) for row in devices.iter_rows(named=True)]
    peaks_by_name = {peak.name: peak for peak in results if isinstance(peak, Peaks)}
    refusal = next((peak for peak in results if isinstance(peak, Refusal)), None)
    if refusal is not None:
        return None, f"device peak unknown: {refusal.reason}"
    if len(peaks_by_name) > 1:
        return None, "device peak unknown: several device types (choose one with --device)"
    (peaks,) = peaks_by_name.values()
    return peaks, peak_note(peaks)


def peak_note(peaks: Peaks) -> str:
    """Return the note with the source of the peaks that rates are compared with."""
    fp32 = peaks.flops.get("fp32")
    rate = "" if fp32 is None else f"{fp32 / 1e12:,.1f} TFLOP/s FP32, "
    return f"device peak: {rate}{peaks.name}, {peaks.how} ({peaks.source})"


def with_flop_rates(
    frame: pl.DataFrame,
    keys: list[str],
    work: pl.DataFrame,
    charged: pl.DataFrame,
    peaks: Peaks | None,
) -> pl.DataFrame:
    """Return ``frame``, which has a row per ``keys``, with :data:`COLUMNS`.

    ``work`` is located work with the same keys, ``charged`` its charges.
    """
    if "direction" in keys:
        charged = _with_pass(charged, frame, [key for key in keys if key != "direction"])
    sums = charged.group_by(keys).agg(whole_sum(column) for column in COUNTS)
    over = work.group_by(keys).agg(
        pl.when(~pl.col("incomplete").any()).then(pl.col("counted_ns").sum()).alias("_over")
    )
    joined = frame.join(sums, on=keys, how="left", nulls_equal=True).join(
        over, on=keys, how="left", nulls_equal=True
    )
    # A sum of nothing but views and copies beside work without a count is not known to be 0.
    has_count = (pl.col("flops") > 0) | pl.col("_over").is_not_null()
    joined = joined.with_columns(pl.when(has_count).then(pl.col(column)) for column in COUNTS)
    return rate_columns(joined, work, keys, peaks, charged)


def rate_columns(
    frame: pl.DataFrame,
    work: pl.DataFrame,
    keys: list[str],
    peaks: Peaks | None,
    charged: pl.DataFrame,
) -> pl.DataFrame:
    """Return ``frame``, which has counts and their time ``_over``, with rates.

    ``work`` has the ``keys``, ``category``, ``precision``, ``tensor_core`` and ``time_ns``,
    ``charged`` the charges of the keys.
    """
    of_row = peaks_by(work, keys, peaks, charged)
    joined = frame.join(of_row, on=keys, how="left", nulls_equal=True)
    flops, size, over = pl.col("flops"), pl.col("bytes"), pl.col("_over")
    peak, bandwidth = pl.col("_peak"), pl.col("_bandwidth")
    attainable = attainable_percent(flops, size, over, peak, bandwidth)
    return joined.with_columns(
        *rates_of_peak(peak),
        intensity(flops, size).alias("arithmetic_intensity"),
        bound(flops, size, peak, bandwidth).cast(pl.String).alias("bound"),
        (attainable / 100).alias("of_attainable"),
    ).drop("_over", "_peak", "_bandwidth")


def rates_of_peak(peak: pl.Expr) -> list[pl.Expr]:
    """Return ``flops_per_s``, ``of_peak`` and ``over_peak`` of rows with ``flops``,
    ``executed_flops`` and their time ``_over``."""
    seconds = pl.when(pl.col("_over") > 0).then(pl.col("_over")) / 1e9
    rate = pl.when(pl.col("flops") > 0).then(pl.col("flops")) / seconds
    executed = pl.col("executed_flops") / seconds
    return [
        rate.alias("flops_per_s"),
        (rate / peak).alias("of_peak"),
        pl.when(rate > peak)
        .then(pl.when(executed <= peak).then(pl.lit(EXPLAINED)).otherwise(pl.lit(UNEXPLAINED)))
        .alias("over_peak"),
    ]


def peaks_by(
    work: pl.DataFrame, keys: list[str], peaks: Peaks | None, charged: pl.DataFrame
) -> pl.DataFrame:
    """Return by ``keys`` the peak for the precision of most of the products, else of most work.

    Where products of several precisions were counted, it is their FLOPs over the time that they
    take at the peak of each. Where the use of tensor cores is unknown, the higher of both peaks;
    where the precision is unknown, the peak of float32 arithmetic.
    """
    kinds = ["precision", "tensor_core"]
    product = pl.col("category").is_in(PRODUCTS)
    has_precision = pl.col("precision").is_not_null()
    most = (
        work.with_columns(
            pl.col("precision").fill_null("fp32"),
            pl.when(has_precision).then("tensor_core").otherwise(False).alias("tensor_core"),
            has_precision.alias("known"),
        )
        .group_by("known", *keys, product.alias("product"), *kinds)
        .agg(pl.col("time_ns").sum())
        .sort("product", "time_ns", *kinds, descending=[True, True, False, False])
        .unique(keys, keep="first")
    )
    counted = (
        charged.filter(pl.col("product") & has_precision & (pl.col("flops") > 0))
        .group_by(*keys, *kinds)
        .agg(pl.col("flops").sum())
        # Sums of fractions depend on their order.
        .sort("flops", *kinds)
    )
    pairs = pl.concat([most.select(kinds), counted.select(kinds)]).unique()
    highest: list[float | None] = []
    for precision, tensor_core in pairs.iter_rows():
        units = (False, True) if tensor_core is None else (tensor_core,)
        rates = [] if peaks is None else [peak_for(peaks, precision, unit) for unit in units]
        highest.append(max((rate for rate in rates if rate is not None), default=None))
    of_kind = pairs.with_columns(pl.Series("_peak", highest, dtype=pl.Float64))

    def with_peak(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.join(of_kind, on=kinds, how="left", nulls_equal=True, maintain_order="left")

    mixed = (
        with_peak(counted)
        .group_by(keys)
        .agg(
            pl.when(pl.col("_peak").n_unique() > 1, pl.col("_peak").null_count() == 0)
            .then(pl.col("flops").sum() / (pl.col("flops") / pl.col("_peak")).sum())
            .alias("_mixed")
        )
    )
    bandwidth = None if peaks is None else peaks.bandwidth
    return (
        with_peak(most)
        .join(mixed, on=keys, how="left", nulls_equal=True)
        .select(
            *keys,
            pl.coalesce("_mixed", "_peak").alias("_peak"),
            pl.lit(bandwidth, pl.Float64).alias("_bandwidth"),
        )
    )


def _with_pass(charged: pl.DataFrame, frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the charges with the ``direction`` of their row."""
    rows = frame.select(*keys, pl.col("direction").cast(pl.String)).with_columns(there=True)
    waiting = charged.with_columns(pl.col("part").cast(pl.String))
    assigned: list[pl.DataFrame] = []
    for rank in range(len(PASSES.categories) + 1):
        choice = {part: ways[rank] for part, ways in _PASSES_OF.items()}
        tried = waiting.with_columns(
            pl.col("part").replace_strict(choice, return_dtype=pl.String).alias("direction")
        ).join(rows, on=[*keys, "direction"], how="left", nulls_equal=True, maintain_order="left")
        assigned.append(tried.filter(pl.col("there")).drop("there"))
        waiting = tried.filter(pl.col("there").is_null()).drop("there", "direction")
    return pl.concat(assigned).with_columns(pl.col("direction").cast(PASSES))


# The roofline, as expressions of the columns: operations, compulsory bytes, time in ns, peak in
# operations per second and bandwidth in bytes per second. A null among them makes the result null.

BOUNDS: Final = pl.Enum(["compute", "memory"])


def intensity(flops: pl.Expr, bytes_: pl.Expr) -> pl.Expr:
    """Return the arithmetic intensity, operations per byte; null for 0 bytes."""
    return flops / pl.when(bytes_ > 0).then(bytes_)


def bound(flops: pl.Expr, bytes_: pl.Expr, peak: pl.Expr, bandwidth: pl.Expr) -> pl.Expr:
    """Return ``compute`` at the ridge point and beyond, ``memory`` below; null without work."""
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


def attainable_percent(
    flops: pl.Expr, bytes_: pl.Expr, time_ns: pl.Expr, peak: pl.Expr, bandwidth: pl.Expr
) -> pl.Expr:
    """Return the achieved percentage of the attainable rate.

    It is the shortest possible time over the measured time, also for copies, which do not compute.
    """
    arithmetic, moving = _times(flops, bytes_, peak, bandwidth)
    # Both at their peak, overlapped. max_horizontal ignores nulls: an unknown time would make the
    # other one the bound.
    both_known = arithmetic.is_not_null() & moving.is_not_null()
    shortest_ns = pl.when(both_known).then(pl.max_horizontal(arithmetic, moving)) * 1e9
    return 100 * shortest_ns / pl.when(time_ns > 0).then(time_ns)


def _times(
    flops: pl.Expr, bytes_: pl.Expr, peak: pl.Expr, bandwidth: pl.Expr
) -> tuple[pl.Expr, pl.Expr]:
    """Return the seconds that arithmetic and memory take at their peaks."""
    return (
        flops / pl.when(peak > 0).then(peak),
        bytes_ / pl.when(bandwidth > 0).then(bandwidth),
    )
