"""Copies by direction and kind of host memory, and by operator, layer, call, step or size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from traceana.analyze import summaries
from traceana.analyze.summaries import needs_timeline
from traceana.columns.intervals import PER_DEVICE, Busy, computing, exposed
from traceana.enrich.keys import layer_keys
from traceana.enrich.layers.source import OUTSIDE
from traceana.result import Result, sums, with_share
from traceana.settings import MANY_COPIES, SMALL_COPY_BYTES
from traceana.timeline.copies import (
    ASYNCHRONOUS,
    BLOCKING,
    DEVICE_MEMORY,
    HOST_DIRECTIONS,
    STAGED,
    SYNCHRONOUS,
    copies,
    link_peaks,
)
from traceana.timeline.steps import available_ns, device_windows, measured_steps
from traceana.timeline.work import kernels_of
from traceana.vocabulary.option_words import TransfersBy

if TYPE_CHECKING:
    from traceana.trace import Trace

Key: TypeAlias = TransfersBy | Literal["kind"]
"""Its grouping, or what limits the copy: its size, the call, or the link."""

COLUMNS: Final = (
    *("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "share", "exposed_ns"),
    *("bytes_per_s", "median_bytes_per_s", "link", "peak_bytes_per_s", "peak_share"),
    *("blocking", "synchronous", "staged", "asynchronous"),
    *("step_count", "step_bytes", "step_ns", "step_share", "small"),
)
_KEYS: Final = ("direction", "host_memory")
_TYPES: Final = {
    "link": pl.String,
    **dict.fromkeys(("exposed_ns", "peak_bytes_per_s", "step_bytes", "step_ns"), pl.Int64),
    **dict.fromkeys(BLOCKING, pl.Int64),
}
"""The types of columns that a summary does not have, where they are not Float64."""

_OPERATOR_NUMBER: Final = r", (?:op_id|(?:stashed )?seq) ?= ?-?\d+"
"""The numbers that PyTorch's ``emit_nvtx`` adds to the name of an operator."""
_NO_STEPS: Final = "no steps: the trace has no step markers"
_POWERS: Final = 1 << np.arange(63, dtype=np.int64)


def transfers(trace: Trace, by: Key = "direction") -> Result:
    """Return one row per direction, kind of host memory and key (``by``).

    Columns:

    ``operator``, ``layer``, ``range``, ``call``, ``step``, ``size`` or ``kind``
        The key: see :func:`_key_of`.
    ``direction``, ``host_memory``
        See :func:`traceana.timeline.copies.copies`.
    ``count``, ``bytes``, ``mean_bytes`` (rounded down), ``time_ns``, ``share``
        Number, sizes, summed durations and their share of the time of all copies. Sizes are null
        unless the trace records the size of every copy of the row.
    ``exposed_ns``
        Time in which a copy of the row ran and no kernel ran on its device, from any step or
        stream: :func:`traceana.columns.intervals.exposed`. The total counts copies that overlap
        once, and may be less than the sum of the rows. Null where the device is unknown.
    ``bytes_per_s``, ``median_bytes_per_s``
        Bytes over summed time; the median bandwidth of single copies, without copies of 0 ns.
    ``link``, ``peak_bytes_per_s``, ``peak_share``
        Link, its unidirectional peak (:func:`traceana.timeline.copies.link_peaks`), and
        ``bytes_per_s`` over it. Null where unknown, or different on the devices of the row.
    ``blocking``
        Whether the copying calls block the host: ``yes``, ``no``, ``possibly`` (pageable memory in
        an asynchronous call) or ``mixed``; null where no call is recorded.
    ``synchronous``, ``staged``, ``asynchronous``
        Number of copies of each kind; the kind of the rest of ``count`` is unknown.
    ``step_count``, ``step_bytes``, ``step_ns``, ``step_share``
        Means over the measured steps of the copies they launched (bytes and time rounded down), and
        the share of the steps' wall time, times the devices they used, in which a copy of the row
        ran (:func:`traceana.timeline.steps.device_windows`): at most 1. By step, of the row's step.
    ``small``
        Whether the row has a hundred copies or more, below 64 KiB on average.

    Most time first; steps and sizes in their order.

    A summary has ``count``, ``bytes`` where they are printed, and ``time_ns`` by direction; what
    needs the times of single copies is null.
    """
    if trace.is_summary:
        return _printed(trace, by)
    each = copies(trace)
    no_steps = by == "step" and trace.tables.steps.is_empty() and each.height > 0
    if no_steps:
        each = each.clear()
    key = _key_of(trace, each, by)
    keys: tuple[str, ...] = _KEYS
    if key is not None:
        each, keys = each.with_columns(key), (by, *_KEYS)
    peaks = link_peaks(trace.tables.devices)
    each = each.join(peaks, on=["rank", "device", "direction"], how="left", nulls_equal=True)
    kernels = computing(trace.whole.tables.activities)
    frame = (
        each.group_by(keys)
        .agg(_figures(measured_steps(trace).rows))
        .join(exposed(each, kernels, keys), on=keys, how="left", nulls_equal=True)
    )
    frame = _with_step_share(trace, _per_step(trace, with_share(_rates(frame)), by), each, keys)
    frame = _ordered(frame, by)
    frame = frame.select(*keys[:-2], *COLUMNS).with_columns(pl.col(pl.Categorical).cast(pl.String))
    notes = (_NO_STEPS,) if no_steps else _notes(trace, each, frame)
    return Result(frame, _totals(frame, each, kernels), notes)


