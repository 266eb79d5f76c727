"""Factors of work on other hardware or by other kernels: another GPU, tensor cores, a fused
optimizer, links, ranks, pinned memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from traceana.analyze.communication import messages
from traceana.analyze.rates import machine
from traceana.analyze.roofline import counted_work
from traceana.errors import NoSuchSelectionError
from traceana.flops.peaks import listed_peaks, peak_for
from traceana.settings import (
    FEWEST_LIKE,
    FEWEST_SIZES,
    LARGE_COPY_BYTES,
    LIKE_FLOPS,
    SLOW_COPY,
    TENSOR_CORE_CONVOLUTIONS,
    TENSOR_CORE_GEMMS,
)
from traceana.timeline.copies import HOST_DIRECTIONS, copies, link_peaks
from traceana.trace.taxonomy import PRODUCTS
from traceana.trace.work import labels
from traceana.vocabulary.operators import FUSED

if TYPE_CHECKING:
    from typing import Self

    from traceana.columns.nesting import Flags, Ints
    from traceana.flops.peaks import Peaks
    from traceana.timeline.threads import Floats
    from traceana.trace import Trace


class Factors(NamedTuple):
    """Which activities of a trace take another time, and the least and the most of how many times
    as long; by row of ``activities``, 1 for others."""

    chosen: Flags
    least: Floats
    most: Floats

    @classmethod
    def of_rows(cls, trace: Trace, rows: Ints, least: Floats, most: Floats) -> Self:
        """Return the factors of ``rows``."""
        chosen = np.zeros(trace.tables.activities.height, dtype=np.bool_)
        chosen[rows] = True
        ends = []
        for values in (least, most):
            factors = np.ones(len(chosen))
            factors[rows] = values
            ends.append(factors)
        return cls(chosen, *ends)


_COPIES_ON_DEVICE: Final = ("DtoD", "AtoA", "AtoD", "DtoA")
_SUBSTITUTE_PRECISIONS: Final = {
    "tf32": ("fp32",),
    "bf16": ("fp32",),
    "fp16": ("fp32",),
    "fp8": ("fp16", "fp32"),
}
"""What serves in place of a precision that a device has no tensor cores for."""


def with_tensor_cores(trace: Trace, chosen: Flags, *, autocast: bool = False) -> Factors:
    """Return the factors of the ``chosen`` FP32 convolutions and GEMMs if they use tensor cores.

    The precision is TF32 where the device has it, else FP16. With ``autocast`` it is BF16, else
    FP16, also of products in TF32, and at the upper end all operands are cast: 6 bytes of traffic
    for each 4. Of a convolution all kernels count,
    transforms too: on tensor cores another algorithm runs. At like shapes with tensor cores in the
    trace, the share of the peak is theirs, from the lower to the upper quartile. Else the time goes
    with the peaks, times ``tensor_core_convolutions`` and ``tensor_core_gemms``; layout changes
    that cuDNN adds are in it. A GEMM reads and writes its operands at most at the memory bandwidth,
    in FP16 half of their bytes. Raises :class:`~traceana.errors.NoSuchSelectionError` where there
    are none, or the peaks are not known.
    """
    peaks = _peaks(trace)
    wider = "bf16" if autocast else "tf32"
    precision = wider if f"{wider}_tensor" in peaks.flops else "fp16"
    plain, cores = peak_for(peaks, "fp32", False), peak_for(peaks, precision, True)
    if plain is None or cores is None or cores <= plain:
        raise NoSuchSelectionError(f"{peaks.name} has no tensor cores for TF32 or FP16")
    counted = _counted_by_activity(trace)
    product = counted["category"].is_in(["conv", "gemm"]).fill_null(value=False)
    on_plain_cores = (counted["precision"] == "fp32") & counted["tensor_core"].eq(other=False)
    in_tf32 = (counted["precision"] == "tf32") & autocast
    wanted = (product & (on_plain_cores | in_tf32)).fill_null(value=False)
    # All kernels of each convolution that has one in FP32.
    episode = trace.tables.activities["episode"]
    plain_episodes = episode.filter(wanted & (counted["category"] == "conv")).drop_nulls().unique()
    core_episodes = episode.filter(
        product & (counted["tensor_core"] & ~in_tf32).fill_null(value=False)
    ).drop_nulls()
    plain_convolutions = plain_episodes.filter(~plain_episodes.is_in(core_episodes.implode()))
    of_convolution = episode.is_in(plain_convolutions.implode()).fill_null(value=False)
    rows = np.flatnonzero(chosen & (wanted | of_convolution).to_numpy())
    if not len(rows):
        without = "" if autocast else " without tensor cores"
        raise NoSuchSelectionError(f"no FP32 convolutions or GEMMs{without}")
    flops, size, time = (_floats(counted[name]) for name in ("flops", "bytes", "unit_ns"))
    halved = 1.0 if precision == "tf32" else 0.5
    moving = _ratio_or_zero(halved * 1e9 * size / (peaks.bandwidth or np.inf), time)
    is_gemm = (counted["category"] == "gemm").fill_null(value=False).to_numpy()[rows]
    least, most = (
        np.where(is_gemm, gemm, conv) * plain / cores
        for gemm, conv in zip(TENSOR_CORE_GEMMS, TENSOR_CORE_CONVOLUTIONS, strict=True)
    )
    if autocast and (tf32 := peak_for(peaks, "tf32", True)) is not None:
        # On tensor cores already: with the peaks, or as bound by other things as before.
        before = in_tf32.fill_null(value=False).to_numpy()[rows]
        least, most = np.where(before, tf32 / cores, least), np.where(before, 1.0, most)
    uses_cores = (product & counted["tensor_core"]).fill_null(value=False).to_numpy()
    on_cores = np.flatnonzero(uses_cores & (flops > 0) & (time > 0))
    core_peaks = np.array(
        [peak_for(peaks, on_core, True) or np.nan for on_core in counted["precision"][on_cores]],
        dtype=np.float64,
    )
    share_of_peak = flops[on_cores] * 1e9 / time[on_cores] / core_peaks
    finite = np.isfinite(share_of_peak)
    on_cores, share_of_peak = on_cores[finite], share_of_peak[finite]
    for wanted_flops in np.unique(flops[rows][flops[rows] > 0]):
        similar = (flops[on_cores] < LIKE_FLOPS * wanted_flops) & (
            flops[on_cores] > wanted_flops / LIKE_FLOPS
        )
        if similar.sum() < FEWEST_LIKE:
            continue
        low, high = np.quantile(share_of_peak[similar], [0.25, 0.75])
        same_flops = np.flatnonzero(flops[rows] == wanted_flops)
        unit_time = time[rows[same_flops]]
        least[same_flops] = wanted_flops * 1e9 / (high * cores) / unit_time
        most[same_flops] = wanted_flops * 1e9 / (low * cores) / unit_time
    floor = np.where(is_gemm, moving[rows], 0.0)
    # Who finds tensor cores slower does not use them.
    least, most = (np.clip(np.maximum(factor, floor), 0, 1) for factor in (least, most))
    if autocast:
        casts = 1.5 * _ratio_or_zero(1e9 * size / (peaks.bandwidth or np.inf), time)
        most = np.minimum(most + casts[rows], 1)
    return Factors.of_rows(trace, rows, least, most)


def with_fused_optimizer(trace: Trace, chosen: Flags) -> Factors:
    """Return the factors of the ``chosen`` kernels of an optimizer if they are fused.

    They take as long as the memory needs for their operands and results, at most as long as they
    did, down to half of that: the fused kernel reads and writes each tensor once. Raises
    :class:`~traceana.errors.NoSuchSelectionError` where the optimizer has no kernels that are not
    fused.
    """
    names = trace.tables.names["name"].gather(trace.tables.activities["name_id"])
    kernels = (trace.tables.activities["kind"] == "kernel") & ~names.str.contains(FUSED)
    rows = np.flatnonzero(chosen & kernels.to_numpy())
    if not len(rows):
        raise NoSuchSelectionError("no kernels of an optimizer that is not fused")
    most = np.ones(len(rows))
    if (peaks := machine(trace)[0]) is not None and peaks.bandwidth is not None:
        counted = _counted_by_activity(trace)[rows]
        size, time = _floats(counted["bytes"]), _floats(counted["unit_ns"])
        moving = _ratio_or_zero(1e9 * size / peaks.bandwidth, time)
        most = np.where(moving > 0, np.minimum(moving, 1), 1)
    return Factors.of_rows(trace, rows, most / 2, most)


def on_another_gpu(trace: Trace, chosen: Flags, name: str) -> Factors:
    """Return the factors of the ``chosen`` work on the GPU ``name``, one of the listed devices.

    Work that is bound by arithmetic goes with the peaks for its precision, other work with the
    memory bandwidths. What a kernel takes longer than the roofline allows may be latency, which
    stays as it is: one end of the interval; at the other all of its time goes with the peak.
    Without counts a product is between both. Copies over the host link and collectives stay as
    they are. Raises :class:`~traceana.errors.NoSuchSelectionError` where peaks are not known.
    """
    recorded_gpu, other_gpu = _peaks(trace), listed_peaks(name)
    if recorded_gpu.bandwidth is None or other_gpu.bandwidth is None:
        raise NoSuchSelectionError("the memory bandwidth of one of the GPUs is not known")
    counted = _counted_by_activity(trace)
    of_gpu = trace.tables.activities.select(
        (pl.col("kind").is_in(["kernel", "memset", "graph"]))
        | pl.col("copy_kind").cast(pl.String).is_in(_COPIES_ON_DEVICE).fill_null(value=False)
    ).to_series()
    is_collective = counted["category"].is_in(["collective"]).fill_null(value=False)
    rows = np.flatnonzero(chosen & (of_gpu & ~is_collective).to_numpy())
    if not len(rows):
        raise NoSuchSelectionError("no work of a GPU in the trace")
    memory = recorded_gpu.bandwidth / other_gpu.bandwidth
    keys = counted.select("precision", "tensor_core")[rows]
    arithmetic = np.full(len(rows), memory)
    peak = np.full(len(rows), np.inf)
    for (precision, cores), of_keys in keys.with_row_index("at").group_by(
        "precision", "tensor_core"
    ):
        before = peak_for(recorded_gpu, precision or "fp32", cores)
        after = _nearest_peak(other_gpu, precision or "fp32", cores)
        if before is not None and after is not None:
            arithmetic[of_keys["at"].to_numpy()] = before / after
            peak[of_keys["at"].to_numpy()] = before
    flops, size, time = (_floats(counted[name])[rows] for name in ("flops", "bytes", "unit_ns"))
    computing = _ratio_or_zero(np.nan_to_num(1e9 * flops / peak), time)
    moving = _ratio_or_zero(np.nan_to_num(1e9 * size / recorded_gpu.bandwidth), time)
    is_product = counted["category"].is_in(PRODUCTS).fill_null(value=False).to_numpy()[rows]
    is_counted = (flops > 0) & np.isfinite(size)
    ratio = np.where(is_product & (computing >= moving), arithmetic, memory)
    explained = np.clip(np.maximum(computing, moving), 0, 1)
    latency_stays = np.where(
        is_counted, explained * ratio + 1 - explained, np.where(is_product, memory, ratio)
    )
    all_scales = np.where(is_product & ~is_counted, arithmetic, ratio)
    return Factors.of_rows(
        trace, rows, np.minimum(all_scales, latency_stays), np.maximum(all_scales, latency_stays)
    )


def _peaks(trace: Trace) -> Peaks:
    peaks, note = machine(trace)
    if peaks is None:
        raise NoSuchSelectionError(note)
    return peaks


def _counted_by_activity(trace: Trace) -> pl.DataFrame:
    """Return :func:`~traceana.analyze.roofline.counted_work` with a row per activity."""
    worked = trace.tables.activities["kind"] != "sync"
    counted = counted_work(trace)
    if worked.all():
        return counted
    return counted[worked.cum_sum().cast(pl.Int64).to_numpy() - 1].with_columns(
        pl.when(worked).then(pl.all())
    )


def _floats(column: pl.Series) -> Floats:
    return column.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _ratio_or_zero(ns: Floats, of: Floats) -> Floats:
    """Return ``ns`` over ``of``, 0 if one of them is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(ns / of, nan=0.0, posinf=0.0)


