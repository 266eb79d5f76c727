"""Factors of work on another GPU, or with tensor cores, by the rates of arithmetic and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.flop_coverage import PRODUCTS
from traceana.analyze.rates import machine
from traceana.analyze.roofline import counted_work
from traceana.errors import NoSuchSelectionError
from traceana.flops.peaks import listed_peaks, peak_for
from traceana.settings import LEAST_TENSOR_CORE_GAIN
from traceana.whatif.factors import Factors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from traceana.enrich.nesting import Flags
    from traceana.flops.peaks import Peaks
    from traceana.trace import Trace
    from traceana.whatif.factors import Floats

_LIKE: Final = 4.0
"""Products within this factor of each other's FLOPs have like shapes."""
_FEWEST_SEEN: Final = 5
_ON_THE_DEVICE: Final = ("DtoD", "AtoA", "AtoD", "DtoA")
_LOWER: Final = {"tf32": ("fp32",), "bf16": ("fp32",), "fp16": ("fp32",), "fp8": ("fp16", "fp32")}
"""What serves in place of a precision that a device has no tensor cores for."""


def with_tensor_cores(trace: Trace, chosen: Flags) -> Factors:
    """Return the factors of the ``chosen`` FP32 convolutions and GEMMs if they use tensor cores.

    The precision is TF32 where the device has it, else FP16. At like shapes with tensor cores in
    the trace, the share of the peak is theirs, from the lower to the upper quartile. Else it is
    from that which these products reach of the FP32 peak, down to ``least_tensor_core_gain``.
    Operands and results are read and written at most at the memory bandwidth, in FP16 half of
    their bytes. Raises :class:`~traceana.errors.NoSuchSelectionError` where there are none, or the
    peaks are not known.
    """
    peaks = _peaks(trace)
    precision = "tf32" if "tf32_tensor" in peaks.flops else "fp16"
    plain, cores = peak_for(peaks, "fp32", False), peak_for(peaks, precision, True)
    if plain is None or cores is None or cores <= plain:
        raise NoSuchSelectionError(f"{peaks.name} has no tensor cores for TF32 or FP16")
    counted = _by_activity(trace)
    product = counted["category"].is_in(["conv", "gemm"]).fill_null(value=False)
    plainly = (counted["precision"] == "fp32") & counted["tensor_core"].eq(other=False)
    rows = np.flatnonzero(chosen & (product & plainly).fill_null(value=False).to_numpy())
    if not len(rows):
        raise NoSuchSelectionError("no FP32 convolutions or GEMMs without tensor cores")
    flops, size, time = (_floats(counted[name]) for name in ("flops", "bytes", "unit_ns"))
    halved = 1.0 if precision == "tf32" else 0.5
    moving = _share(halved * 1e9 * size / (peaks.bandwidth or np.inf), time)
    least = np.full(len(rows), plain / cores)
    most = np.full(len(rows), 1 / LEAST_TENSOR_CORE_GAIN)
    seen = np.flatnonzero((product & counted["tensor_core"]).fill_null(value=False).to_numpy())
    seen = seen[(flops[seen] > 0) & (time[seen] > 0)]
    reached = flops[seen] * 1e9 / time[seen] / _seen_peaks(counted, seen, peaks)
    seen, reached = seen[np.isfinite(reached)], reached[np.isfinite(reached)]
    for wanted in np.unique(flops[rows][flops[rows] > 0]):
        like = (flops[seen] < _LIKE * wanted) & (flops[seen] > wanted / _LIKE)
        if like.sum() < _FEWEST_SEEN:
            continue
        low, high = np.quantile(reached[like], [0.25, 0.75])
        own = np.flatnonzero(flops[rows] == wanted)
        taken = time[rows[own]]
        least[own] = wanted * 1e9 / (high * cores) / taken
        most[own] = wanted * 1e9 / (low * cores) / taken
    floor = moving[rows]
    # Who finds tensor cores slower does not use them.
    ends = (np.clip(np.maximum(end, floor), 0, 1) for end in (least, most))
    return Factors.of_rows(trace, rows, *ends)


