"""Time of each device: busy, idle, launches, exposed copies and collectives.

``busy`` is the short table of the overview, ``devices`` the table of ``traceana idle``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.intervals import (
    COMPUTING,
    PER_DEVICE,
    Busy,
    computing,
    rows_by_device,
    union,
)
from traceana.columns.nesting import Flags, Ints
from traceana.result import Result, sums
from traceana.table import (
    COUNT,
    MEAN,
    MOMENT,
    SHARE,
    TIME,
    Column,
    aggregated,
    completed,
    conformed,
    names_of,
)
from traceana.timeline.busy import busy_time
from traceana.timeline.idle import IdleTime, idle_time
from traceana.timeline.idle_gaps import (
    analyzed_windows,
    measured_windows,
    outside,
    selects_steps,
    within,
)
from traceana.timeline.steps import device_windows
from traceana.timeline.work import DEVICE_COLUMNS, why_no_work, work
from traceana.trace.schema import CPU_DEVICE
from traceana.trace.work import labels

if TYPE_CHECKING:
    from traceana.trace import Trace

_ON_GPU: Final = pl.col("device") != CPU_DEVICE
_PARTS: Final = (
    Column(
        "span_ns",
        TIME,
        "analyzed time: the capture of its rank, from the first to the last activity on any "
        "device, steps included; or the selected steps",
    ),
    Column("busy_ns", TIME, "the union of all work in that time, from any step"),
    Column(
        "kernel_ns",
        TIME,
        "the union of kernels, and of CUDA graphs recorded as one activity; of a CPU its busy time",
    ),
    Column(
        "memops_only_ns",
        TIME,
        "busy without a kernel: copies and memsets",
        value=pl.col("busy_ns") - pl.col("kernel_ns"),
    ),
    Column(
        "idle_ns",
        TIME,
        "the rest: `span_ns` less `busy_ns`",
        value=pl.col("span_ns") - pl.col("busy_ns"),
    ),
)
_OUTSIDE: Final = (
    Column(
        "before_ns",
        TIME,
        "time of the recording before the capture, from its first event, without activity on any "
        "device of the rank; null with `--step`",
    ),
    Column("after_ns", TIME, "the same after the capture, to the last event; null with `--step`"),
)
BUSY: Final = (
    *DEVICE_COLUMNS,
    Column("calls", COUNT, "number of pieces of work", pl.len()),
    Column(
        "start_ns",
        MOMENT,
        "its first activity",
        pl.col("start").min(),
        title="start (since first event)",
    ),
    *_PARTS,
    Column(
        "sum_ns",
        TIME,
        "sum of the durations: over `busy_ns` where streams overlap",
        pl.col("duration").sum(),
    ),
    *_OUTSIDE,
)
"""The columns of :func:`busy`."""
LAUNCHES: Final = (
    Column("launches", COUNT, "calls that launched work of any kind on it"),
    Column("step_launches", MEAN, "their mean over the measured steps"),
    Column(
        "launch_bound",
        COUNT,
        "launch-bound kernels, whose launching call lasts longer than all that it launched",
    ),
    Column("launch_bound_ns", TIME, "their summed durations"),
    Column("launch_bound_share", SHARE, "of the kernels with a recorded launch"),
    Column(
        "launch_delay_median_ns",
        TIME,
        "median time from the end of the launching call to the start of the kernel (the lower of "
        "two); negative where the kernel starts before the call returns",
    ),
    Column("launch_delay_p95_ns", TIME, "95th percentile of the same"),
)
"""The columns of :func:`launches`, after those of the device; null in CPU-only traces."""
DEVICES: Final = (
    *DEVICE_COLUMNS,
    *_PARTS,
    Column(
        "idle_share",
        SHARE,
        "`idle_ns` over `span_ns`",
        value=pl.when(pl.col("span_ns") > 0).then(pl.col("idle_ns") / pl.col("span_ns")),
    ),
    *_OUTSIDE,
    *LAUNCHES,
    Column(
        "copy_ns",
        TIME,
        "the union of copies; null in CPU-only traces, as all that follow",
        value=pl.when(_ON_GPU).then("copy_ns"),
    ),
    Column(
        "copy_exposed_ns",
        TIME,
        "its part not overlapped with kernels",
        value=pl.when(_ON_GPU).then(pl.col("with_copies") - pl.col("kernel_ns")),
    ),
    Column(
        "collective_ns",
        TIME,
        "the union of the kernels of collectives",
        value=pl.when(_ON_GPU).then("collective_ns"),
    ),
    Column(
        "collective_exposed_ns",
        TIME,
        "its part not overlapped with other kernels",
        value=pl.when(_ON_GPU).then(pl.col("kernel_ns") - pl.col("compute")),
    ),
)
"""The columns of :func:`devices`."""


def busy(trace: Trace) -> Result:
    """Return one row per device with work, with the columns :data:`BUSY`."""
    activities = work(trace, *PER_DEVICE, "start", "duration").drop_nulls("device")
    worked = aggregated(activities, PER_DEVICE, BUSY)
    whole = trace.whole
    windows = analyzed_windows(trace)
    ran = work(whole, *PER_DEVICE, "kind", "start", "duration").drop_nulls("device")
    inside = windows.select(
        *PER_DEVICE,
        (pl.col("end") - pl.col("start")).alias("span_ns"),
        busy_time(whole).within(windows).alias("busy_ns"),
        computing(ran).within(windows).alias("kernel_ns"),
    )
    frame = (
        worked.join(
            inside.group_by(PER_DEVICE).agg(pl.all().sum()), on=PER_DEVICE, nulls_equal=True
        )
        .join(_outside(trace), on="rank", how="left", nulls_equal=True)
        .sort(PER_DEVICE)
    )
    frame = conformed(completed(frame, BUSY), BUSY)
    notes = (why_no_work(trace),) if frame.is_empty() else ()
    return Result(frame, sums(frame, "span_ns", "busy_ns", "idle_ns", "sum_ns"), notes, BUSY)


def devices(trace: Trace, *, found: IdleTime | None = None) -> Result:
    """Return one row per device with work, with the columns :data:`DEVICES`.

    ``found`` is the result of :func:`traceana.timeline.idle.idle_time`, if already computed.
    """
    found = found or idle_time(trace)
    windows = found.windows
    spans = windows.group_by(PER_DEVICE, maintain_order=True).agg(
        (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    )
    inside = windows.select(
        *PER_DEVICE,
        *(
            intervals.within(windows).alias(name)
            for name, intervals in _unions(trace, found).items()
        ),
    )
    frame = (
        spans.join(inside.group_by(PER_DEVICE).agg(pl.all().sum()), on=PER_DEVICE, nulls_equal=True)
        .with_columns(pl.when(_ON_GPU).then("kernel_ns").otherwise("busy_ns").alias("kernel_ns"))
        .join(_outside(trace), on="rank", how="left", nulls_equal=True)
        .join(launches(trace), on=PER_DEVICE, how="left", nulls_equal=True)
        .sort(PER_DEVICE)
    )
    frame = conformed(completed(frame, DEVICES), DEVICES)
    notes = () if frame.height else (why_no_work(trace),)
    return Result(frame, sums(frame, *names_of(_PARTS)), notes, DEVICES)


def step_parts(trace: Trace) -> pl.DataFrame:
    """Return the parts of each step on each device, which add up to the step.

    Columns: ``step`` (row of ``steps``), ``rank``, ``device``, ``part`` and ``time_ns``. The parts
    are ``kernels``, ``exposed collectives``, ``exposed copies`` (with memsets), ``work`` (of a CPU)
    and the causes of idle time.
    """
    idle = idle_time(trace)
    windows = device_windows(trace)
    ns = {name: intervals.within(windows) for name, intervals in _unions(trace, idle).items()}
    cpu = windows["device"] == CPU_DEVICE
    worked = {
        "work": ns["busy_ns"] * cpu.cast(pl.Int64),
        "kernels": ns["compute"],
        "exposed collectives": ns["kernel_ns"] - ns["compute"],
        "exposed copies": (ns["busy_ns"] - ns["kernel_ns"]) * (~cpu).cast(pl.Int64),
    }
    each = windows.select("step", *PER_DEVICE)
    parts = [
        each.with_columns(pl.lit(part).alias("part"), time.alias("time_ns"))
        for part, time in worked.items()
    ]
    inside = within(idle.gaps, windows)
    gaps = each[inside["window"]].with_columns(
        idle.gaps["cause"].gather(inside["gap"]).cast(pl.String).alias("part"), inside["time_ns"]
    )
    return (
        pl.concat([*parts, gaps.select(parts[0].columns)])
        .group_by("step", *PER_DEVICE, "part", maintain_order=True)
        .agg(pl.col("time_ns").sum())
        .filter(pl.col("time_ns") > 0)
    )


def _outside(trace: Trace) -> pl.DataFrame:
    """Return the time outside the capture by rank; none where steps are selected."""
    times = outside(trace.whole)
    return times.clear() if selects_steps(trace) else times


def _unions(trace: Trace, idle: IdleTime) -> dict[str, Busy]:
    """Return the unions of all work, of kernels, of copies, of collectives, and of combinations.

    ``with_copies``: kernels and copies; ``compute``: kernels except collectives.
    """
    activities = trace.whole.tables.activities
    kind = activities["kind"]
    kernel, copy = (kind.is_in(kinds).to_numpy() for kinds in (COMPUTING, ["memcpy"]))
    collective = (
        kernel & labels(trace.whole.tables, "category")["category"].eq("collective").to_numpy()
    )
    wanted = {
        "kernel_ns": kernel,
        "copy_ns": copy,
        "with_copies": kernel | copy,
        "collective_ns": collective,
        "compute": kernel & ~collective,
    }
    unions = {"busy_ns": idle.busy()}
    for name, rows in wanted.items():
        ran = {}
        for device in idle.work:
            kept = rows[device.row]
            ran[device.device] = union(device.start[kept], device.end[kept])
        unions[name] = Busy(ran)
    return unions


def launches(trace: Trace) -> pl.DataFrame:
    """Return one row per device with work that calls launched, with the columns :data:`LAUNCHES`
    after its ``rank`` and ``device``."""
    measured = measured_windows(trace)
    launched = trace.tables.activities.select(
        *PER_DEVICE, "kind", "start", "duration", "call", "step"
    ).filter(
        (pl.col("kind") != "sync") & pl.col("call").is_not_null() & pl.col("device").is_not_null()
    )
    counts = measured.group_by(PER_DEVICE).len().rows()
    steps = {(rank, device): count for rank, device, count in counts}
    inside = launched["step"].is_in(measured["step"].unique().implode()).fill_null(value=False)
    in_steps, call = inside.to_numpy(), launched["call"].to_numpy()
    kernels = _Kernels.of(trace, launched)
    rows = []
    for device, here in rows_by_device(launched):
        first = here[np.unique(call[here], return_index=True)[1]]
        count = steps.get(device)
        per_step = int(in_steps[first].sum()) / count if count else None
        rows.append((*device, len(first), per_step, *kernels.figures(here)))
    schema = {column.name: column.dtype for column in (*DEVICE_COLUMNS, *LAUNCHES)}
    return pl.DataFrame(rows, schema=schema, orient="row")


class _Kernels(msgspec.Struct, frozen=True):
    """Launched work: which rows are kernels, which are launch-bound, durations, launch delays."""

    kernel: Flags
    bound: Flags
    duration: Ints
    delay: Ints

    @classmethod
    def of(cls, trace: Trace, launched: pl.DataFrame) -> _Kernels:
        """Return the columns of ``launched``, whose rows all have a call."""
        kernel = launched["kind"].is_in(["kernel", "graph"]).to_numpy()
        call, duration = launched["call"].to_numpy(), launched["duration"].to_numpy()
        took = trace.tables.calls["duration"].to_numpy()
        # Sums are exact: the work of one call takes less than 2**53 ns, a hundred days.
        of_call = np.bincount(call[kernel], duration[kernel], minlength=len(took))
        returned = (trace.tables.calls["start"].to_numpy() + took)[call]
        delay = launched["start"].to_numpy() - returned
        return cls(kernel, kernel & (of_call < took)[call], duration, delay)

    def figures(self, rows: Ints) -> tuple[int | float | None, ...]:
        """Return the last five columns of :func:`launches` for ``rows``, of one device."""
        kernels = rows[self.kernel[rows]]
        if not len(kernels):
            return (None,) * 5
        bound = kernels[self.bound[kernels]]
        delay = pl.Series(self.delay[kernels])
        return (
            len(bound),
            int(self.duration[bound].sum()),
            len(bound) / len(kernels),
            *(int(delay.quantile(part, "lower")) for part in (0.5, 0.95)),  # type: ignore[arg-type]
        )