def _nearest_peak(peaks: Peaks, precision: str, cores: bool | None) -> float | None:
    """Return the peak for ``precision``, or for what would be used where the device has none."""
    if (peak := peak_for(peaks, precision, cores)) is not None:
        return peak
    for other in _SUBSTITUTE_PRECISIONS.get(precision, ()):
        for on_cores in (True, False):
            if (peak := peak_for(peaks, other, on_cores)) is not None:
                return peak
    return None


def over_another_link(trace: Trace, chosen: Flags, ratio: float) -> Factors:
    """Return the factors of the ``chosen`` collectives over a link with ``ratio`` times the
    bandwidth.

    The shortest time of its function and message size is a collective's own; the rest is waiting
    for other ranks, which stays. Of its own time the part in proportion to the message goes with
    the bandwidth: by a fit of a latency and a bandwidth to three message sizes or more. Without
    a fit the interval reaches from no part to all of its own time. Raises
    :class:`~traceana.errors.NoSuchSelectionError` without collectives.
    """
    rows = _collectives(trace, chosen)
    ends = [1 - part + part / ratio for part in _message_parts(rows)]
    return _factors_of_own_time(trace, rows, ends)


def with_ranks(trace: Trace, chosen: Flags, ranks: int) -> Factors:
    """Return the factors of the ``chosen`` collectives with ``ranks`` ranks, each with the same
    work.

    The part in proportion to the message goes with the bytes that each rank moves in a ring, the
    latency with the logarithm of the number of ranks (a tree) or with the number (a ring). Raises
    :class:`~traceana.errors.NoSuchSelectionError` without collectives, and where the number of
    ranks is not recorded.
    """
    rows = _collectives(trace, chosen)
    # In an nsys report of several processes or devices only these have their number.
    world_size = trace.meta.world_size or rows.select("rank", "device").n_unique()
    before = rows["ranks"].cast(pl.Float64).fill_null(float(world_size)).to_numpy()
    if not (before > 1).all():
        raise NoSuchSelectionError("the number of ranks of the collectives is not recorded")
    moved = ((ranks - 1) / ranks) / ((before - 1) / before)
    tree, ring = math.log2(ranks) / np.log2(before), (ranks - 1) / (before - 1)
    ends = [
        (1 - part) * latency + part * moved
        for part in _message_parts(rows)
        for latency in (tree, ring)
    ]
    return _factors_of_own_time(trace, rows, ends)