def _printed(trace: Trace, by: Key) -> Result:
    """Return the copies of a summary by direction and host memory."""
    if by != "direction":
        needs_timeline(trace, f"transfers by {by}")
    each = summaries.copies(trace)
    timed = each.filter(pl.col("total_ns").is_not_null()).select(_KEYS).unique()
    copied = (
        summaries.added(each, *_KEYS)
        .rename({"calls": "count"})
        .join(timed.with_columns(timed=True), on=_KEYS, how="left", nulls_equal=True)
        .with_columns(pl.when("timed").then("time_ns").alias("time_ns"))
        .drop("timed")
    )
    unknown = [column for column in COLUMNS if column not in (*_KEYS, "small", "blocking")]
    frame = with_share(copied).with_columns(
        pl.lit(None, _TYPES.get(column, pl.Float64)).alias(column)
        for column in unknown
        if column not in copied.columns and column != "share"
    )
    frame = _ordered(_rates(frame), by).select(COLUMNS)
    notes = summaries.notes(trace) if frame.height else ("no copies in the summary",)
    known = [name for name in ("bytes", "time_ns") if not frame[name].null_count()]
    return Result(frame, sums(frame, "count", *(known if frame.height else ["time_ns"])), notes)


def _key_of(trace: Trace, copies: pl.DataFrame, by: Key) -> pl.Series | None:
    """Return the key of each of ``copies``, named as the column; None for ``by="direction"``.

    Texts are categorical. ``step`` is the step's number; ``size`` the largest power of two up to
    the copy's bytes, 0 for an empty copy. Null where the trace does not record it, except for
    layers, which have the names of :mod:`traceana.analyze.layers`.
    """
    match by:
        case "direction":
            return None
        case "operator":
            return trace.tables.ops["name"].gather(copies["op"]).alias(by)
        case "range":
            texts = trace.tables.ranges["text"].gather(copies["range"]).cast(pl.String)
            return texts.str.replace_all(_OPERATOR_NUMBER, "").cast(pl.Categorical).alias(by)
        case "call":
            return trace.tables.calls["name"].gather(copies["call"]).alias(by)
        case "layer":
            named = layer_keys(trace.tables.layers, by="layer", depth=None)["layer"].cast(
                pl.Categorical
            )
            return named.gather(copies["layer"]).fill_null(OUTSIDE).alias(by)
        case "step":
            return trace.tables.steps["number"].gather(copies["step_row"]).alias(by)
        case "size":
            return _power_of_two(copies["bytes"]).alias(by)
        case "kind":
            below = (pl.col("bytes") < SMALL_COPY_BYTES).fill_null(value=False)
            many = below.sum().over(*_KEYS) >= MANY_COPIES
            synchronous = (pl.col("blocking") == SYNCHRONOUS).fill_null(value=False)
            return copies.select(
                pl.when(below & many)
                .then(pl.lit("small"))
                .when(synchronous)
                .then(pl.lit("blocking"))
                .otherwise(pl.lit("other"))
                .alias(by)
            ).to_series()


def _power_of_two(sizes: pl.Series) -> pl.Series:
    known = sizes.fill_null(0).to_numpy()
    floor = np.where(known > 0, _POWERS[np.searchsorted(_POWERS, known, side="right") - 1], 0)
    return pl.select(pl.when(sizes.is_not_null()).then(pl.Series(floor))).to_series()


