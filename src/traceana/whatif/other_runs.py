"""Factors of work from other runs: another batch size, timed convolution algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.convolutions import each_convolution
from traceana.analyze.executed_flops import SHAPE
from traceana.errors import NoSuchSelectionError
from traceana.settings import BATCH_SPREAD, FIXED_NS, RESIDENT_THREADS
from traceana.timeline.steps import measured
from traceana.trace.work import labels
from traceana.whatif.other_hardware import Factors

if TYPE_CHECKING:
    from traceana.columns.nesting import Flags
    from traceana.timeline.threads import Floats
    from traceana.trace import Trace

_WORK_KEY: Final = ["layer", "direction", "class"]


def with_batch(
    trace: Trace, chosen: Flags, ratio: float, recordings: Sequence[tuple[float, str]] = ()
) -> Factors:
    """Return the factors of the ``chosen`` work with ``ratio`` times as many examples in a batch.

    With ``recordings``, of other ratios, the time a step of each layer, pass and class goes in a
    line with the batch: one end is the line of least squares through all recordings, the other
    that through the two largest batches. Without them:

    Work of the forward and backward passes and copies from the host go with the batch, but for a
    fixed part of each kernel (``fixed_ns``). A convolution or GEMM takes no more time as long as
    all of its blocks are resident at once, by its registers, shared memory and threads, which is
    one end of the interval; a GEMM also reads weights that stay. The optimizer and collectives,
    which go with the weights, stay as they are. Raises
    :class:`~traceana.errors.NoSuchSelectionError` where no work goes with the batch, and what
    :func:`traceana.open` raises of the recordings.
    """
    activities = trace.tables.activities
    if recordings:
        return _fitted_factors(trace, chosen, ratio, recordings)
    direction = activities["direction"].cast(pl.String)
    copied = activities["copy_kind"].cast(pl.String)
    fixed = (
        (direction == "optimizer").fill_null(value=False)
        | activities["collective"].is_not_null()
        | activities["kind"].is_in(["sync", "memset"])
        | copied.is_in(["DtoH", "PtoP"]).fill_null(value=False)
    )
    rows = np.flatnonzero(chosen & ~fixed.to_numpy())
    if not len(rows):
        raise NoSuchSelectionError("no work in the trace that goes with the batch")
    is_kernel = (activities["kind"] == "kernel").to_numpy()[rows]
    duration = np.maximum(activities["duration"].to_numpy()[rows], 1)
    variable_share = np.where(is_kernel, np.clip(1 - FIXED_NS / duration, 0, 1), 1.0)
    by_work = 1 + (ratio - 1) * variable_share
    spread = BATCH_SPREAD * np.abs(ratio - 1) * variable_share
    least, most = by_work - spread, by_work + spread
    category = labels(trace.tables, "category")["category"][rows].cast(pl.String)
    is_product = category.is_in(["conv", "gemm"]).fill_null(value=False).to_numpy()
    waves = np.nan_to_num(_waves(trace)[rows], nan=1.0)
    # What is not resident at once comes in turns.
    resident = np.maximum(waves * ratio, 1) / np.maximum(waves, 1)
    least = np.where(
        is_product, np.minimum(least, np.maximum(resident, 1 if ratio > 1 else 0)), least
    )
    most = np.where(is_product, np.maximum(most, resident), most)
    return Factors.of_rows(trace, rows, least, most)


def _fitted_factors(
    trace: Trace, chosen: Flags, ratio: float, recordings: Sequence[tuple[float, str]]
) -> Factors:
    from traceana.opening import open_trace

    times = [(1.0, _times_of_work(trace))]
    times += [(batch_ratios, _times_of_work(open_trace(path))) for batch_ratios, path in recordings]
    names = [f"at_{number}" for number in range(len(times))]
    joined = times[0][1].rename({"time_ns": names[0]})
    for name, (_, other) in zip(names[1:], times[1:], strict=True):
        joined = joined.join(other.rename({"time_ns": name}), on=_WORK_KEY, nulls_equal=True)
    if joined.is_empty():
        raise NoSuchSelectionError("no layer or class of the trace is in all of the recordings")
    batch_ratios = np.array([batch_ratio for batch_ratio, _ in times])
    measured = joined.select(names).to_numpy()
    largest_two = np.argsort(batch_ratios)[-2:]
    lines = [
        np.polyfit(batch_ratios[rows], measured[:, rows].T, 1)
        for rows in (np.arange(len(batch_ratios)), largest_two)
    ]
    # No work takes less time with more examples than none.
    factors_of_lines = [
        np.maximum(slope * ratio + level, 0) / measured[:, 0] for slope, level in lines
    ]
    factors = joined.select(_WORK_KEY).with_columns(
        pl.Series("least", np.minimum(*factors_of_lines)),
        pl.Series("most", np.maximum(*factors_of_lines)),
    )
    rows = (
        _work_keys(trace)
        .with_row_index("row")
        .filter(pl.Series(chosen))
        .join(factors, on=_WORK_KEY, nulls_equal=True)
    )
    if rows.is_empty():
        raise NoSuchSelectionError("no selected work is in all of the recordings")
    factors_of_rows = (rows[end].to_numpy() for end in ("least", "most"))
    return Factors.of_rows(trace, rows["row"].cast(pl.Int64).to_numpy(), *factors_of_rows)


def _work_keys(trace: Trace) -> pl.DataFrame:
    """Return the :data:`_WORK_KEY` of each activity."""
    activities = trace.tables.activities
    return pl.DataFrame(
        {
            "layer": trace.tables.layers["path"].gather(activities["layer"]),
            "direction": activities["direction"].cast(pl.String),
            "class": labels(trace.tables, "category")["category"].cast(pl.String),
        }
    )


def _times_of_work(trace: Trace) -> pl.DataFrame:
    """Return ``time_ns`` by :data:`_WORK_KEY`: the mean a measured step, or of all work."""
    part = measured(trace)
    steps = max(part.tables.steps.height, 1) if part is not trace else 1
    return (
        _work_keys(part)
        .with_columns(part.tables.activities["duration"])
        .filter(part.tables.activities["kind"] != "sync")
        .group_by(_WORK_KEY)
        .agg((pl.col("duration").sum() / steps).alias("time_ns"))
        .filter(pl.col("time_ns") > 0)
    )


_REGISTERS: Final = 65_536
_MOST_BLOCKS: Final = 32
_SHARED_BYTES: Final = 100 * 1024
"""Registers, blocks and shared memory of a multiprocessor: NVIDIA's from compute capability 7.0."""