def _collectives(trace: Trace, chosen: Flags) -> pl.DataFrame:
    """Return the collectives among the ``chosen`` activities that carry a message: ``row``,
    ``rank``, ``device``, ``duration``, ``collective``, ``bytes``, ``ranks``, and ``own``, the
    shortest time of those of the same function, bytes and ranks."""
    classes = labels(trace.tables, "category", "part")
    collectives = (
        trace.tables.activities.with_columns(classes["part"].cast(pl.String))
        .with_row_index("row")
        .filter(classes["category"] == "collective")
    )
    collectives = collectives.with_columns(messages(collectives, trace)).filter("carries")
    collectives = collectives.filter(pl.Series(chosen).gather(collectives["row"]))
    if collectives.is_empty():
        raise NoSuchSelectionError("no collectives in the trace")
    key = ("collective", "bytes", "ranks")
    return collectives.select(
        *("row", "rank", "device", "duration", *key),
        pl.col("duration").min().over(key).cast(pl.Float64).alias("own"),
    )


def _message_parts(rows: pl.DataFrame) -> list[Floats]:
    """Return for each of ``rows`` which part of its own time goes with its message: one estimate,
    or the ends of what is possible."""
    sizes = rows.unique(["collective", "bytes", "ranks"]).drop_nulls("bytes")
    fits: dict[tuple[str | None, int | None], tuple[float, float]] = {}
    for key, group in sizes.group_by("collective", "ranks"):
        if group["bytes"].n_unique() >= FEWEST_SIZES:
            slope, latency = np.polyfit(group["bytes"].to_numpy(), group["own"].to_numpy(), 1)
            fits[key] = max(float(latency), 0.0), max(float(slope), 0.0)
    least, most = np.zeros(rows.height), np.ones(rows.height)
    for row, (name, ranks, size) in enumerate(rows.select("collective", "ranks", "bytes").rows()):
        latency, slope = fits.get((name, ranks), (0.0, 0.0))
        if size and latency + slope * size > 0:
            least[row] = most[row] = slope * size / (latency + slope * size)
    return [least] if (least == most).all() else [least, most]


