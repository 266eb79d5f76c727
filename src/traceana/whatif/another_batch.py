"""Factors of work with another batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.classes import category_of
from traceana.analyze.selection import measured
from traceana.errors import NoSuchSelectionError
from traceana.whatif.factors import Factors

if TYPE_CHECKING:
    from traceana.enrich.nesting import Flags
    from traceana.trace import Trace
    from traceana.whatif.factors import Floats

_KEY: Final = ["layer", "direction", "class"]
_THREADS: Final = 2048
"""Threads that are resident on a multiprocessor at most; on some GPUs 1,024 or 1,536."""


def with_batch(
    trace: Trace, chosen: Flags, ratio: float, recordings: Sequence[tuple[float, str]] = ()
) -> Factors:
    """Return the factors of the ``chosen`` work with ``ratio`` times as many examples in a batch.

    With ``recordings``, of other ratios, the time a step of each layer, pass and class goes in a
    line with the batch: one end is the line of least squares through all recordings, the other
    that through the two largest batches. Without them:

    Work of the forward and backward passes and copies from the host go with the batch; a kernel
    takes no more time as long as all of its blocks are resident at once (at most 2,048 threads of a
    multiprocessor), which is one end of the interval; without grid or device that is the time
    before. The optimizer and collectives, which
    go with the weights, stay as they are. Raises
    :class:`~traceana.errors.NoSuchSelectionError` where no work goes with the batch, and what
    :func:`traceana.open` raises of the recordings.
    """
    activities = trace.activities
    if recordings:
        return _fitted(trace, chosen, ratio, recordings)
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
    room = _room(trace)[rows]
    # Of one block or more: what is not resident at once comes in turns.
    before, after = np.maximum(room, 1), np.maximum(room * ratio, 1)
    is_kernel = (activities["kind"] == "kernel").to_numpy()[rows]
    unknown = np.where(is_kernel, 1.0, ratio)
    resident = np.where(np.isfinite(room), after / before, unknown)
    return Factors.of_rows(trace, rows, np.minimum(resident, ratio), np.maximum(resident, ratio))


def _fitted(
    trace: Trace, chosen: Flags, ratio: float, recordings: Sequence[tuple[float, str]]
) -> Factors:
    from traceana.opening import open_trace

    times = [(1.0, _times(trace))]
    times += [(at, _times(open_trace(path))) for at, path in recordings]
    names = [f"at_{number}" for number in range(len(times))]
    joined = times[0][1].rename({"time_ns": names[0]})
    for name, (_, other) in zip(names[1:], times[1:], strict=True):
        joined = joined.join(other.rename({"time_ns": name}), on=_KEY, nulls_equal=True)
    if joined.is_empty():
        raise NoSuchSelectionError("no layer or class of the trace is in all of the recordings")
    at = np.array([one for one, _ in times])
    measured = joined.select(names).to_numpy()
    last = np.argsort(at)[-2:]
    lines = [np.polyfit(at[rows], measured[:, rows].T, 1) for rows in (np.arange(len(at)), last)]
    # No work takes less time with more examples than none.
    ends = [np.maximum(slope * ratio + level, 0) / measured[:, 0] for slope, level in lines]
    factors = joined.select(_KEY).with_columns(
        pl.Series("least", np.minimum(*ends)), pl.Series("most", np.maximum(*ends))
    )
    rows = (
        _keyed(trace)
        .with_row_index("row")
        .filter(pl.Series(chosen))
        .join(factors, on=_KEY, nulls_equal=True)
    )
    if rows.is_empty():
        raise NoSuchSelectionError("no selected work is in all of the recordings")
    found = (rows[end].to_numpy() for end in ("least", "most"))
    return Factors.of_rows(trace, rows["row"].cast(pl.Int64).to_numpy(), *found)


def _keyed(trace: Trace) -> pl.DataFrame:
    """Return the :data:`_KEY` of each activity."""
    activities = trace.activities
    return pl.DataFrame(
        {
            "layer": trace.layers["path"].gather(activities["layer"]),
            "direction": activities["direction"].cast(pl.String),
            "class": category_of(activities, trace).cast(pl.String),
        }
    )


def _times(trace: Trace) -> pl.DataFrame:
    """Return ``time_ns``, the mean a measured step or the sum without steps, by :data:`_KEY`."""
    part = measured(trace)
    steps = max(part.steps.height, 1) if part is not trace else 1
    return (
        _keyed(part)
        .with_columns(part.activities["duration"])
        .filter(part.activities["kind"] != "sync")
        .group_by(_KEY)
        .agg((pl.col("duration").sum() / steps).alias("time_ns"))
        .filter(pl.col("time_ns") > 0)
    )


def _room(trace: Trace) -> Floats:
    """Return the threads of each launch over those that fit on its device at once; NaN where not
    known."""
    axes = "xyz"
    product = pl.lit(1.0)
    for column in (f"{what}_{axis}" for what in ("grid", "block") for axis in axes):
        product = product * pl.col(column)
    sms = trace.devices.select("rank", "device", "multiprocessors").unique(
        ["rank", "device"], keep="first"
    )
    return (
        trace.activities.select(
            "rank", "device", *(f"{what}_{axis}" for what in ("grid", "block") for axis in axes)
        )
        .join(sms, on=["rank", "device"], how="left", nulls_equal=True, maintain_order="left")
        .select((product / (pl.col("multiprocessors") * _THREADS)).fill_null(np.nan))
        .to_series()
        .to_numpy()
    )
