"""Factors of work with another batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.errors import NoSuchSelectionError
from traceana.whatif.factors import Factors

if TYPE_CHECKING:
    from traceana.enrich.nesting import Flags
    from traceana.trace import Trace
    from traceana.whatif.factors import Floats

_THREADS: Final = 2048
"""Threads that are resident on a multiprocessor at most; on some GPUs 1,024 or 1,536."""


def with_batch(trace: Trace, chosen: Flags, ratio: float) -> Factors:
    """Return the factors of the ``chosen`` work with ``ratio`` times as many examples in a batch.

    Work of the forward and backward passes and copies from the host go with the batch; a kernel
    takes no more time as long as all of its blocks are resident at once (at most 2,048 threads of a
    multiprocessor), which is one end of the interval; without grid or device that is the time
    before. The optimizer and collectives, which
    go with the weights, stay as they are. Raises
    :class:`~traceana.errors.NoSuchSelectionError` where no work goes with the batch.
    """
    activities = trace.activities
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
