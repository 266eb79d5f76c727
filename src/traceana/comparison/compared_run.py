"""One run of a comparison: its measured steps with their work, its layers, devices and FLOPs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.analyze import summaries
from traceana.analyze.idle_gaps import capture_ns
from traceana.analyze.intervals import Busy
from traceana.analyze.layers import layers
from traceana.analyze.manifest_pairing import with_names_of
from traceana.analyze.per_trace import per_small_trace, per_trace
from traceana.analyze.selection import select
from traceana.analyze.steps import measured_steps, steps
from traceana.analyze.work import work
from traceana.comparison.layer_features import RunLayers, run_layers
from traceana.comparison.run_inputs import Pairs
from traceana.comparison.step_work import cells

if TYPE_CHECKING:
    from traceana.model import Manifest
    from traceana.trace import Trace

STEPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "number": pl.Int64,
    "wall_ns": pl.Int64,
    "available_ns": pl.Int64,
    "work_ns": pl.Int64,
    "busy_ns": pl.Int64,
    "calls": pl.Int64,
}


class Run:
    """A labelled trace with the layer manifest of its model, if any.

    Steps and layers are computed once, on first use.
    """

    def __init__(
        self,
        label: str,
        trace: Trace,
        model: Manifest | None = None,
        batch: int | None = None,
        pairs: Pairs | None = None,
    ) -> None:
        """Set the label of ``trace``; the runs of one comparison need distinct labels.

        ``batch`` is the number of images per step, where the run's folder records it. ``pairs``
        maps layers of the comparison's first run to layers of this one.
        """
        self.label = label
        self.trace = with_names_of(trace, model)
        self.model = model
        self.pairs = pairs
        self._batch = batch

    @cached_property
    def measured(self) -> RunSteps:
        """The measured steps; :attr:`whole`, with ``marked`` False, where the trace marks none."""
        return run_steps(self.trace)

    @cached_property
    def whole(self) -> RunSteps:
        """The whole recording as one step."""
        return run_steps(self.trace, whole=True) if self.measured.marked else self.measured

    @cached_property
    def layers(self) -> RunLayers:
        """The layers."""
        return run_layers(self.trace, self.model)

    @property
    def batch(self) -> int | None:
        """The images per step: ``batch``, else from the shapes of the layers' inputs."""
        return self._batch or self.layers.batch


class RunSteps(msgspec.Struct, frozen=True):
    """The measured steps of one run.

    ``frame`` has a row per step (:data:`STEPS`): ``wall_ns`` (the longest of several processes),
    ``available_ns`` (wall time times the devices that the step used, summed over processes),
    ``work_ns`` (summed durations of the work that it launched), ``busy_ns`` (union of all work in
    the step's window, summed over its devices), ``calls``. ``cells`` is the work of the steps
    (:func:`traceana.comparison.step_work.cells`); its ``step`` is a row of ``frame``. ``marked`` is
    False where the trace has no steps: the whole recording is then one step. ``timed`` is False
    for a printed summary, whose windows are unknown; they are its summed work.
    """

    frame: pl.DataFrame
    cells: pl.DataFrame
    marked: bool
    notes: tuple[str, ...]
    timed: bool = True

    def untimed(self) -> RunSteps:
        """Return the steps as those of a summary: their windows are their summed work."""
        work = pl.col("work_ns")
        windows = (work.alias(name) for name in ("wall_ns", "available_ns", "busy_ns"))
        return replace(self, frame=self.frame.with_columns(windows), timed=False)

    @property
    def count(self) -> int:
        """The number of steps."""
        return self.frame.height


