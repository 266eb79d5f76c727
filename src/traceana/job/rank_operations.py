"""The operations of a rank: those of a job's table, else the time of each step by type of work.

A recording of a GPU has thousands of kernels in a step. For comparing ranks they are one operation
for each pass between two collectives, with the time of the host and the input. The ends of a rank's
collectives divide its steps into pieces; ranks wait for each other in some of them
(:mod:`traceana.job.segments`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.collective_ranks import BETWEEN_TWO, collectives_of
from traceana.columns.intervals import Busy
from traceana.timeline import operations
from traceana.timeline.idle import idle_time
from traceana.timeline.idle_gaps import CAUSES, DATA_LOADER
from traceana.timeline.operations import OPERATIONS
from traceana.timeline.steps import device_windows
from traceana.timeline.work import work
from traceana.trace import per_small_trace

if TYPE_CHECKING:
    from traceana.trace import Trace

PASSES: Final = ("forward", "backward", "optimizer")
OTHER, INPUT, HOST = "other work", "input", "host"
TYPES: Final = (INPUT, HOST, *PASSES, OTHER)
"""Types of work of a rank, in the order in which a piece of a step is replayed."""
UNNAMED: Final = "collectives"
"""The type of a collective without a name."""


def operations_of(trace: Trace) -> pl.DataFrame:
    """Return the operations of ``trace``, of one rank, in the columns ``OPERATIONS``.

    Without a table of operations there is one for each step, piece and type of work: the passes,
    other work, idle time while the input is awaited, other idle time, and the exposed part of the
    collective that ends the piece, with its name as ``collective``. ``sequence`` is the piece;
    stage and start are null. Operations without time are left out.
    """
    if trace.tables.operations.is_empty():
        return _by_type(trace)
    return operations.operations_of(trace).select(*OPERATIONS)


@per_small_trace
def with_pieces(trace: Trace) -> pl.DataFrame:
    """Return :func:`~traceana.analyze.collective_ranks.collectives_of` with ``piece``, ``ends_in``
    and ``exposed_ns``.

    ``piece`` is the position of the collective among the rank's collectives by end, also the
    number of the piece that it ends; null for a rank of several devices, whose steps are whole.
    ``ends_in`` is the number of the step in whose window it ends; else null. ``exposed_ns`` is the
    time in the piece in which collectives, but no other work ran.
    """
    each = collectives_of(trace)
    end = (each["start_ns"] + each["time_ns"]).to_numpy()
    windows = device_windows(trace).sort("start")
    of_one = windows["device"].n_unique() == each["device"].n_unique() == 1
    if not of_one or (windows["start"] < windows["end"].shift(1)).any():
        nothing = pl.lit(None, pl.Int64)
        return each.with_columns(nothing.alias(name) for name in ("piece", "ends_in", "exposed_ns"))
    order = np.argsort(end, kind="stable")
    piece = np.empty(len(end), dtype=np.int64)
    piece[order] = np.arange(len(end))
    # A collective that ends with the window of a step belongs to it.
    before = np.searchsorted(windows["start"].to_numpy(), end, side="left") - 1
    inside = (before >= 0) & (end <= windows["end"].to_numpy()[before])
    number = trace.tables.steps["number"].gather(windows["step"])
    every, others = _busy(trace)
    pieces = pl.DataFrame(
        {
            "rank": pl.repeat(windows["rank"][0], len(end), dtype=pl.Int32, eager=True),
            "device": pl.repeat(windows["device"][0], len(end), dtype=pl.Int32, eager=True),
            "start": np.concatenate(([0], end[order][:-1])),
            "end": end[order],
        }
    )
    exposed = every.within(pieces) - others.within(pieces)
    return each.with_columns(
        pl.Series("piece", piece),
        pl.when(pl.Series(inside)).then(number.gather(before.clip(min=0))).alias("ends_in"),
        exposed.gather(piece).alias("exposed_ns"),
    )


def pass_limits(trace: Trace) -> pl.DataFrame:
    """Return ``step``, ``first_backward_ns``, ``last_forward_ns`` and ``last_backward_ns``: when
    the first or last work of a pass begins in the windows of a step. Empty without sends and
    receives, as only a pipeline has phases."""
    limits = ("first_backward_ns", "last_forward_ns", "last_backward_ns")
    if not (with_pieces(trace)["collective"] == BETWEEN_TWO).any():
        return pl.DataFrame(schema=dict.fromkeys(("step", *limits), pl.Int64))
    of_pass = pl.when(pl.col("category") == "pass").then(pl.col("part").cast(pl.String))
    rows = work(trace, "start", "direction", "category", "part").select(
        "start", pl.coalesce(of_pass, pl.col("direction").cast(pl.String)).alias("pass")
    )
    windows = device_windows(trace)
    number = trace.tables.steps["number"].gather(windows["step"]).alias("step")
    windows = windows.select(number, pl.col("start").alias("opens"), "end").sort("opens")
    start, direction = pl.col("start"), pl.col("pass")
    return (
        rows.filter(direction.is_in(["forward", "backward"]))
        .sort("start")
        .join_asof(windows, left_on="start", right_on="opens")
        .filter(start < pl.col("end"))
        .group_by("step")
        .agg(
            start.filter(direction == "backward").min().alias("first_backward_ns"),
            start.filter(direction == "forward").max().alias("last_forward_ns"),
            start.filter(direction == "backward").max().alias("last_backward_ns"),
        )
    )


def _by_type(trace: Trace) -> pl.DataFrame:
    windows = device_windows(trace)
    if windows.is_empty():
        return pl.DataFrame(schema=OPERATIONS)
    collectives = with_pieces(trace).drop_nulls("piece").sort("piece")
    pieces = _pieces(windows, collectives)
    rows = work(trace, "rank", "device", "start", "duration", "direction", "category").filter(
        pl.col("category").ne_missing("collective")
    )
    direction = rows["direction"].cast(pl.String)
    times: dict[str, pl.Series] = {}
    busy, before = Busy.of(rows.clear()), pl.zeros(pieces.height, dtype=pl.Int64, eager=True)
    for name in PASSES:
        busy = busy.with_also(rows.filter(direction == name))
        together = busy.within(pieces)
        times[name], before = together - before, together
    every, others = _busy(trace)
    all_busy, computing = every.within(pieces), others.within(pieces)
    times[OTHER] = computing - before
    gaps = idle_time(trace).gaps.with_columns(duration=pl.col("end") - pl.col("start"))
    is_input = gaps["cause"].cast(pl.String) == CAUSES[DATA_LOADER]
    times[INPUT] = Busy.of(gaps.filter(is_input)).within(pieces)
    times[HOST] = pieces["end"] - pieces["start"] - all_busy - times[INPUT]
    piece = pieces.select(
        trace.tables.steps["number"].gather(pieces["step"]).alias("step"), "sequence"
    )
    ending = collectives.select(
        pl.col("piece").alias("sequence"), pl.col("collective").fill_null(UNNAMED).alias("name")
    )
    exposed = piece.join(ending, on="sequence", how="left", maintain_order="left").select(
        *("step", "sequence", pl.col("name").fill_null(UNNAMED)),
        (all_busy - computing).alias("time_ns"),
        pl.col("name").fill_null(UNNAMED).alias("collective"),
    )
    each = [
        piece.with_columns(pl.lit(name).alias("name"), time.alias("time_ns"))
        for name, time in times.items()
    ]
    frame = pl.concat(
        [
            pl.concat(each).with_columns(pl.lit(None, pl.String).alias("collective")),
            exposed.select("step", "sequence", "name", "time_ns", "collective"),
        ]
    )
    # Devices of a process work at the same time.
    number = trace.tables.steps["number"].gather(windows["step"]).alias("step")
    devices = number.value_counts(name="devices")
    return (
        frame.group_by("step", "sequence", "name", "collective")
        .agg(pl.col("time_ns").sum())
        .join(devices, on="step")
        .with_columns(pl.col("time_ns") // pl.col("devices"))
        .filter(pl.col("time_ns") > 0)
        .sort("step", "sequence", "name", "collective")
        .select(
            (pl.col(name) if name in _DESCRIBED else pl.lit(None)).cast(dtype).alias(name)
            for name, dtype in OPERATIONS.items()
        )
    )


@per_small_trace
def _busy(trace: Trace) -> tuple[Busy, Busy]:
    """Return when each device did any work, and when other work than collectives."""
    every = work(trace, "rank", "device", "start", "duration", "category")
    others = every.filter(pl.col("category").ne_missing("collective"))
    return Busy.of(every), Busy.of(others)


_DESCRIBED: Final = ("name", "collective", "step", "sequence", "time_ns")


def _pieces(windows: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return ``windows`` cut at the ends of ``collectives`` (in order), with the ``sequence`` of
    each piece."""
    end = (collectives["start_ns"] + collectives["time_ns"]).to_numpy()
    starts, ends = windows["start"].to_numpy(), windows["end"].to_numpy()
    first = np.searchsorted(end, starts, side="right")
    count = np.searchsorted(end, ends, side="left") - first + 1
    count = np.maximum(count, 1)
    window = np.repeat(np.arange(len(starts)), count)
    within = np.arange(len(window)) - np.repeat(np.cumsum(count) - count, count)
    sequence = first[window] + within
    bounds = np.concatenate((end, [np.iinfo(np.int64).max]))
    opens = np.where(within > 0, bounds[sequence - 1], starts[window])
    return windows[window].with_columns(
        pl.Series("start", opens),
        pl.Series("end", np.minimum(bounds[sequence], ends[window])),
        pl.Series("sequence", sequence.astype(np.int64)),
    )
