"""One run as a diff sees it: its steps, and the work of each, added up by what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.facts import span_ns
from traceana.analyze.intervals import Busy
from traceana.analyze.steps import measured_steps, steps
from traceana.analyze.work import work
from traceana.compare.cells import cells

if TYPE_CHECKING:
    from traceana.trace import Trace

STEPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "number": pl.Int64,
    "wall_ns": pl.Int64,
    "available_ns": pl.Int64,
    "work_ns": pl.Int64,
    "busy_ns": pl.Int64,
    "calls": pl.Int64,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The measured steps of one run.

    ``steps`` has a row a step (:data:`STEPS`): ``wall_ns`` (of several processes the longest),
    ``available_ns`` (wall time times the devices that the step used, added up over processes),
    ``work_ns`` (durations of the work that it launched), ``busy_ns`` (union of all work in the
    step's window, over its devices), ``calls``. ``cells`` has the work of the steps
    (:func:`traceana.compare.cells.cells`), their ``step`` the row of ``steps``. ``marked`` is False
    where the trace has no steps: it is then one, the whole of it.
    """

    steps: pl.DataFrame
    cells: pl.DataFrame
    marked: bool
    notes: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of steps."""
        return self.steps.height


def sample(trace: Trace, *, whole: bool = False) -> Sample:
    """Return the measured steps of ``trace``, warm-up left out, and their work.

    With ``whole``, and where no step is marked, the trace is taken for one step.
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
    step = work(trace)["step"].replace_strict(step_of, default=None, return_dtype=pl.UInt32)
    return Sample(by_number, cells(trace, step), True, measured.notes)


def _whole(trace: Trace) -> Sample:
    activities = work(trace)
    span = span_ns(trace) or 0
    devices = activities.select("rank", "device").drop_nulls("device").unique()
    busy = Busy.of(activities)
    row = {
        "number": 0,
        "wall_ns": span,
        "available_ns": span * max(devices.height, 1),
        "work_ns": int(activities["duration"].sum()),
        "busy_ns": sum(busy.total(at) for at in busy.by_place),
        "calls": activities.height,
    }
    step = pl.zeros(activities.height, pl.UInt32, eager=True)
    note = "the trace marks no steps: all of it is compared as one"
    return Sample(pl.DataFrame([row], schema=STEPS), cells(trace, step), False, (note,))