@per_small_trace
def run_steps(trace: Trace, *, whole: bool = False) -> RunSteps:
    """Return the measured steps of ``trace``, without warm-up, and their work.

    With ``whole``, and where the trace marks no steps, the whole recording is one step.
    """
    measured = measured_steps(trace)
    if whole or not measured.rows:
        return _whole(trace)
    rows = (
        steps(trace)
        .frame.filter(~pl.col("warm_up"))
        .with_columns((pl.col("wall_ns") * pl.max_horizontal("devices", 1)).alias("available_ns"))
    )
    by_number = (
        rows.group_by("step")
        .agg(
            pl.col("start_ns").min(),
            pl.col("wall_ns").max(),
            pl.col("available_ns", "work_ns", "busy_ns", "calls").sum(),
        )
        .sort("start_ns", "step")
        .rename({"step": "number"})
        .select(*STEPS)
        .cast(pl.Schema(STEPS))
    )
    place_of = {number: row for row, number in enumerate(by_number["number"])}
    numbers = trace.steps["number"].gather(measured.rows)
    step_of = {row: place_of[number] for row, number in zip(measured.rows, numbers, strict=True)}
    step = work(trace, "step")["step"].replace_strict(step_of, default=None, return_dtype=pl.UInt32)
    return RunSteps(by_number, cells(trace, step), True, measured.notes)


def _whole(trace: Trace) -> RunSteps:
    if trace.is_summary:
        return _printed(trace)
    activities = work(trace, "rank", "device", "start", "duration")
    span = capture_ns(trace) or 0
    devices = activities.select("rank", "device").drop_nulls("device").unique()
    busy = Busy.of(activities)
    row = {
        "number": 0,
        "wall_ns": span,
        "available_ns": span * max(devices.height, 1),
        "work_ns": int(activities["duration"].sum()),
        "busy_ns": sum(busy.total(device) for device in busy.by_device),
        "calls": activities.height,
    }
    step = pl.zeros(activities.height, pl.UInt32, eager=True)
    note = "no steps marked: the whole recording is one step"
    return RunSteps(pl.DataFrame([row], schema=STEPS), cells(trace, step), False, (note,))


def _printed(trace: Trace) -> RunSteps:
    """Return a summary as one step. It has no wall time: its window is its summed work."""
    rows = summaries.counted(trace)
    time = dict.fromkeys(("wall_ns", "available_ns", "work_ns", "busy_ns"), rows["total_ns"].sum())
    row = {"number": 0, **time, "calls": rows["calls"].sum()}
    note = "printed summary without steps: all its work is one step"
    return RunSteps(
        pl.DataFrame([row], schema=STEPS),
        cells(trace, pl.Series([], dtype=pl.UInt32)),
        False,
        (note,),
        timed=False,
    )


def devices(trace: Trace) -> str:
    """Return the names of the used devices with their counts: ``2 x Tesla V100``."""
    if trace.on_cpu:
        return "CPU"
    used = work(trace, "rank", "device").drop_nulls("device").unique()
    known = trace.devices.with_columns(pl.col("device").cast(pl.Int32))
    names = used.join(known, on=["rank", "device"], how="left", nulls_equal=True)
    counted = names.group_by(pl.col("name").fill_null("unknown GPU")).len().sort("name")
    return ", ".join(f"{n} x {name}" if n > 1 else str(name) for name, n in counted.iter_rows())


@per_trace
def step_flops(
    trace: Trace, model: Manifest | None = None, *, whole: bool = False
) -> dict[str, float]:
    """Return by layer the FLOPs of all its passes, mean over the measured steps of ``trace``.

    Layers without shapes in the trace and in ``model``, and those with uncounted work, are left
    out. With ``whole``, and without steps, the FLOPs are those of the whole recording.
    """
    numbers = trace.steps["number"].gather(measured_steps(trace).rows).unique().to_list()
    part = select(trace, steps=numbers) if numbers and not whole else trace
    table = layers(part, model=model).frame.filter(
        pl.col("role") == "layer", pl.col("flops_per_s").is_not_null(), pl.col("flops") > 0
    )
    steps = 1 if whole else max(len(numbers), 1)
    return dict(table.select("layer", pl.col("flops") / steps).iter_rows())