def _waves(trace: Trace) -> Floats:
    """Return the blocks of each launch over those that are resident on its device at once; NaN
    where not known."""
    axes = "xyz"
    grid, block = (
        pl.reduce(
            lambda first_extent, other: first_extent * other,
            [pl.col(f"{what}_{axis}") for axis in axes],
        )
        for what in ("grid", "block")
    )
    sms = trace.tables.devices.select("rank", "device", "multiprocessors").unique(
        ["rank", "device"], keep="first"
    )
    threads = block.cast(pl.Float64).clip(1)
    resident = pl.min_horizontal(
        pl.lit(float(_MOST_BLOCKS)),
        RESIDENT_THREADS / threads,
        _REGISTERS / (pl.col("registers").fill_null(1).clip(1) * threads),
        _SHARED_BYTES / pl.col("shared_memory").fill_null(1).clip(1),
    ).clip(1)
    sizes = (f"{what}_{axis}" for what in ("grid", "block") for axis in axes)
    return (
        trace.tables.activities.select("rank", "device", *sizes, "registers", "shared_memory")
        .join(sms, on=["rank", "device"], how="left", nulls_equal=True, maintain_order="left")
        .select(
            (grid.cast(pl.Float64) / (pl.col("multiprocessors") * resident.floor())).fill_null(
                np.nan
            )
        )
        .to_series()
        .to_numpy()
    )


