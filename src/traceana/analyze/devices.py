"""Time of each device: busy, idle, launches, exposed copies and collectives.

``busy`` is the short table of the overview, ``devices`` the table of ``traceana idle``.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from traceana.timeline.idle import IdleTime, idle_time
from traceana.timeline.idle_gaps import (
    DeviceWork,
    analyzed_windows,
    measured_windows,
    outside,
    selects_steps,
    within,
)
from traceana.timeline.steps import device_windows
from traceana.timeline.work import why_no_work, work
from traceana.trace.schema import CPU_DEVICE
from traceana.trace.work import labels

if TYPE_CHECKING:
    from traceana.trace import Trace

_SUMMED: Final = ("span_ns", "busy_ns", "kernel_ns", "memops_only_ns", "idle_ns")
_COLUMNS: Final = (
    *PER_DEVICE,
    *_SUMMED,
    *(
        "idle_share",
        "before_ns",
        "after_ns",
        "launches",
        "step_launches",
        "launch_bound",
        "launch_bound_ns",
    ),
    *(
        "launch_bound_share",
        "launch_delay_median_ns",
        "launch_delay_p95_ns",
        "copy_ns",
        "copy_exposed_ns",
    ),
    *("collective_ns", "collective_exposed_ns"),
)


def busy(trace: Trace) -> Result:
    """Return one row per device with work.

    Columns: ``rank``, ``device``, ``calls``, ``start_ns`` (its first activity), ``span_ns`` (of
    the capture, or of the selected steps, as in ``idle``), ``busy_ns`` (union of all activities in
    it), ``kernel_ns`` (union of the kernels, and of CUDA graphs recorded as one activity),
    ``memops_only_ns`` (busy without a kernel: copies and memsets), ``idle_ns``
    (``span_ns - busy_ns``), ``sum_ns`` (sum of the durations: more than ``busy_ns`` where streams
    overlap), ``before_ns`` and ``after_ns`` (as in :func:`devices`).
    """
    activities = work(trace, *PER_DEVICE, "start", "duration").drop_nulls("device")
    worked = activities.group_by(PER_DEVICE).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("start").min().alias("start_ns"),
        pl.col("duration").sum().alias("sum_ns"),
    )
    whole = trace.whole
    windows = analyzed_windows(trace)
    ran = work(whole, *PER_DEVICE, "kind", "start", "duration").drop_nulls("device")
    inside = windows.select(
        *PER_DEVICE,
        (pl.col("end") - pl.col("start")).alias("span_ns"),
        Busy.of(ran).within(windows).alias("busy_ns"),
        computing(ran).within(windows).alias("kernel_ns"),
    )
    frame = (
        worked.join(
            inside.group_by(PER_DEVICE).agg(pl.all().sum()), on=PER_DEVICE, nulls_equal=True
        )
        .join(_outside(trace), on="rank", how="left", nulls_equal=True)
        .sort(PER_DEVICE)
        .select(
            *PER_DEVICE,
            "calls",
            "start_ns",
            "span_ns",
            "busy_ns",
            "kernel_ns",
            (pl.col("busy_ns") - pl.col("kernel_ns")).alias("memops_only_ns"),
            (pl.col("span_ns") - pl.col("busy_ns")).alias("idle_ns"),
            "sum_ns",
            "before_ns",
            "after_ns",
        )
    )
    notes = (why_no_work(trace),) if frame.is_empty() else ()
    return Result(frame, sums(frame, "span_ns", "busy_ns", "idle_ns", "sum_ns"), notes)


def devices(trace: Trace, *, found: IdleTime | None = None) -> Result:
    """Return one row per device with work.

    ``span_ns``, ``busy_ns``, ``idle_ns``, ``idle_share``
        Length of the analyzed windows, the union of all work in them, from any step, and the rest;
        ``busy_ns + idle_ns == span_ns``.
    ``before_ns``, ``after_ns``
        Time of the recording before and after the capture, without activity on any device of the
        rank; null where steps are selected.
    ``kernel_ns``, ``memops_only_ns``
        The union of kernels (and of CUDA graphs recorded as one activity); busy time without a
        kernel: copies and memsets.
    ``launches`` … ``launch_delay_p95_ns``
        See :func:`launches`.
    ``copy_ns``, ``copy_exposed_ns``
        The union of copies, and its part that no kernel overlaps.
    ``collective_ns``, ``collective_exposed_ns``
        The union of the kernels of collectives, and its part that no other kernel overlaps.

    For the CPU (traces without GPU work) all from ``launches`` on are null, and ``kernel_ns`` is
    its busy time. ``found`` is :func:`traceana.timeline.idle.idle_time`, if already computed.
    """
    found = found or idle_time(trace)
    windows = found.windows
    spans = windows.group_by(PER_DEVICE, maintain_order=True).agg(
        (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    )
    inside = windows.select(
        *PER_DEVICE,
        *(one.within(windows).alias(name) for name, one in _unions(trace, found).items()),
    )
    on_gpu = pl.col("device") != CPU_DEVICE
    span, busy_ns = pl.col("span_ns"), pl.col("busy_ns")
    kernel_ns, collective_ns = pl.col("kernel_ns"), pl.col("collective_ns")
    frame = (
        spans.join(inside.group_by(PER_DEVICE).agg(pl.all().sum()), on=PER_DEVICE, nulls_equal=True)
        .with_columns(pl.when(on_gpu).then(kernel_ns).otherwise(busy_ns).alias("kernel_ns"))
        .with_columns(
            (busy_ns - kernel_ns).alias("memops_only_ns"),
            (span - busy_ns).alias("idle_ns"),
            pl.when(span > 0).then((span - busy_ns) / span).alias("idle_share"),
            pl.when(on_gpu).then("copy_ns").alias("copy_ns"),
            pl.when(on_gpu).then(pl.col("with_copies") - kernel_ns).alias("copy_exposed_ns"),
            pl.when(on_gpu).then(collective_ns).alias("collective_ns"),
            pl.when(on_gpu).then(kernel_ns - pl.col("compute")).alias("collective_exposed_ns"),
        )
        .join(_outside(trace), on="rank", how="left", nulls_equal=True)
        .join(launches(trace), on=PER_DEVICE, how="left", nulls_equal=True)
        .select(_COLUMNS)
        .sort(PER_DEVICE)
    )
    notes = () if frame.height else (why_no_work(trace),)
    return Result(frame, sums(frame, *_SUMMED), notes)


def step_parts(trace: Trace) -> pl.DataFrame:
    """Return the parts of each step on each device, which add up to the step.

    Columns: ``step`` (row of ``steps``), ``rank``, ``device``, ``part`` and ``time_ns``. The parts
    are ``kernels``, ``exposed collectives``, ``exposed copies`` (with memsets), ``work`` (of a CPU)
    and the causes of idle time.
    """
    found = idle_time(trace)
    windows = device_windows(trace)
    ns = {name: one.within(windows) for name, one in _unions(trace, found).items()}
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
    inside = within(found.gaps, windows)
    gaps = each[inside["window"]].with_columns(
        found.gaps["cause"].gather(inside["gap"]).cast(pl.String).alias("part"), inside["time_ns"]
    )
    return (
        pl.concat([*parts, gaps.select(parts[0].columns)])
        .group_by("step", *PER_DEVICE, "part", maintain_order=True)
        .agg(pl.col("time_ns").sum())
        .filter(pl.col("time_ns") > 0)
    )


def _outside(trace: Trace) -> pl.DataFrame:
    """Return the time outside the capture by rank; none where steps are selected."""
    found = outside(trace.whole)
    return found.clear() if selects_steps(trace) else found


def _unions(trace: Trace, found: IdleTime) -> dict[str, Busy]:
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
    unions = {name: _union(found.work, rows) for name, rows in wanted.items()}
    return {"busy_ns": found.busy(), **unions}


def _union(work: Sequence[DeviceWork], rows: Flags) -> Busy:
    """Return when ``rows`` of activities ran."""
    unions = {}
    for one in work:
        kept = rows[one.row]
        unions[one.device] = union(one.start[kept], one.end[kept])
    return Busy(unions)


def launches(trace: Trace) -> pl.DataFrame:
    """Return one row per ``rank`` and ``device`` with work that calls launched.

    ``launches``
        Calls that launched work of any kind. ``step_launches``: mean over the measured steps.
    ``launch_bound``, ``launch_bound_ns``, ``launch_bound_share``
        Launch-bound kernels: their launching call takes longer than all work it launched. Number,
        summed time, and share of the kernels whose launch is recorded.
    ``launch_delay_median_ns``, ``launch_delay_p95_ns``
        Launch delay: from the end of the launching call to the start of the kernel. Median and 95th
        percentile, the lower of two; negative where the kernel starts before the call returns.
    """
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
        first = here[_first_of_each(call[here])]
        count = steps.get(device)
        per_step = int(in_steps[first].sum()) / count if count else None
        rows.append((*device, len(first), per_step, *kernels.figures(here)))
    return pl.DataFrame(rows, schema=_LAUNCHES, orient="row")


_LAUNCHES: Final = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "launches": pl.Int64,
    "step_launches": pl.Float64,
    "launch_bound": pl.Int64,
    "launch_bound_ns": pl.Int64,
    "launch_bound_share": pl.Float64,
    "launch_delay_median_ns": pl.Int64,
    "launch_delay_p95_ns": pl.Int64,
}


def _first_of_each(calls: Ints) -> Ints:
    """Return the position of the first occurrence of each of ``calls``."""
    if (calls[1:] >= calls[:-1]).all():
        order = np.arange(len(calls))
    else:
        order = np.argsort(calls, kind="stable")
        calls = calls[order]
    return order[np.concatenate(([True], calls[1:] != calls[:-1]))]


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
