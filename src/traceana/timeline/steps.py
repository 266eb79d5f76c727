"""Steps: when each began and ended, which are measured, their busy time, and their selection.

A step's time is the distance between the ends of two steps on the device that ends them. Every
command takes it from :func:`step_windows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl
from msgspec.structs import force_setattr

from traceana.columns.distinct import distinct
from traceana.columns.intervals import PER_DEVICE
from traceana.enrich.serving import SOURCE
from traceana.enrich.steps import candidates
from traceana.errors import NoSuchSelectionError, UsageError
from traceana.result import Result
from traceana.settings import FEWEST_STEPS, WARM_UP_RATIO
from traceana.table import COUNT, FLAG, MOMENT, NUMBER, TIME, Column, conformed
from traceana.timeline.busy import busy_time
from traceana.timeline.work import work
from traceana.trace import per_trace
from traceana.trace.schema import CPU_DEVICE, DEVICE_WORK, PERIOD
from traceana.vocabulary.number_lists import MOST_SPANS, number_spans

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.vocabulary.number_lists import Numbers


RUN_AHEAD: Final = "times of single steps not exact: the script did not wait for each step"

COLUMNS: Final = (
    Column("step", NUMBER, "its number"),
    Column("process", NUMBER, "the process that marked it"),
    Column("start_ns", MOMENT, "when it began", title="start (since first event)"),
    Column(
        "wall_ns",
        TIME,
        "the step's time: from the end of the step before on the device to its own, or from its "
        "marker",
    ),
    Column("host_ns", TIME, "its marker: how long the host takes"),
    Column("calls", COUNT, "number of pieces of work that the step launched, whenever they ran"),
    Column("work_ns", TIME, "their summed durations"),
    Column(
        "busy_ns",
        TIME,
        "union of all work inside the step's window, added up over the devices that it used",
    ),
    Column("devices", COUNT, "number of these devices"),
    Column("warm_up", FLAG, "whether it is left out as warm-up"),
    Column("complete", FLAG, "false where work that it launched was not recorded"),
    Column("measured", FLAG, "whether averages per step include it"),
)
_PROCESS: Final = ("rank", "process")
_MARKER: Final = ("number", "start", "duration", *_PROCESS)


@per_trace
def step_windows(trace: Trace) -> pl.DataFrame:
    """Return when each row of ``trace.tables.steps`` began and ended, in their order.

    A step ends when its marker and the last work that it launched, on any device, have ended. It
    begins with its marker, or with the end of the step before if that is later; the first begins
    with the end of the work launched before it. The windows of a process do not overlap. Where the
    host runs ahead, a step lasts from the end of the step before on the device to its own.

    Columns: ``number``, ``rank``, ``process``, ``start``, ``end``, ``host_start`` and ``host_end``
    (of the marker), in ns.
    """
    whole = trace.whole
    end = pl.col("start") + pl.col("duration")
    device_work = whole.tables.activities.select(
        *("rank", "process", "start", "call", "step"), end.alias("end"), "kind"
    ).filter(pl.col("kind").is_in(DEVICE_WORK))
    ended = device_work.group_by("step").agg(pl.col("end").max().alias("device_end"))
    before = pl.col("complete").cum_max().shift(1).over(_PROCESS)
    marked = (
        whole.tables.steps.select(*_MARKER)
        .with_row_index("step")
        .join(ended, on="step", how="left", maintain_order="left")
        .with_columns(pl.max_horizontal(end, "device_end").alias("complete"))
        .sort("start", maintain_order=True)
    )
    first = marked.group_by(_PROCESS, maintain_order=True).first()
    windows = (
        marked.join(_backlog(whole, device_work, first), on="step", how="left")
        .with_columns(pl.max_horizontal("start", before, "backlog").alias("step_start"))
        .with_columns(pl.max_horizontal("step_start", "complete").alias("step_end"))
        .unique(_MARKER, keep="first", maintain_order=True)
    )
    return (
        trace.tables.steps.select(*_MARKER)
        .join(windows, on=_MARKER, how="left", nulls_equal=True, maintain_order="left")
        .select(
            "number",
            *_PROCESS,
            pl.col("step_start").alias("start"),
            pl.col("step_end").alias("end"),
            pl.col("start").alias("host_start"),
            end.alias("host_end"),
        )
    )


def _backlog(trace: Trace, device_work: pl.DataFrame, first: pl.DataFrame) -> pl.DataFrame:
    """Return ``step``, one of ``first``, and ``backlog``, the end of the work launched before it.

    Work of no step was launched before the first one if its call was, or if its call was not
    recorded: a call in a step would give it the step (:mod:`traceana.enrich.launches`). Work that
    ends after the step is complete does not count.
    """
    outside = device_work.filter(pl.col("step").is_null())
    launched = pl.coalesce(
        trace.tables.calls["start"].gather(outside["call"]).alias("called"),
        pl.when(pl.lit(trace.tables.calls.is_empty())).then("start"),
    )
    return (
        outside.with_columns(launched.alias("launched"))
        .join(first.select("step", *_PROCESS, "start", "complete"), on="rank", nulls_equal=True,
              suffix="_of")
        .filter(
            pl.col("process").eq_missing(pl.col("process_of"))
            | pl.col("process").is_null()
            | pl.col("process_of").is_null(),
            (pl.col("launched") < pl.col("start_of")).fill_null(value=True),
            pl.col("end") <= pl.col("complete"),
        )
        .group_by(pl.col("step_of").alias("step"))
        .agg(pl.col("end").max().alias("backlog"))
    )  # fmt: skip


@per_trace
def device_windows(trace: Trace) -> pl.DataFrame:
    """Return the window of each step on each device that it used, by step.

    Shares of a step are of the work in these windows, launched by any step, so that they cannot
    exceed 1. Columns: ``step`` (row of ``steps``), ``rank``, ``device``, ``start``, ``end``.
    """
    used = distinct(work(trace, "step", *PER_DEVICE)).drop_nulls(["step", "device"])
    windows = step_windows(trace).with_row_index("step").select("step", "start", "end")
    return used.join(windows, on="step").sort("step", *PER_DEVICE)


class Measured(msgspec.Struct, frozen=True):
    """The steps for averages per step: row numbers of ``steps``, their distinct numbers in order of
    time, and notes on their choice; ``warm_up`` and ``cut`` are the numbers left out."""

    rows: tuple[int, ...]
    numbers: tuple[int, ...]
    notes: tuple[str, ...]
    warm_up: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()


@per_trace
def measured_steps(trace: Trace) -> Measured:
    """Return the steps without the warm-up at their beginning and without those that are cut.

    A step is cut if work that it launched was not recorded. A leading step is warm-up while it
    lasts longer than ``WARM_UP_RATIO`` times the median of all steps. At most half of the steps are
    warm-up; of fewer than ``FEWEST_STEPS`` steps no step is. Where several processes mark their own
    steps, the longest step of each number counts.
    """
    if trace.tables.steps.is_empty():
        return Measured((), (), ())
    table = step_windows(trace).with_columns(
        trace.tables.steps["complete"].fill_null(value=True), trace.tables.steps["source"]
    )
    numbers = (
        table.with_columns((pl.col("end") - pl.col("start")).alias("time_ns"))
        .group_by("number")
        .agg(pl.col("time_ns").max(), pl.col("host_start").min(), pl.col("complete").all())
        .sort("host_start")
    )
    # Where every step lost work, all are used.
    incomplete = numbers.filter(~pl.col("complete"))["number"]
    cut = tuple(incomplete) if len(incomplete) < numbers.height else ()
    whole = numbers.filter(~pl.col("number").is_in(cut))
    # The iterations of a server have different requests: the long ones are not warm-up. Of steps
    # that did not wait only the sum is exact.
    served, ahead = is_server(trace), only_sums(trace)
    skipped = 0
    if not (served or ahead) and whole.height >= FEWEST_STEPS:
        median = float(whole["time_ns"].median())  # type: ignore[arg-type]
        slow = (whole["time_ns"] > WARM_UP_RATIO * median).to_list()
        skipped = min(slow.index(False), whole.height // 2)
    kept = whole["number"][skipped:]
    warm_up = tuple(whole["number"].head(skipped))
    if ahead:
        notes = [f"averages over {whole.height} steps", RUN_AHEAD]
    elif served:
        notes = [f"averages over {whole.height} iterations with different requests"]
    elif skipped:
        left_out = span_of([int(number) for number in warm_up])
        plural = "steps" if skipped > 1 else "step"
        notes = [
            f"averages over {whole.height - skipped} of {whole.height} steps, warm-up {plural} "
            f"{left_out} excluded (over {WARM_UP_RATIO} times the median)"
        ]
    elif whole.height == 1:
        notes = ["1 step, possibly warm-up"]
    elif whole.height < FEWEST_STEPS:
        notes = [f"averages over {whole.height} steps, too few to detect warm-up"]
    else:
        notes = [f"averages over {whole.height} steps, no warm-up detected"]
    if not ahead and (table["source"] == PERIOD).any():
        notes.insert(0, "no step markers: steps are the period of the kernels")
    if cut:
        listed = span_of([int(number) for number in cut])
        notes.append(f"incomplete steps excluded: {listed} (launched work not in the recording)")
    rows = table.with_row_index("row").filter(pl.col("number").is_in(kept.implode()))["row"]
    return Measured(tuple(rows), tuple(kept), tuple(notes), warm_up, cut)


def only_sums(trace: Trace) -> bool:
    """Return whether single steps have no exact time: CPU work that no step waited for."""
    return trace.meta.steps_run_ahead and trace.on_cpu


@per_trace
def is_server(trace: Trace) -> bool:
    """Return whether the steps of ``trace`` are the iterations of a server."""
    sources = trace.tables.steps["source"].unique().cast(pl.String).drop_nulls()
    return bool(len(sources)) and sources.str.ends_with(SOURCE).all()


def step_processes(trace: Trace) -> int:
    """Return how many processes mark steps; in containers, processes of ranks have equal ids."""
    return trace.tables.steps.select(_PROCESS).n_unique()


def span_of(numbers: list[int]) -> str:
    """Return step numbers as text: ``3``, ``3-7``, ``3, 5-9``, or ``3-90 with gaps``."""
    ordered = sorted(set(numbers))
    spans = number_spans(ordered)
    if len(spans) > MOST_SPANS:
        return f"{ordered[0]}-{ordered[-1]} with gaps"
    return ", ".join(spans)


@per_trace
def steps(trace: Trace) -> Result:
    """Return one row per step of each process, with the columns :data:`COLUMNS`.

    ``wall_ns`` is the length of :func:`step_windows`.
    """
    activities = work(trace, "step", *PER_DEVICE, "start", "duration")
    launched = (
        activities.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration").sum().alias("work_ns"),
        )
    )
    windows = device_windows(trace)
    busy = (
        windows.with_columns(busy_time(trace).within(windows))
        .group_by("step")
        .agg(pl.col("busy_ns").sum(), pl.len().cast(pl.Int64).alias("devices"))
    )
    measured = measured_steps(trace)
    frame = (
        step_windows(trace)
        .with_row_index("row")
        .with_columns(trace.tables.steps["complete"].fill_null(value=True))
        .join(launched, left_on="row", right_on="step", how="left")
        .join(busy, left_on="row", right_on="step", how="left")
        .sort("host_start", "row")
        .select(
            pl.col("number").alias("step"),
            "process",
            pl.col("start").alias("start_ns"),
            (pl.col("end") - pl.col("start")).alias("wall_ns"),
            (pl.col("host_end") - pl.col("host_start")).alias("host_ns"),
            pl.col("calls", "work_ns", "busy_ns", "devices").fill_null(0),
            pl.col("number").is_in(measured.warm_up).alias("warm_up"),
            "complete",
            pl.col("row").is_in(measured.rows).alias("measured"),
        )
    )
    frame = conformed(frame, COLUMNS)
    if frame.is_empty():
        repeating = candidates(trace.tables.ranges)
        none = "no steps: the trace has no step markers"
        note = f"{none}; repeating ranges: {repeating}" if repeating else none
        return Result(frame, {}, (note,), COLUMNS)
    return Result(frame, {}, measured.notes, COLUMNS)


class StepTime(msgspec.Struct, frozen=True):
    """The time of the measured steps, of several processes the longest of each number.

    ``each_ns`` are the times of ``steps`` (numbers), ``median_ns`` and ``mean_ns`` are over them.
    ``host_ns`` is the median time that the host takes for a step (its marker). ``on_gpu``: most
    steps end on the GPU after the host has queued them.
    """

    steps: tuple[int, ...]
    each_ns: tuple[int, ...]
    median_ns: int
    mean_ns: int
    host_ns: int
    on_gpu: bool


@per_trace
def step_time(trace: Trace) -> StepTime | None:
    """Return the step time that every command shows; None without steps."""
    measured = measured_steps(trace)
    if not measured.rows:
        return None
    rows = step_windows(trace)[list(measured.rows)]
    each = (
        rows.group_by("number")
        .agg(
            (pl.col("end") - pl.col("start")).max().alias("time_ns"),
            (pl.col("host_end") - pl.col("host_start")).max().alias("host_ns"),
            pl.col("host_start").min(),
        )
        .sort("host_start")
    )
    time = each["time_ns"]
    ahead = (rows["end"] > rows["host_end"]).sum()
    return StepTime(
        tuple(each["number"]),
        tuple(time),
        int(time.median()),  # type: ignore[arg-type]
        int(time.sum()) // len(time),
        int(each["host_ns"].median()),  # type: ignore[arg-type]
        2 * ahead > rows.height,
    )


def available_ns(trace: Trace) -> pl.Series:
    """Return the time of each row of ``steps``, times the number of devices that it used.

    A step without device work counts once.
    """
    used = device_windows(trace).group_by("step").len("devices")
    return (
        step_windows(trace)
        .with_row_index("step")
        .join(used, on="step", how="left", maintain_order="left")
        .select(
            ((pl.col("end") - pl.col("start")) * pl.col("devices").fill_null(1)).alias(
                "available_ns"
            )
        )
        .to_series()
    )


def select(
    trace: Trace,
    *,
    steps: Numbers | None = None,
    devices: Numbers | None = None,
    ranks: Numbers | None = None,
) -> Trace:
    """Return ``trace`` with only the activities of ``steps`` (by number), ``devices``, ``ranks``.

    Each is a number, several, or a text as of the command line: ``3``, ``"3,5"``, ``"3-7"``.
    ``None`` selects all. The other tables except ``steps`` stay complete. The selection is in
    ``meta.properties``, and the complete trace in ``whole``. Raises
    :class:`~traceana.errors.NoSuchSelectionError` on a step, a device or a rank that the trace
    does not have, and :class:`~traceana.errors.UsageError` on a text that is not a list of numbers.
    """
    try:
        if ranks is not None:
            trace = _with_ranks(trace, _sorted(ranks))
        if steps is not None:
            trace = _with_steps(trace, _sorted(steps))
        if devices is not None:
            trace = _with_devices(trace, _sorted(devices))
    except ValueError as error:
        raise UsageError(str(error)) from error
    return trace


def select_like(whole: Trace, trace: Trace) -> Trace:
    """Return ``whole`` with the steps, ranks and devices that are selected in ``trace``."""
    chosen = {name: trace.meta.properties.get(f"selected_{name}") for name in SELECTIONS}
    return select(whole, **chosen)


SELECTIONS: Final = ("steps", "ranks", "devices")


def _sorted(wanted: Numbers) -> list[int]:
    if isinstance(wanted, int | str):
        from traceana.vocabulary.number_lists import number_list

        wanted = number_list(wanted)
    return sorted(set(wanted))


def measured(trace: Trace) -> Trace:
    """Return the measured steps of ``trace``, or the whole trace if they have no activity."""
    if trace.measured_part is None:
        numbers = measured_steps(trace).numbers
        part = select(trace, steps=numbers) if numbers else trace
        part = trace if work(part, "kind").is_empty() else part
        # A result of per_trace must not refer to its Trace.
        force_setattr(trace, "measured_part", part)
        return part
    return trace.measured_part


def _with_ranks(trace: Trace, wanted: list[int]) -> Trace:
    present = trace.tables.activities["rank"].drop_nulls().unique().sort().to_list()
    if not present and wanted == [trace.meta.rank]:
        return trace
    missing = sorted(set(wanted) - set(present))
    if missing:
        known = ", ".join(map(str, present)) or trace.meta.rank
        ranks = "no rank recorded" if known is None else f"ranks: {known}"
        raise NoSuchSelectionError(f"{trace.meta.source} has no rank {missing[0]}; {ranks}")
    kept = trace.tables.activities["rank"].is_in(wanted)
    return _narrowed(
        trace,
        "selected_ranks",
        wanted,
        counters=_of_kept(trace, "counters", kept),
        operations=_of_kept(trace, "operations", kept),
        devices=trace.tables.devices.filter(pl.col("rank").is_in(wanted)),
        samples=trace.tables.samples.filter(pl.col("rank").is_in(wanted)),
        **_renumbered(trace, kept, pl.col("rank").is_in(wanted)),
    )


def _renumbered(trace: Trace, kept: pl.Series, chosen: pl.Expr) -> dict[str, pl.DataFrame]:
    """Return the ``kept`` activities and the ``chosen`` steps, whose rows they have."""
    numbered = trace.tables.steps.with_row_index("step")
    steps = numbered.filter(chosen)
    activities = trace.tables.activities if kept.all() else trace.tables.activities.filter(kept)
    if steps.height < numbered.height:
        place = pl.Series([None] * numbered.height, dtype=pl.UInt32)
        place = place.scatter(
            steps["step"], pl.int_range(steps.height, dtype=pl.UInt32, eager=True)
        )
        activities = activities.with_columns(place.gather(activities["step"]).alias("step"))
    return {"activities": activities, "steps": steps.drop("step")}


def _with_steps(trace: Trace, wanted: list[int]) -> Trace:
    present = trace.tables.steps["number"].unique().sort().to_list()
    if not present:
        raise NoSuchSelectionError(
            f"{trace.meta.source} has no steps: omit --step, or record with step markers"
        )
    missing = sorted(set(wanted) - set(present))
    if missing:
        raise NoSuchSelectionError(
            f"{trace.meta.source} has no step {missing[0]}; steps: {present[0]} to {present[-1]}"
        )
    chosen = pl.col("number").is_in(wanted)
    rows = trace.tables.steps.select(chosen).to_series().arg_true()
    kept = trace.tables.activities["step"].is_in(rows.implode()).fill_null(value=False)
    return _narrowed(
        trace,
        "selected_steps",
        wanted,
        counters=_of_kept(trace, "counters", kept),
        operations=_of_kept(trace, "operations", kept),
        **_renumbered(trace, kept, chosen),
    )


def _with_devices(trace: Trace, wanted: list[int]) -> Trace:
    devices = {
        *trace.tables.activities["device"].drop_nulls(),
        *trace.tables.devices["device"].drop_nulls(),
        *trace.tables.memory_blocks["device"].drop_nulls(),
    }
    missing = [device for device in wanted if device not in devices]
    if missing:
        known = ", ".join(name_of(device) for device in sorted(devices)) or "none"
        raise NoSuchSelectionError(
            f"{trace.meta.source} has no device {name_of(missing[0])}; devices: {known}"
        )
    kept = trace.tables.activities["device"].is_in(wanted)
    return _narrowed(
        trace,
        "selected_devices",
        wanted,
        activities=trace.tables.activities.filter(kept),
        counters=_of_kept(trace, "counters", kept),
        operations=_of_kept(trace, "operations", kept),
        samples=trace.tables.samples.filter(pl.col("device").is_in(wanted)),
    )


def _of_kept(trace: Trace, table: str, kept: pl.Series) -> pl.DataFrame:
    """Return the rows of ``table`` of ``kept`` activities, and those without one, with the new
    rows of their activities."""
    rows = trace.tables[table]
    if rows.is_empty():
        return rows
    activity = rows["activity"]
    selected = kept.fill_null(False)
    moved = (selected.cum_sum() - 1).cast(pl.UInt32).gather(activity)
    return rows.with_columns(moved.alias("activity")).filter(
        activity.is_null() | selected.gather(activity)
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