def _factors_of_own_time(trace: Trace, rows: pl.DataFrame, ends: list[Floats]) -> Factors:
    """Return the factors of ``rows`` whose own time takes between ``ends`` as long."""
    time, own_time = rows["duration"].clip(1).to_numpy(), rows["own"].to_numpy()
    least, most = (
        1 - own_time / time * (1 - least_or_most(ends, axis=0))
        for least_or_most in (np.min, np.max)
    )
    return Factors.of_rows(trace, rows["row"].cast(pl.Int64).to_numpy(), least, most)


def from_pinned_memory(trace: Trace, chosen: Flags) -> Factors:
    """Return the factors of the ``chosen`` copies of pageable memory if it is pinned.

    Their bandwidth is that of the large copies of pinned memory in the same direction, from the
    lower to the upper quartile; without such copies from ``slow_copy`` of the link's peak to all of
    it. A copy takes at least as long as the shortest small one of the same direction, and not
    longer than it did. Raises :class:`~traceana.errors.NoSuchSelectionError` where there are none,
    or neither bandwidth is known.
    """
    copy_rows = np.flatnonzero((trace.tables.activities["kind"] == "memcpy").to_numpy())
    keys = ["rank", "device", "direction"]
    frame = copies(trace).select(
        *keys,
        "host_memory",
        "bytes",
        "duration",
        pl.Series("chosen", chosen[copy_rows]),
        at=copy_rows,
    )
    pageable = frame.filter(
        "chosen", pl.col("host_memory") == "pageable", pl.col("direction").is_in(HOST_DIRECTIONS)
    )
    if pageable.is_empty():
        raise NoSuchSelectionError("no copies from or to pageable memory in the trace")
    rate = pl.col("bytes") * 1e9 / pl.col("duration").clip(1)
    pinned_rates = (
        frame.filter(pl.col("host_memory") == "pinned", pl.col("bytes") >= LARGE_COPY_BYTES)
        .group_by("direction")
        .agg(
            rate.quantile(0.25, "linear").alias("low"), rate.quantile(0.75, "linear").alias("high")
        )
    )
    peak = pl.col("peak_bytes_per_s").cast(pl.Float64)
    small = pl.col("bytes") < LARGE_COPY_BYTES
    shortest = frame.group_by("direction").agg(
        pl.col("duration").filter(small).min().alias("shortest")
    )
    rows = (
        pageable.join(pinned_rates, on="direction", how="left")
        .join(shortest, on="direction", how="left")
        .join(
            link_peaks(trace.tables.devices).select(*keys, "peak_bytes_per_s"),
            on=keys,
            how="left",
            nulls_equal=True,
        )
        .with_columns(pl.coalesce("high", peak), pl.coalesce("low", peak * SLOW_COPY))
        .filter(pl.col("low").is_not_null(), pl.col("bytes").is_not_null())
    )
    if rows.is_empty():
        raise NoSuchSelectionError(
            "no large copies of pinned memory in the trace, and the peak of the link is not known"
        )
    least, most = (
        (pl.max_horizontal(pl.col("bytes") * 1e9 / pl.col(name), "shortest") / pl.col("duration"))
        .clip(0, 1)
        .fill_nan(1)
        .alias(name)
        for name in ("high", "low")
    )
    factors = rows.select("at", least, most)
    return Factors.of_rows(
        trace, factors["at"].to_numpy(), factors["high"].to_numpy(), factors["low"].to_numpy()
    )
