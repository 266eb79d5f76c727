"""Idle time of each device by cause, and by operator, range or step; or gap by gap.

``idle_gaps.py`` finds the gaps, ``idle_causes.py`` the cause of each; this module sums them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import polars as pl

from traceana.columns.intervals import PER_DEVICE, Busy, Device, union
from traceana.columns.nesting import to_rows
from traceana.result import Result, sums
from traceana.table import (
    COUNT,
    KERNEL,
    LINE,
    LONG,
    MEAN,
    MOMENT,
    NUMBER,
    ONE_CALL,
    PART,
    SHARE,
    STEP,
    TIME,
    Column,
    Columns,
    aggregated,
    completed,
    conformed,
    laid_out,
)
from traceana.timeline.idle_causes import CauseFinder, cpu_time
from traceana.timeline.idle_gaps import (
    CAUSES,
    MEANINGS,
    Cause,
    DeviceWork,
    analyzed_windows,
    capture,
    device_work,
    gaps,
    measured_windows,
    selects_steps,
    within,
)
from traceana.timeline.steps import device_windows, measured_steps
from traceana.timeline.work import DEVICE_COLUMNS, any_work, has_frames, why_no_work
from traceana.trace import per_small_trace
from traceana.trace.schema import CPU_DEVICE, join_pieces
from traceana.trace.work import frame_labels

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import IdleBy

_PART: Final = pl.col("part")


def _share(time: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(time) / pl.col(whole))


CAUSE: Final = Column("cause", PART, f"{', '.join(f'`{cause}`' for cause in CAUSES)}")
SHARE_OF_WINDOW: Final = Column(
    "share",
    SHARE,
    "of the analyzed time of the device (`span_ns`: the capture, or the selected steps); with "
    "`--by step` of the step",
    value=_share("time_ns", "span_ns"),
)
KEYS: Final = {
    "operator": Column(
        "operator",
        LONG,
        "innermost operator that the host was in during the gap; of work launched before the GPU "
        "went idle, the one that launched it; null for none",
    ),
    "range": Column("range", LONG, "innermost annotation, likewise"),
    "line": Column(
        "line",
        LINE,
        "line of the program on which the host was when the GPU went idle, with its text where the "
        "recording keeps it; null where no line is recorded",
    ),
    "step": Column("step", NUMBER, "number of the step in which the time lies"),
}
"""The key of ``by``."""
COLUMNS: Final = laid_out(
    (
        *DEVICE_COLUMNS,
        CAUSE,
        Column("count", COUNT, "number of gaps", pl.len(), title="gaps"),
        Column(
            "time_ns",
            TIME,
            "their time; with `--step` the part in the steps. The sum over the causes is the "
            "device's `idle_ns`",
            _PART.sum(),
        ),
        SHARE_OF_WINDOW,
        Column(
            "mean_ns",
            TIME,
            "mean of the gaps, rounded down",
            _PART.sum() // pl.len(),
            scale=ONE_CALL,
        ),
        Column("max_ns", TIME, "longest gap", _PART.max(), scale=ONE_CALL),
        Column(
            "step_count",
            MEAN,
            "number of gaps in the windows of the measured steps that used the device, mean per "
            "step; null without steps; with `--by step` the row's own",
            value=pl.col("gaps_in_steps") / pl.col("steps"),
            title="gaps per step",
        ),
        Column(
            "step_ns",
            TIME,
            "their time, mean per step, rounded down; null likewise",
            value=pl.col("in_steps") // pl.col("steps"),
            title="time per step",
            scale=STEP,
        ),
        Column(
            "step_share",
            SHARE,
            "their share of the time of these steps; null likewise",
            value=_share("in_steps", "steps_ns"),
            title="of step",
        ),
    ),
    dropped="step_count mean_ns step_share step_ns max_ns",
)
_BY_STEP: Final = laid_out(
    (KEYS["step"], *COLUMNS), hidden="step_count step_ns step_share", dropped="mean_ns max_ns"
)
GAP_COLUMNS: Final = laid_out(
    (
        *DEVICE_COLUMNS,
        CAUSE,
        Column("start_ns", MOMENT, "start of the gap", title="start (since first event)"),
        Column("time_ns", TIME, "its duration; with `--step` the part in the steps"),
        Column("explained_ns", TIME, "the part of the gap that the cause accounts for"),
        SHARE_OF_WINDOW,
        KEYS["operator"],
        KEYS["range"],
        KEYS["line"],
        Column("call", LONG, "the call that the host was in, or that had launched the next work"),
        Column("step", NUMBER, "number of the step in which the next work was launched"),
        Column("before", KERNEL, "name of the work that ended last"),
        Column("after", KERNEL, "name of the work that starts next"),
    ),
    hidden="explained_ns share call step",
    dropped="before range after operator line",
)

_GAPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "start": pl.Int64,
    "end": pl.Int64,
    "before": pl.UInt32,
    "after": pl.UInt32,
    "cause": Cause,
    "explained": pl.Int64,
    "call": pl.UInt32,
    "range": pl.UInt32,
    "op": pl.UInt32,
}


_BLOCK: Final = 1 << 20
"""Gaps whose causes are found at a time: finding them takes 200 bytes for each."""


class IdleTime(msgspec.Struct, frozen=True):
    """The gaps of the selected devices in the whole capture, and the work between them.

    ``gaps`` has the columns :data:`_GAPS`, by device and time; row numbers are those of the whole
    trace. ``work`` is that of the GPUs; ``cpus`` is the CPUs' busy time, in traces without GPU
    work. ``windows`` are the analyzed ones, ``measured`` those of the measured steps
    (:mod:`traceana.timeline.idle_gaps`).
    """

    gaps: pl.DataFrame
    work: Sequence[DeviceWork]
    cpus: Busy
    windows: pl.DataFrame
    measured: pl.DataFrame

    def busy(self) -> Busy:
        """Return when each device did any work."""
        devices = {work.device: union(work.start, work.end) for work in self.work}
        return Busy({**devices, **self.cpus.by_device})


def idle(trace: Trace, by: IdleBy = "cause", *, found: IdleTime | None = None) -> Result:
    """Return the idle time of each device, one row per cause and key (``by``), or per gap.

    The analyzed time is the capture, or the selected steps
    (:func:`traceana.timeline.idle_gaps.analyzed_windows`); only the part of a gap within it counts.
    The columns are those of :func:`columns_by`. Most time first; steps in their order; the longest
    gap first.

    ``found`` is :func:`idle_time` of the trace, if already computed.
    """
    found = found or idle_time(trace)
    columns = columns_by(by)
    frame = _by_gap(trace, found) if by == "gap" else _by_key(trace, found, by)
    frame = conformed(completed(frame, columns), columns)
    summed = ("time_ns",) if by == "gap" else ("count", "time_ns")
    return Result(frame, sums(frame, *summed), _notes(trace, frame), columns)


def columns_by(by: IdleBy) -> Columns:
    """Return the columns of :func:`idle`."""
    match by:
        case "gap":
            return GAP_COLUMNS
        case "step":
            return _BY_STEP
        case "cause":
            return COLUMNS
        case _:
            return KEYS[by], *COLUMNS


@per_small_trace
def idle_time(trace: Trace) -> IdleTime:
    """Return the gaps, with their causes, of the devices on which ``trace`` has work."""
    windows = analyzed_windows(trace)
    devices = dict.fromkeys(windows.select(PER_DEVICE).unique(maintain_order=True).iter_rows())
    gaps, work, cpus = _gaps_with_causes(trace.whole, tuple(devices))
    return IdleTime(gaps, work, cpus, windows, measured_windows(trace))


@per_small_trace
def _gaps_with_causes(
    whole: Trace, devices: tuple[Device, ...]
) -> tuple[pl.DataFrame, Sequence[DeviceWork], Busy]:
    """Return all gaps of ``devices`` with their causes, their work, and the CPUs' busy time.

    They are the same whatever steps are selected.
    """
    work = device_work(whole, devices)
    limits = {rank: (start, end) for rank, start, end in capture(whole).iter_rows()}
    parts = [pl.DataFrame(schema=_GAPS)]
    if work:
        causes, of_devices = CauseFinder(whole), []
        for of_device in work:
            rank, _ = of_device.device
            step = whole.tables.activities["step"][int(of_device.row[0])]
            first_step = None if step is None else int(whole.tables.steps["start"][step])
            of_devices.append(gaps(of_device, *limits[rank], first_step))
        blocks = pl.concat(of_devices).iter_slices(_BLOCK)
        parts += [causes.with_causes(block).select(*_GAPS) for block in blocks]
    cpus = {}
    for rank, device in devices:
        if device == CPU_DEVICE:
            cpus[rank, device], cpu_gaps = cpu_time(whole, rank, *limits[rank])
            parts.append(cpu_gaps.select(*_GAPS))
    all_gaps = pl.concat(parts)
    join_pieces(all_gaps)
    return all_gaps, work, Busy(cpus)


def _by_key(trace: Trace, found: IdleTime, by: IdleBy) -> pl.DataFrame:
    """Return the rows of :func:`idle`, except by gap."""
    keys = [*([] if by == "cause" else [by]), *PER_DEVICE, "cause"]
    gaps = found.gaps.select(
        *PER_DEVICE, "start", "end", "cause", *_key(trace.whole, found.gaps, by)
    )
    time = pl.col("time_ns")
    if by == "step":
        windows = device_windows(trace)
        windows = windows.with_columns(
            trace.tables.steps["number"].gather(windows["step"]).alias("step")
        )
        per = ["step", *PER_DEVICE]
        parts = within(gaps, windows)
        gaps = gaps[parts["gap"]].with_columns(
            windows["step"].gather(parts["window"]), parts["time_ns"].alias("part")
        )
        order, descending = [*per, time, "cause"], [False, False, False, True, False]
    else:
        windows, per = found.windows, list(PER_DEVICE)
        parts = within(gaps, found.measured)
        in_steps = gaps.select(keys)[parts["gap"]].with_columns(parts["time_ns"])
        in_steps = in_steps.group_by(keys).agg(
            time.sum().alias("in_steps"), pl.len().cast(pl.Int64).alias("gaps_in_steps")
        )
        gaps = analyzed_gaps(trace, found, gaps)
        names = [pl.col(key).cast(pl.String) for key in keys if key == by]
        order = [time, *names, *PER_DEVICE, "cause"]
        descending = [True, *[False] * (len(order) - 1)]
    frame = aggregated(gaps, keys, columns_by(by))
    frame = frame.join(_spans(windows, per), on=per, nulls_equal=True)
    if by == "step":
        frame = frame.with_columns(
            pl.lit(1).alias("steps"),
            pl.col("count").alias("gaps_in_steps"),
            time.alias("in_steps"),
            pl.col("span_ns").alias("steps_ns"),
        )
    else:
        steps = found.measured.group_by(PER_DEVICE).agg(pl.len().cast(pl.Int64).alias("steps"))
        steps = steps.join(_spans(found.measured, per), on=per, nulls_equal=True)
        frame = (
            frame.join(in_steps, on=keys, how="left", nulls_equal=True)
            .join(steps.rename({"span_ns": "steps_ns"}), on=per, how="left", nulls_equal=True)
            # Without measured steps on the device their number is null.
            .with_columns(pl.col("in_steps", "gaps_in_steps").fill_null(0))
        )
    return frame.sort(order, descending=descending, nulls_last=True)


def _key(whole: Trace, gaps: pl.DataFrame, by: IdleBy) -> list[pl.Series]:
    """Return the column of operators or annotations of ``gaps``, if ``by`` is one of them."""
    match by:
        case "operator":
            return [whole.tables.ops["name"].gather(gaps["op"]).alias(by)]
        case "range":
            return [whole.tables.ranges["text"].gather(gaps["range"]).alias(by)]
        case "line":
            return [_lines(whole, gaps)]
        case _:
            return []


def _lines(whole: Trace, gaps: pl.DataFrame) -> pl.Series:
    """Return the line of the program in which each of the ``gaps`` began, null where unknown."""
    if not has_frames(whole):
        return pl.Series("line", [None] * gaps.height, dtype=pl.String)
    # Few recordings have lines: a report on others does without these modules.
    from traceana.timeline.source_frames import frames_of_gaps

    lines = frame_labels(whole.tables)["line_text"].gather(to_rows(frames_of_gaps(whole, gaps)))
    return lines.cast(pl.String).alias("line")


def analyzed_gaps(trace: Trace, found: IdleTime, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``gaps`` with their part in the analyzed windows: ``part`` (ns) and ``part_start``.

    ``gaps`` are all gaps, with at least ``rank``, ``device``, ``start`` and ``end``. Gaps
    outside the windows are left out.
    """
    if not selects_steps(trace):
        # All gaps lie within the capture.
        end, start = pl.col("end"), pl.col("start")
        return gaps.with_columns((end - start).alias("part"), start.alias("part_start"))
    parts = within(gaps, found.windows)
    first = found.windows["start"].gather(parts["window"])
    return (
        gaps[parts["gap"]]
        .with_columns(parts["time_ns"].alias("part"), first.alias("part_start"))
        .with_columns(pl.max_horizontal("part_start", "start").alias("part_start"))
    )


