"""Memory by device, step, time, layer, operator or convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from traceana.analyze.memory.course import by_step, by_time
from traceana.analyze.memory.events import PLACE, events
from traceana.analyze.memory.peaks import (
    alive,
    in_steps,
    layer_names,
    operator_names,
    peaks,
    within_steps,
)
from traceana.analyze.memory.workspace import workspaces
from traceana.analyze.selection import name_of
from traceana.analyze.steps import measured_steps
from traceana.result import Result, sums

if TYPE_CHECKING:
    from traceana.trace import Trace

By = Literal["device", "layer", "operator", "step", "time", "convolution"]
"""What a row is of: a device; a layer or an operator whose allocations are alive at the peak of a
device; a step; a slice of time; a layer's convolution that needs a workspace."""

FEWEST_GROWING: Final = 3
"""Fewer measured steps that all grow are no sign of a leak."""

NO_EVENTS: Final = (
    "the trace has no events of an allocator: record with torch.profiler.profile("
    "profile_memory=True), or with the profiler of TensorFlow or JAX (.xplane.pb)"
)


def memory(trace: Trace, by: By = "device") -> Result:
    """Return how much memory was allocated, when, and by what.

    Of selected steps the peaks are those while they ran. Columns, beside ``rank`` and ``device``:

    ``device``
        ``allocations`` (number), ``peak_bytes`` (most that was allocated at once), ``at_ns``,
        ``step`` (number), ``layer`` and ``operator`` of the event that reached it,
        ``reserved_bytes`` (most that the allocator held in reserve, null where it does not say),
        ``largest_bytes``
        (largest single allocation), ``end_bytes`` (allocated in the end), ``growth_bytes`` (median
        over the measured steps of what is more at the end of a step than of the one before).
    ``layer``, ``operator``
        ``bytes`` and ``count`` of its allocations that were alive at the device's peak, their
        ``share`` of the peak, ``largest_bytes``. The rows of a device add up to its peak.
    ``step``
        Those of :func:`traceana.analyze.memory.course.by_step`.
    ``time``
        Those of :func:`traceana.analyze.memory.course.by_time`.
    ``convolution``
        Those of :func:`traceana.analyze.memory.workspace.workspaces`.
    """
    every = events(trace)
    seen = within_steps(trace, every)
    if seen.is_empty():
        why = "no events of an allocator in what is selected" if trace.memory.height else NO_EVENTS
        return Result(pl.DataFrame(schema=_EMPTY), {}, (why,))
    totals: tuple[str, ...] = ()
    match by:
        case "device":
            frame = _devices(trace, every, seen)
        case "step":
            frame = by_step(trace, every).drop("step_row")
        case "time":
            frame = by_time(seen)
        case "convolution":
            frame = workspaces(trace, seen)
        case _:
            held = alive(trace, every, peaks(seen))
            frame, totals = _held(held, by), ("count", "bytes")
    return Result(frame, sums(frame, *totals), _notes(trace, every, frame, by))


_EMPTY: Final = {"rank": pl.Int32, "device": pl.Int32}


def _devices(trace: Trace, every: pl.DataFrame, seen: pl.DataFrame) -> pl.DataFrame:
    size = pl.col("bytes")
    figures = seen.group_by(PLACE).agg(
        (size > 0).sum().cast(pl.Int64).alias("allocations"),
        pl.col("reserved").max().alias("reserved_bytes"),
        size.filter(size > 0).max().alias("largest_bytes"),
        pl.col("allocated").last().alias("end_bytes"),
    )
    at = in_steps(trace, peaks(seen))
    return (
        at.select(
            *PLACE,
            pl.col("allocated").alias("peak_bytes"),
            pl.col("time").alias("at_ns"),
            trace.steps["number"].gather(at["step_row"]).alias("step"),
            layer_names(trace, at["layer"]),
            operator_names(trace, at["op"]),
        )
        .join(figures, on=PLACE, how="left", nulls_equal=True, maintain_order="left")
        .join(_growth(trace, every), on=PLACE, how="left", nulls_equal=True, maintain_order="left")
        .select(
            *PLACE, "allocations", "peak_bytes", "at_ns", "step", "layer", "operator",
            "reserved_bytes", "largest_bytes", "end_bytes", "growth_bytes",
        )
    )  # fmt: skip


def _growth(trace: Trace, every: pl.DataFrame) -> pl.DataFrame:
    """Return the growth of each device by a measured step, and in how many of them it grew."""
    grown = pl.col("growth_bytes")
    return (
        by_step(trace, every)
        .filter(pl.col("step_row").is_in(measured_steps(trace).rows) & grown.is_not_null())
        .group_by(PLACE)
        .agg(
            grown.median().floor().cast(pl.Int64),
            (grown > 0).sum().alias("growing"),
            pl.len().alias("steps"),
        )
    )


def _held(held: pl.DataFrame, by: By) -> pl.DataFrame:
    size = pl.col("bytes")
    frame = held.group_by(*PLACE, by).agg(
        pl.len().cast(pl.Int64).alias("count"), size.sum(), size.max().alias("largest_bytes")
    )
    share = size / size.sum().over(PLACE)
    return frame.with_columns(share.alias("share")).sort(
        *PLACE, "bytes", by, descending=[False, False, True, False], nulls_last=True
    )


def _notes(trace: Trace, every: pl.DataFrame, frame: pl.DataFrame, by: By) -> tuple[str, ...]:
    found = []
    if every["counted"].any():
        found.append(
            "the trace does not tell what was allocated before it began: figures of such a device "
            "count from there"
        )
    nowhere = every["address"].null_count()
    if nowhere and by in ("layer", "operator", "convolution"):
        found.append(
            f"{nowhere:,} of {every.height:,} events have no address: what they hold is not told"
        )
    if by == "convolution" and frame.is_empty():
        found.append(
            "no convolution allocates and frees memory within its operator, or none is launched by "
            "an operator of the trace"
        )
    if by == "step" and frame.is_empty():
        found.append("no steps: the trace marks no iterations")
    return (*found, *_leaks(trace, every))


def _leaks(trace: Trace, every: pl.DataFrame) -> list[str]:
    grown = _growth(trace, every).filter(
        (pl.col("growing") == pl.col("steps")) & (pl.col("steps") >= FEWEST_GROWING)
    )
    return [
        f"allocated memory of device {_device(row['device'])} grows in each of {row['steps']} "
        f"measured steps, by {row['growth_bytes']:,} bytes in the median: is something kept?"
        for row in grown.sort(PLACE).to_dicts()
    ]


def _device(device: int | None) -> str:
    return "(not told)" if device is None else name_of(device)
