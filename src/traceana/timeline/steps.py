"""Steps: their selection, wall time, the device's busy time in them, and which are warm-up."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.enrich.distinct_values import distinct
from traceana.enrich.serving import SOURCE
from traceana.enrich.steps import candidates
from traceana.errors import NoSuchSelectionError
from traceana.result import Result
from traceana.settings import FEWEST_STEPS, WARM_UP_RATIO
from traceana.timeline.intervals import Busy
from traceana.timeline.work import work
from traceana.trace.per_trace import per_trace
from traceana.trace.schema import CPU_DEVICE, PERIOD

if TYPE_CHECKING:
    from traceana.trace import Trace


RUN_AHEAD: Final = "times of single steps not exact: the script did not wait for each step"


class Measured(msgspec.Struct, frozen=True):
    """The steps for averages per step: row numbers of ``steps``, their distinct numbers in order of
    time, and notes on their choice."""

    rows: tuple[int, ...]
    numbers: tuple[int, ...]
    notes: tuple[str, ...]


@per_trace
def measured_steps(trace: Trace) -> Measured:
    """Return the steps without the warm-up at their beginning.

    A leading step is warm-up while its wall time exceeds ``WARM_UP_RATIO`` times the median of all
    steps. At most half of the steps are warm-up; of fewer than ``FEWEST_STEPS`` steps no step is.
    Where several processes mark their own steps, the longest step of each number counts.
    """
    table = trace.steps.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
    if table.is_empty():
        return Measured((), (), ())
    numbers = table.group_by("number").agg(pl.col("duration").max(), pl.col("start").min())
    numbers = numbers.sort("start")
    # The iterations of a server have different requests: the long ones are not warm-up. Of steps
    # that run ahead only the sum is exact.
    served, ahead = serves(trace), trace.meta.steps_run_ahead
    skipped = 0 if served or ahead else _leading(numbers["duration"])
    warm_up = numbers["number"].head(skipped)
    kept = table.filter(~pl.col("number").is_in(warm_up.implode()))
    notes = [_note(numbers["number"], skipped)]
    if served:
        notes = [f"averages over {numbers.height} iterations with different requests"]
    if (table["source"] == PERIOD).any():
        notes.insert(0, "no step markers: steps are the period of the kernels")
    if ahead:
        notes = [f"averages over {numbers.height} steps", RUN_AHEAD]
    return Measured(tuple(kept["row"]), tuple(numbers["number"][skipped:]), tuple(notes))


@per_trace
def serves(trace: Trace) -> bool:
    """Return whether the steps of ``trace`` are the iterations of a server."""
    sources = trace.steps["source"].unique().cast(pl.String).drop_nulls()
    return bool(len(sources)) and sources.str.ends_with(SOURCE).all()


def step_processes(trace: Trace) -> int:
    """Return how many processes mark steps; in containers, those of ranks have the same id."""
    return trace.steps.select("rank", "process").n_unique()


def _leading(durations: pl.Series) -> int:
    if len(durations) < FEWEST_STEPS:
        return 0
    median = float(durations.median())  # type: ignore[arg-type]
    slow = (durations > WARM_UP_RATIO * median).to_list()
    leading = slow.index(False) if False in slow else 0
    return int(min(leading, len(durations) // 2))


def _note(numbers: pl.Series, skipped: int) -> str:
    steps = len(numbers)
    if skipped:
        left_out = span_of([int(number) for number in numbers.head(skipped)])
        plural = "steps" if skipped > 1 else "step"
        return (
            f"averages over {steps - skipped} of {steps} steps, warm-up {plural} {left_out} "
            f"excluded (over {WARM_UP_RATIO} times the median)"
        )
    if steps == 1:
        return "1 step, possibly warm-up"
    if steps < FEWEST_STEPS:
        return f"averages over {steps} steps, too few to detect warm-up"
    return f"averages over {steps} steps, no warm-up detected"


def span_of(numbers: list[int]) -> str:
    """Return step numbers as text: ``3``, ``3-7``, or ``3, 5, 9``."""
    ordered = sorted(numbers)
    if len(ordered) > 1 and _without_gaps(ordered):
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(str(number) for number in ordered)


def _without_gaps(ordered: list[int]) -> bool:
    # Numbers are the file's: nothing is sized by their distance.
    return ordered[-1] - ordered[0] == len(ordered) - 1 == len(set(ordered)) - 1


@per_trace
def steps(trace: Trace) -> Result:
    """Return one row per step of each process.

    Columns: ``step`` (its number), ``process``, ``start_ns``, ``wall_ns``, ``calls`` and
    ``work_ns`` (number and summed durations of the work that the step launched, whenever it ran),
    ``busy_ns`` (union of all work inside the step's own window, added up over the devices that the
    step used), ``devices`` (how many those are) and ``warm_up``.
    """
    table = trace.steps.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
    activities = work(trace, "step", "rank", "device", "start", "duration")
    launched = (
        activities.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration").sum().alias("work_ns"),
        )
    )
    windows = step_windows(trace)
    busy = (
        windows.with_columns(Busy.of(activities).within(windows))
        .group_by(pl.col("row").alias("step"))
        .agg(pl.col("busy_ns").sum(), pl.len().cast(pl.Int64).alias("devices"))
    )
    measured = measured_steps(trace)
    frame = (
        table.join(launched, left_on="row", right_on="step", how="left")
        .join(busy, left_on="row", right_on="step", how="left")
        .sort("start", "row")
        .select(
            pl.col("number").alias("step"),
            "process",
            pl.col("start").alias("start_ns"),
            pl.col("duration").alias("wall_ns"),
            pl.col("calls", "work_ns", "busy_ns", "devices").fill_null(0),
            pl.col("row").is_in(measured.rows).not_().alias("warm_up"),
        )
    )
    if frame.is_empty():
        repeating = candidates(trace.ranges)
        none = "no steps: the trace has no step markers"
        return Result(frame, {}, (f"{none}; repeating ranges: {repeating}" if repeating else none,))
    return Result(frame, {}, measured.notes)


@per_trace
def step_windows(trace: Trace) -> pl.DataFrame:
    """Return the window of each step on each device that it used.

    Shares of a step are of the work in these windows, launched by any step, so that they cannot
    exceed 1. Columns: ``row`` (of ``steps``), ``rank``, ``device``, ``start``, ``end``.
    """
    steps_of = trace.steps.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
        "start",
        pl.col("start").add(pl.col("duration")).alias("end"),
    )
    used = devices_used(work(trace, "step", "rank", "device"))
    return used.join(steps_of, left_on="step", right_on="row", how="inner").rename({"step": "row"})


def available_ns(trace: Trace) -> pl.Series:
    """Return the wall time of each row of ``steps``, times the number of devices that it used.

    A step without device work counts once.
    """
    used = devices_used(work(trace, "step", "rank", "device")).group_by("step").len("devices")
    return (
        trace.steps.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("step"))
        .join(used, on="step", how="left", maintain_order="left")
        .select((pl.col("duration") * pl.col("devices").fill_null(1)).alias("available_ns"))
        .to_series()
    )


def devices_used(activities: pl.DataFrame) -> pl.DataFrame:
    """Return each pair of a step and a device (``rank``, ``device``) that it used."""
    return distinct(activities.select("step", "rank", "device")).drop_nulls(["step", "device"])


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
    numbers = measured_steps(trace).numbers
    if not numbers:
        return trace
    part = select(trace, steps=numbers)
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


MEDIAN_ERROR: Final = 1.4826 * 1.2533
"""Standard error of the median of normal values, over their median absolute deviation divided by
the square root of their number: standard deviation over that deviation, times the standard error of
a median over that of a mean, sqrt(pi / 2)."""