_EXTENTS: Final = [name for name in SHAPE if name not in ("stride", "element_bytes")]
"""What a convolution is known by. Input and output determine the stride, which PyTorch does not
always record."""
_KEY: Final = [*_EXTENTS, "direction"]
_TIME_WITH_LAYOUT: Final = pl.col("time_ns") + pl.col("layout_ns")


def as_in(trace: Trace, chosen: Flags, source: str) -> Factors:
    """Return the factors of the ``chosen`` convolutions if they take as long as in ``source``.

    ``source`` is a trace: then from the lower to the upper quartile of those of the same shape and
    direction, layout changes included. Or it is a file of timed algorithms, ``docs/studies.md``:
    then the quartiles of the runs of the fastest algorithm for the shape and direction, or with
    ``ALGORITHM@`` before the file of that one, reorders included. Raises
    :class:`~traceana.errors.NoSuchSelectionError` where no shape is in both, and what
    :func:`traceana.open` raises.
    """
    times_in_source = _times_of_convolutions(source)
    factors_of_episodes = (
        _known_convolutions(trace)
        .filter(_TIME_WITH_LAYOUT > 0)
        .join(times_in_source, on=_KEY, how="inner")
        .select("episode", pl.col("least") / _TIME_WITH_LAYOUT, pl.col("most") / _TIME_WITH_LAYOUT)
    )
    episodes = trace.tables.activities.select("episode").with_row_index("row")
    factors_of_rows = (
        episodes.filter(pl.Series(chosen))
        .join(factors_of_episodes, on="episode", how="inner")
        .drop_nulls("least")
    )
    if factors_of_rows.is_empty():
        raise NoSuchSelectionError(f"no selected convolution has a shape of one in {source}")
    factor_ends = (factors_of_rows[end].to_numpy() for end in ("least", "most"))
    return Factors.of_rows(trace, factors_of_rows["row"].cast(pl.Int64).to_numpy(), *factor_ends)


def _known_convolutions(trace: Trace) -> pl.DataFrame:
    """Return the convolutions of ``trace`` whose shape is known, without trials; a dilation that is
    not recorded is 1."""
    return (
        each_convolution(trace)
        .filter(~pl.col("tried"), pl.col("batch").is_not_null())
        .with_columns(
            pl.col("direction").cast(pl.String),
            pl.col("dilation").fill_null(pl.col("window").list.eval(pl.element() * 0 + 1)),
        )
    )


def _times_of_convolutions(source: str) -> pl.DataFrame:
    """Return ``least`` and ``most`` (ns) by :data:`_KEY`."""
    from traceana.flops.timed_algorithms import is_study, read
    from traceana.opening import open_trace
    from traceana.trace.taxonomy import ALGORITHMS

    algorithm, _, path = source.rpartition("@")
    if algorithm not in ("", *ALGORITHMS):
        algorithm, path = "", source
    if not is_study(path):
        return (
            _known_convolutions(open_trace(path))
            .group_by(_KEY)
            .agg(
                _TIME_WITH_LAYOUT.quantile(0.25, "linear").alias("least"),
                _TIME_WITH_LAYOUT.quantile(0.75, "linear").alias("most"),
            )
        )
    study = read(path)
    layers = {layer.path: layer for layer in study.layers}
    rows = []
    for measurement in study.measurements:
        if measurement.times_ns and algorithm in ("", measurement.algorithm):
            shape = layers[measurement.layer].convolution(measurement.batch)
            least, median, most = np.quantile(measurement.times_ns, [0.25, 0.5, 0.75])
            reorder = float(np.median(measurement.reorder_ns or (0,)))
            rows.append(
                {name: getattr(shape, name) for name in _EXTENTS}
                | {"direction": measurement.direction, "median": median}
                | {"least": least + reorder, "most": most + reorder}
            )
    schema = {name: SHAPE[name] for name in _EXTENTS} | {
        "direction": pl.String, "median": pl.Float64, "least": pl.Float64, "most": pl.Float64
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row").sort("median").unique(_KEY, keep="first")
