"""Any number of runs side by side: a summary of each run, and tables by layer, class, kernel …"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
import polars as pl

from traceana.analyze.devices import launches
from traceana.analyze.summaries import needs_timeline
from traceana.comparison.compared_run import Run, RunSteps, devices, run_flops
from traceana.comparison.layer_table import layer_table
from traceana.comparison.run_inputs import Pairs, labels, opened, recorded_batch, runs_in
from traceana.comparison.run_tables import (
    RATIO,
    RUN,
    Table,
    algorithms,
    classes,
    comparable,
    epilogues,
    gemms,
    kernels,
    marked,
    transfers,
    unmarked,
)

if TYPE_CHECKING:
    from traceana.model import Manifest
    from traceana.trace import Trace

BATCHES: Final = "batch sizes differ: times are per step, not per image"

_KERNELS: Final = ("kernel", "op", "graph")
_MOST_LIBRARIES: Final = 3
_WINDOWS: Final = ("wall_ns", "available_ns", "busy_ns")
SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    RUN: pl.String,
    "file": pl.String,
    "framework": pl.String,
    "devices": pl.String,
    "libraries": pl.String,
    "steps": pl.Int64,
    "batch": pl.Int64,
    "layers": pl.Int64,
    "wall_ns": pl.Int64,
    "mean_wall_ns": pl.Int64,
    "image_ns": pl.Int64,
    RATIO: pl.Float64,
    "image_to_first": pl.Float64,
    "step_kernels": pl.Float64,
    "step_launches": pl.Float64,
    "step_copies": pl.Float64,
    "step_ns": pl.Int64,
    "idle_ns": pl.Int64,
    "idle_share": pl.Float64,
    "flops": pl.Float64,
    "flops_per_s": pl.Float64,
}

By = Literal["summary", "layer", "class", "algorithm", "kernel", "gemm", "epilogue", "transfer"]
Given: TypeAlias = "Trace | str | os.PathLike[str]"


def summary_table(runs: Sequence[Run]) -> Table:
    """Return one row per run: its file, devices and libraries, and the time and work of a step.

    ``file``, ``framework``, ``devices``, ``libraries``
        ``libraries`` are those of its kernels, by time, comma-separated. Null: unknown.
    ``steps``, ``batch``, ``layers``
        Measured steps (null without marked steps), images per step (of the recorded run, or by the
        shapes of the layers' inputs), layers with work.
    ``wall_ns``, ``mean_wall_ns``, ``image_ns``
        Median and mean of the step's wall time; the median over the batch; all rounded down.
    ``to_first``, ``image_to_first``
        ``wall_ns`` and ``image_ns`` over those of the first run. Null for recordings
        that may differ in iterations: :func:`traceana.comparison.run_tables.comparable`.
    ``step_kernels``, ``step_launches``, ``step_copies``
        Mean numbers per step; launches are calls that launched work, on all devices, null where the
        trace has no calls.
    ``step_ns``, ``idle_ns``, ``idle_share``
        Means: the durations of the work; the time in which the devices that a step used did
        nothing, summed over the devices, and its share of their time.
    ``flops``, ``flops_per_s``
        FLOPs of the layers per step, a multiply-accumulate being two; FLOP/s over ``mean_wall_ns``,
        idle time included. Null if neither the trace nor its manifest has shapes.

    Where not all runs mark steps, each run is one step from its first to the end of its last work.
    """
    whole, ratios = not marked(runs), comparable(runs)
    rows = [_row(run, run.whole if whole else run.measured, whole=whole) for run in runs]
    for row in rows:
        for ratio, of in ((RATIO, "wall_ns"), ("image_to_first", "image_ns")):
            known = ratios and row[of] is not None and rows[0][of]
            row[ratio] = row[of] / rows[0][of] if known else None
    figures = tuple(column for column in SCHEMA if column != RUN)
    labels = tuple(run.label for run in runs)
    notes = [*unmarked(runs)]
    if len({row["batch"] for row in rows} - {None}) > 1:
        notes.append(BATCHES)
    return Table(pl.DataFrame(rows, schema=SCHEMA), (), figures, "wall_ns", labels, tuple(notes))


def _row(run: Run, one: RunSteps, *, whole: bool) -> dict[str, Any]:
    steps, cells = one.frame, one.cells
    if run.trace.is_summary:
        # It has the time of the work alone.
        steps = steps.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _WINDOWS)
    walls = steps["wall_ns"]
    timed = walls.null_count() == 0
    mean = int(walls.sum()) // one.count if timed else None
    median = int(walls.median() or 0) if timed else None  # type: ignore[arg-type]
    available, busy = int(steps["available_ns"].sum()), int(steps["busy_ns"].sum())
    batch = run.batch
    flops = run_flops(run.trace, run.model, whole=whole)
    kind = pl.col("kind")
    return {
        RUN: run.label,
        "file": run.trace.meta.source,
        "framework": run.trace.meta.framework,
        "devices": devices(run.trace) or None,
        "libraries": _libraries(run),
        "steps": run.measured.count if run.measured.marked else None,
        "batch": batch,
        "layers": len(run.layers.layers),
        "wall_ns": median,
        "mean_wall_ns": mean,
        "image_ns": median // batch if batch and median and not whole else None,
        "step_kernels": _calls(cells, kind.is_in(_KERNELS)) / one.count,
        "step_launches": _launches(run, whole=whole),
        "step_copies": _calls(cells, kind == "memcpy") / one.count,
        "step_ns": int(steps["work_ns"].sum()) // one.count,
        "idle_ns": (available - busy) // one.count if timed else None,
        "idle_share": (available - busy) / available if available else None,
        "flops": flops,
        "flops_per_s": flops / mean * 1e9 if flops is not None and mean else None,
    }


def _calls(cells: pl.DataFrame, chosen: pl.Expr) -> int:
    return int(cells.filter(chosen)["calls"].sum())


def _launches(run: Run, *, whole: bool) -> float | None:
    found = launches(run.trace)
    column = found["launches" if whole else "step_launches"]
    return None if column.null_count() == len(column) else float(column.sum())


def _libraries(run: Run) -> str | None:
    kernels = run.whole.cells.filter(
        pl.col("kind").is_in(_KERNELS) & pl.col("library").is_not_null()
    )
    ordered = (
        kernels.group_by("library")
        .agg(pl.col("time_ns").sum())
        .sort(["time_ns", "library"], descending=[True, False])
    )
    return ", ".join(ordered["library"].head(_MOST_LIBRARIES)) or None


_TABLES: Final[dict[By, Callable[[Sequence[Run]], Table]]] = {
    "summary": summary_table,
    "layer": layer_table,
    "class": classes,
    "algorithm": algorithms,
    "kernel": kernels,
    "gemm": gemms,
    "epilogue": epilogues,
    "transfer": transfers,
}


class Comparison(msgspec.Struct, frozen=True):
    """Several runs side by side.

    :meth:`by` returns a :class:`~traceana.comparison.run_tables.Table` with one row per run and
    item, which can be pivoted (:meth:`Table.pivot`).
    """

    runs: tuple[Run, ...]

    def by(self, what: By) -> Table:
        """Return the table of all runs; its function describes the columns."""
        if what == "layer":
            for run in self.runs:
                needs_timeline(run.trace, "compare --by layer")
        return _TABLES[what](self.runs)


def compare(
    runs: Sequence[Given] | Mapping[str, Given] | str | os.PathLike[str],
    *,
    models: Sequence[Manifest | None] | None = None,
    pairs: Sequence[Pairs | None] | None = None,
) -> Comparison:
    """Return several runs side by side; ratios are to the first.

    The parameters, and the errors raised, are those of :func:`traceana.compare`.
    """
    names, given = _given(runs)
    if len(given) < 2:
        raise ValueError(f"{len(given)} runs given: a comparison needs two or more")
    models = [None] * len(given) if models is None else models
    forced = [None] * (len(given) - 1) if pairs is None else pairs
    if len(models) != len(given) or len(forced) != len(given) - 1:
        raise ValueError(f"{len(given)} runs need {len(given)} models and {len(given) - 1} pairs")
    found = [opened(one, model) for one, model in zip(given, models, strict=True)]
    if not names:
        names = labels([Path(trace.meta.source) for trace, _ in found])
    return Comparison(
        tuple(
            Run(name, trace, model, recorded_batch(one), own)
            for name, (trace, model), one, own in zip(
                names, found, given, (None, *forced), strict=True
            )
        )
    )


def _given(
    runs: Sequence[Given] | Mapping[str, Given] | str | os.PathLike[str],
) -> tuple[Sequence[str], Sequence[Given]]:
    """Return the labels, empty where the traces' files determine them, and the runs."""
    if isinstance(runs, Mapping):
        return [str(name) for name in runs], list(runs.values())
    listed = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    paths = [Path(one) for one in listed if isinstance(one, str | os.PathLike)]
    if len(paths) < len(listed):
        return [], listed
    found = runs_in(paths)
    return found.labels, found.paths
