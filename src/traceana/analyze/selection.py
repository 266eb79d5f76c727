"""Selection of steps, devices and ranks, applied once before the analyses."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from traceana.analyze.steps import measured_steps
from traceana.analyze.work import work
from traceana.errors import NoSuchSelectionError
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace


def select(
    trace: Trace,
    *,
    steps: Collection[int] | None = None,
    devices: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
) -> Trace:
    """Return ``trace`` with only the activities of ``steps`` (by number), ``devices``, ``ranks``.

    ``None`` selects all. The other tables except ``steps`` stay complete. The selection is in
    ``meta.properties``, and the complete trace in ``whole``. Raises
    :class:`~traceana.errors.NoSuchSelectionError` on a step, a device or a rank that the trace
    does not have.
    """
    if ranks is not None:
        trace = _with_ranks(trace, sorted(set(ranks)))
    if steps is not None:
        trace = _with_steps(trace, sorted(set(steps)))
    if devices is not None:
        trace = _with_devices(trace, sorted(set(devices)))
    return trace


def measured(trace: Trace) -> Trace:
    """Return the measured steps of ``trace``, or the whole trace if they have no activity."""
    rows = measured_steps(trace).rows
    if not rows:
        return trace
    part = select(trace, steps=trace.steps["number"].gather(rows).unique().to_list())
    return trace if work(part, "kind").is_empty() else part


def _with_ranks(trace: Trace, wanted: list[int]) -> Trace:
    present = trace.activities["rank"].drop_nulls().unique().sort().to_list()
    if not present and wanted == [trace.meta.rank]:
        return trace
    missing = sorted(set(wanted) - set(present))
    if missing:
        known = ", ".join(map(str, present)) or trace.meta.rank
        ranks = "no rank recorded" if known is None else f"ranks: {known}"
        raise NoSuchSelectionError(f"{trace.meta.source} has no rank {missing[0]}; {ranks}")
    kept = trace.activities["rank"].is_in(wanted)
    activities = trace.activities.filter(kept)
    devices = trace.devices.filter(pl.col("rank").is_in(wanted))
    numbered = trace.steps.with_row_index("step").filter(pl.col("rank").is_in(wanted))
    steps = numbered.with_row_index("new_step")
    activities = (
        activities.join(
            steps.select("step", "new_step"), on="step", how="left", maintain_order="left"
        )
        .with_columns(pl.col("new_step").alias("step"))
        .drop("new_step")
    )
    return _narrowed(
        trace,
        "selected_ranks",
        wanted,
        activities=activities,
        counters=_counters(trace, kept),
        devices=devices,
        steps=steps.drop("step", "new_step"),
    )


def _with_steps(trace: Trace, wanted: list[int]) -> Trace:
    present = trace.steps["number"].unique().sort().to_list()
    if not present:
        raise NoSuchSelectionError(
            f"{trace.meta.source} has no steps: omit --step, or record with step markers"
        )
    missing = sorted(set(wanted) - set(present))
    if missing:
        raise NoSuchSelectionError(
            f"{trace.meta.source} has no step {missing[0]}; steps: {present[0]} to {present[-1]}"
        )
    numbered = trace.steps.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("step"))
    chosen = numbered.filter(pl.col("number").is_in(wanted)).with_columns(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("new_step")
    )
    kept = trace.activities["step"].is_in(chosen["step"].implode()).fill_null(value=False)
    activities = trace.activities
    if not kept.all():
        activities = activities.filter(kept)
    if chosen.height < numbered.height:
        new_step = chosen["new_step"].gather(chosen["step"].search_sorted(activities["step"]))
        activities = activities.with_columns(new_step.alias("step"))
    steps = chosen.drop("step", "new_step")
    return _narrowed(
        trace,
        "selected_steps",
        wanted,
        activities=activities,
        counters=_counters(trace, kept),
        steps=steps,
    )


def _with_devices(trace: Trace, wanted: list[int]) -> Trace:
    devices = {*trace.activities["device"].drop_nulls(), *trace.devices["device"].drop_nulls()}
    missing = [device for device in wanted if device not in devices]
    if missing:
        known = ", ".join(name_of(device) for device in sorted(devices)) or "none"
        raise NoSuchSelectionError(
            f"{trace.meta.source} has no device {name_of(missing[0])}; devices: {known}"
        )
    kept = trace.activities["device"].is_in(wanted)
    return _narrowed(
        trace,
        "selected_devices",
        wanted,
        activities=trace.activities.filter(kept),
        counters=_counters(trace, kept),
    )


def _counters(trace: Trace, kept: pl.Series) -> pl.DataFrame:
    """Return the counters of ``kept`` activities, and those without one, with their new rows."""
    counters = trace.counters
    if counters.is_empty():
        return counters
    rows = counters["activity"]
    selected = kept.fill_null(False)
    moved = (selected.cum_sum() - 1).cast(pl.UInt32).gather(rows)
    return counters.with_columns(moved.alias("activity")).filter(
        rows.is_null() | selected.gather(rows)
    )


def name_of(device: int) -> str:
    """Return a device's number, or ``cpu``."""
    return "cpu" if device == CPU_DEVICE else str(device)


def _narrowed(trace: Trace, key: str, value: list[int], **tables: pl.DataFrame) -> Trace:
    meta = msgspec.structs.replace(trace.meta, properties={**trace.meta.properties, key: value})
    return trace.selection(meta, **tables)