def _figures(measured: Sequence[int]) -> list[pl.Expr]:
    duration, size = pl.col("duration"), pl.col("bytes")
    in_steps = pl.col("step_row").is_in(measured)
    own = pl.when(duration > 0).then(size * 1e9 / duration)
    return [
        pl.len().cast(pl.Int64).alias("count"),
        _all_or_null(size).alias("bytes"),
        duration.sum().alias("time_ns"),
        own.median().alias("median_bytes_per_s"),
        *(_one_or_null(pl.col(column)) for column in ("link", "peak_bytes_per_s")),
        *((pl.col("blocking") == kind).sum().cast(pl.Int64).alias(kind) for kind in BLOCKING),
        in_steps.sum().cast(pl.Int64).alias("step_count"),
        _all_or_null(size.filter(in_steps)).alias("step_bytes"),
        duration.filter(in_steps).sum().alias("step_ns"),
    ]


def _rates(frame: pl.DataFrame) -> pl.DataFrame:
    count, time_ns = pl.col("count"), pl.col("time_ns")
    known = pl.sum_horizontal(BLOCKING)
    return (
        frame.with_columns(
            (pl.col("bytes") // count).alias("mean_bytes"),
            pl.when(time_ns > 0).then(pl.col("bytes") * 1e9 / time_ns).alias("bytes_per_s"),
            pl.when(known == 0)
            .then(None)
            .when(known == pl.col(SYNCHRONOUS))
            .then(pl.lit("yes"))
            .when(known == pl.col(STAGED))
            .then(pl.lit("possibly"))
            .when(known == pl.col(ASYNCHRONOUS))
            .then(pl.lit("no"))
            .otherwise(pl.lit("mixed"))
            .alias("blocking"),
        )
        .with_columns(
            (pl.col("bytes_per_s") / pl.col("peak_bytes_per_s")).alias("peak_share"),
            ((count >= MANY_COPIES) & (pl.col("mean_bytes") < SMALL_COPY_BYTES)).alias("small"),
        )
        .with_columns(pl.col("small").fill_null(value=False))
    )


def _per_step(trace: Trace, frame: pl.DataFrame, by: Key) -> pl.DataFrame:
    rows = measured_steps(trace).rows
    time = pl.DataFrame({"step": trace.tables.steps["number"], "available_ns": available_ns(trace)})
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
        of_all = int(time["available_ns"].gather(list(rows)).sum()) if rows else None
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
    """Return ``frame`` with ``step_share``: the share of the steps' windows in which copies ran."""
    windows, known = device_windows(trace), each.drop_nulls("device")
    if "step" in keys:
        ran = _ran_in_own_step(windows, known, keys)
    else:
        measured = windows.filter(pl.col("step").is_in(measured_steps(trace).rows))
        groups = known.partition_by(keys, maintain_order=True)
        ran = pl.concat([known.select(keys).clear(), *(one.select(keys).head(1) for one in groups)])
        times = [int(Busy.of(one).within(measured).sum()) for one in groups]
        ran = ran.with_columns(pl.Series("ran_ns", times, dtype=pl.Int64))
    available = pl.col("available_ns")
    return frame.join(ran, on=keys, how="left", nulls_equal=True).with_columns(
        pl.when(available > 0).then(pl.col("ran_ns").fill_null(0) / available).alias("step_share")
    )


def _ran_in_own_step(
    windows: pl.DataFrame, copied: pl.DataFrame, keys: tuple[str, ...]
) -> pl.DataFrame:
    """Return ``ran_ns`` by ``keys``: the time in the windows of the row's step with a copy.

    All rows at once: a trace may have thousands of steps.
    """
    place = [*keys, *PER_DEVICE]
    places = copied.select(place).unique(maintain_order=True).with_row_index("place")
    of_place = (pl.lit(None, pl.Int32).alias("rank"), pl.col("place").alias("device"), "start")
    numbered = copied.join(places, on=place, nulls_equal=True)
    of_step = (
        copied.select(*keys, "step_row")
        .unique()
        .join(windows, left_on="step_row", right_on="step")
        .join(places, on=place, nulls_equal=True)
    )
    busy = Busy.of(numbered.select(*of_place, "duration"))
    ran = busy.within(of_step.select(*of_place, "end")).alias("ran_ns")
    return of_step.with_columns(ran).group_by(keys).agg(pl.col("ran_ns").sum())


def _ordered(frame: pl.DataFrame, by: Key) -> pl.DataFrame:
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
    # A sum over some of the copies would look like the sum over all.
    return pl.when(column.is_not_null().all()).then(column.sum())


def _one_or_null(column: pl.Expr) -> pl.Expr:
    return pl.when(column.n_unique() == 1).then(column.first())


def _notes(trace: Trace, each: pl.DataFrame, frame: pl.DataFrame) -> tuple[str, ...]:
    """Return the notes on ``frame``, the result for the copies ``each``."""
    by_kernels = _copy_kernels(trace)
    if each.is_empty():
        if by_kernels:
            return ("no copies with a record of their own", *by_kernels)
        return ("no copies in the trace or the selection",)
    found = [
        *by_kernels,
        *_sizes(each),
        *_without_key(each, frame),
        *_blocking_notes(each),
        *_link(trace, each, frame),
        *_exposed_notes(trace, each),
        *_step_notes(trace, frame),
    ]
    return tuple(found)


def _step_notes(trace: Trace, frame: pl.DataFrame) -> list[str]:
    """Return the steps that columns per step are averages of; tables by step and size have none."""
    if trace.tables.steps.is_empty() or frame.columns[0] in ("step", "size"):
        return []
    return [f"columns per step: {note}" for note in measured_steps(trace).notes]


def _copy_kernels(trace: Trace) -> list[str]:
    """Return the number and time of kernels that copy, which other commands count as kernels."""
    if trace.on_cpu:
        return []
    copy = trace.tables.names["category"] == "memcpy"
    kernels = kernels_of(trace, "name_id", "duration")
    times = kernels.filter(copy.gather(kernels["name_id"]))["duration"]
    if times.is_empty():
        return []
    took = f"{len(times):,} in {int(times.sum()) / 1e6:,.4g} ms"
    return [f"copies by kernels: {took}, counted as kernels and not in this table"]


def _sizes(each: pl.DataFrame) -> list[str]:
    found = []
    missing = each["bytes"].null_count()
    if missing:
        found.append(
            f"copy size not recorded: {missing:,} of {each.height:,} copies; bytes and bandwidth "
            "unknown in rows with such copies"
        )
    instant = each.filter(pl.col("duration") == 0).height
    if instant:
        found.append(
            f"copies of 0 ns: {instant:,} of {each.height:,}, excluded from the median bandwidth"
        )
    return found


def _without_key(each: pl.DataFrame, frame: pl.DataFrame) -> list[str]:
    by = frame.columns[0]
    if by == "direction" or not frame[by].null_count():
        return []
    missing = int(frame.filter(pl.col(by).is_null())["count"].sum())
    return [f"no {by} recorded: {missing:,} of {each.height:,} copies"]


def _blocking_notes(each: pl.DataFrame) -> list[str]:
    unknown = each["blocking"].null_count()
    if not unknown:
        return []
    of = f"blocking unknown: {unknown:,} of {each.height:,} copies"
    if each["call"].null_count() == unknown:
        return [f"{of}, no call recorded"]
    return [f"{of}, call or kind of memory not recorded"]


def _link(trace: Trace, each: pl.DataFrame, frame: pl.DataFrame) -> list[str]:
    over_links = each.filter(pl.col("direction").is_in(HOST_DIRECTIONS))
    missing = over_links.filter(pl.col("link").is_null())
    found = []
    if missing.height:
        used = missing.select("rank", "device").unique()
        devices = trace.tables.devices.join(used, on=["rank", "device"], nulls_equal=True)
        names = devices["name"].drop_nulls().unique().sort()
        whose = ", ".join(names) if len(names) else "device name not recorded"
        found.append(f"host link peak unknown: {whose}")
    if missing.height < over_links.height:
        found.append("link peak: datasheet unidirectional peak; negotiated PCIe link not recorded")
    in_cache = (pl.col("link") == DEVICE_MEMORY) & (pl.col("peak_share") > 1)
    if frame.select(in_cache.any()).item():
        found.append(
            "above 100 % of the device memory's peak: small copies can stay in the L2 cache"
        )
    if (each["direction"] == "PtoP").any():
        found.append("PtoP link peak unknown: links between devices not recorded")
    return found


def _exposed_notes(trace: Trace, each: pl.DataFrame) -> list[str]:
    found = []
    nowhere = each["device"].null_count()
    if nowhere:
        found.append(f"device not recorded: {nowhere:,} copies, excluded from exposed time")
    if (trace.whole.tables.activities["kind"] == "graph").any():
        found.append("CUDA graphs count as kernels: their nodes are not recorded")
    return found