def _spans(windows: pl.DataFrame, per: Sequence[str]) -> pl.DataFrame:
    """Return the summed length of ``windows``, ``span_ns``, of each combination of ``per``."""
    length = (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    return windows.group_by(per).agg(length)


def _by_gap(trace: Trace, found: IdleTime) -> pl.DataFrame:
    whole = trace.whole
    spans = _spans(found.windows, PER_DEVICE)
    gaps = (
        analyzed_gaps(trace, found, found.gaps)
        .join(spans, on=PER_DEVICE, how="left", nulls_equal=True, maintain_order="left")
        .sort("part", "part_start", "rank", "device", descending=[True, False, False, False])
    )
    step = whole.tables.steps["number"].gather(
        whole.tables.activities["step"].gather(gaps["after"])
    )
    return gaps.select(
        *PER_DEVICE,
        "cause",
        pl.col("part_start").alias("start_ns"),
        pl.col("part").alias("time_ns"),
        pl.min_horizontal("explained", "part").alias("explained_ns"),
        "span_ns",
        whole.tables.ops["name"].gather(gaps["op"]).alias("operator"),
        whole.tables.ranges["text"].gather(gaps["range"]).alias("range"),
        _lines(whole, gaps),
        whole.tables.calls["name"].gather(gaps["call"]).alias("call"),
        step.alias("step"),
        *(
            whole.tables.names["name"]
            .gather(whole.tables.activities["name_id"].gather(gaps[side]))
            .alias(side)
            for side in ("before", "after")
        ),
    )


def gaps_of(
    trace: Trace, found: IdleTime, causes: Collection[str], key: Literal["operator", "range"]
) -> pl.DataFrame:
    """Return ``device``, ``cause``, ``time_ns``, ``key`` and ``line`` of gaps with one of
    ``causes``.

    They are rows of :func:`idle` by gap, in any order; ``cause`` and ``key`` are not texts.
    """
    chosen = found.gaps.filter(pl.col("cause").is_in(list(causes)))
    gaps = analyzed_gaps(trace, found, chosen)
    return gaps.select(
        "device",
        "cause",
        pl.col("part").alias("time_ns"),
        *_key(trace.whole, gaps, key),
        _lines(trace.whole, gaps),
    )


_NAMED: Final = (
    ("not_recorded", "launched before capture"),
    ("queued", "queued"),
    ("same_launch", "same launch"),
    ("event", "event"),
)
"""Causes with a name that needs an explanation: the cause and its name on screens."""


def _notes(trace: Trace, frame: pl.DataFrame) -> tuple[str, ...]:
    """Return the notes on ``frame``, the result."""
    if not any_work(trace):
        return (why_no_work(trace),)
    if frame.is_empty() and frame.columns[0] == "step":
        return ("no steps: the trace has no step markers",)
    if frame.is_empty():
        return ("no idle time in the analyzed window",)
    notes = []
    if trace.on_cpu:
        notes.append(
            "CPU-only trace: idle while a batch is waited for (data loader) or no operator runs on "
            "any thread (host)"
        )
    elif trace.tables.calls.is_empty():
        notes.append("no runtime calls recorded: causes of idle time unknown")
    else:
        causes = frame.filter(pl.col("time_ns") > 0)["cause"].unique().cast(pl.String).to_list()
        notes += [f"{name}: {MEANINGS[cause]}" for cause, name in _NAMED if cause in causes]
    if not selects_steps(trace):
        notes.append(
            "capture: first to last activity on any device"
            f"{', steps included' if trace.tables.steps.height else ''}"
        )
    notes += measured_steps(trace).notes if trace.tables.steps.height else ()
    return tuple(notes)