def on_another_gpu(trace: Trace, chosen: Flags, name: str) -> Factors:
    """Return the factors of the ``chosen`` work on the GPU ``name``, one of the listed devices.

    Work that is bound by arithmetic goes with the peaks for its precision, other work with the
    memory bandwidths. What a kernel takes longer than the roofline allows may be latency, which
    stays as it is: one end of the interval; at the other all of its time goes with the peak.
    Without counts a product is between both. Copies over the host link and collectives stay as
    they are. Raises :class:`~traceana.errors.NoSuchSelectionError` where peaks are not known.
    """
    here, there = _peaks(trace), listed_peaks(name)
    if here.bandwidth is None or there.bandwidth is None:
        raise NoSuchSelectionError("the memory bandwidth of one of the GPUs is not known")
    counted = _by_activity(trace)
    kinds = trace.activities.select(
        (pl.col("kind").is_in(["kernel", "memset", "graph"]))
        | pl.col("copy_kind").cast(pl.String).is_in(_ON_THE_DEVICE).fill_null(value=False)
    ).to_series()
    moved = counted["category"].is_in(["collective"]).fill_null(value=False)
    rows = np.flatnonzero(chosen & (kinds & ~moved).to_numpy())
    if not len(rows):
        raise NoSuchSelectionError("no work of a GPU in the trace")
    memory = here.bandwidth / there.bandwidth
    keys = counted.select("precision", "tensor_core")[rows]
    arithmetic = np.full(len(rows), memory)
    peak = np.full(len(rows), np.inf)
    for (precision, cores), own in keys.with_row_index("at").group_by("precision", "tensor_core"):
        before = peak_for(here, precision or "fp32", cores)
        after = _nearest_peak(there, precision or "fp32", cores)
        if before is not None and after is not None:
            arithmetic[own["at"].to_numpy()] = before / after
            peak[own["at"].to_numpy()] = before
    flops, size, time = (_floats(counted[name])[rows] for name in ("flops", "bytes", "unit_ns"))
    computing = _share(np.nan_to_num(1e9 * flops / peak), time)
    moving = _share(np.nan_to_num(1e9 * size / here.bandwidth), time)
    is_product = counted["category"].is_in(PRODUCTS).fill_null(value=False).to_numpy()[rows]
    known = (flops > 0) & np.isfinite(size)
    ratio = np.where(is_product & (computing >= moving), arithmetic, memory)
    explained = np.clip(np.maximum(computing, moving), 0, 1)
    other = np.where(known, explained * ratio + 1 - explained, np.where(is_product, memory, ratio))
    first = np.where(is_product & ~known, arithmetic, ratio)
    return Factors.of_rows(trace, rows, np.minimum(first, other), np.maximum(first, other))


def _peaks(trace: Trace) -> Peaks:
    peaks, note = machine(trace)
    if peaks is None:
        raise NoSuchSelectionError(note)
    return peaks


def _by_activity(trace: Trace) -> pl.DataFrame:
    """Return :func:`~traceana.analyze.roofline.counted_work` with a row per activity."""
    worked = trace.activities["kind"] != "sync"
    counted = counted_work(trace)
    if worked.all():
        return counted
    return counted[worked.cum_sum().cast(pl.Int64).to_numpy() - 1].with_columns(
        pl.when(worked).then(pl.all())
    )


def _floats(column: pl.Series) -> Floats:
    return column.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _share(ns: Floats, of: Floats) -> Floats:
    """Return ``ns`` over ``of``, 0 where either is not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(ns / of, nan=0.0, posinf=0.0)


def _seen_peaks(counted: pl.DataFrame, rows: NDArray[np.int64], peaks: Peaks) -> Floats:
    found = [peak_for(peaks, precision, True) or np.nan for precision in counted["precision"][rows]]
    return np.array(found, dtype=np.float64)


def _nearest_peak(peaks: Peaks, precision: str, cores: bool | None) -> float | None:
    """Return the peak for ``precision``, or for what would be used where the device has none."""
    if (found := peak_for(peaks, precision, cores)) is not None:
        return found
    for other in _LOWER.get(precision, ()):
        for on_cores in (True, False):
            if (found := peak_for(peaks, other, on_cores)) is not None:
                return found
    return None
