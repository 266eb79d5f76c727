"""One run of a comparison: its measured steps with their work, its layers, devices and FLOPs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.analyze import summaries
from traceana.analyze.layers import layers
from traceana.analyze.manifest_layers import with_names_of
from traceana.analyze.run_to_run import relative_spread, spread_of_host, spread_of_work
from traceana.columns.intervals import computing
from traceana.columns.nesting import NONE, Tree, from_rows
from traceana.comparison.columns import WORK
from traceana.comparison.layer_features import RunLayers, run_layers
from traceana.comparison.run_inputs import (
    Given,
    Pairs,
    labels,
    opened,
    recorded_batch,
    runs_in,
)
from traceana.settings import (
    LEAST_COUNTED,
    PREDICTION_DEVIATE,
    RUN_TO_RUN_CPU,
    RUN_TO_RUN_HOST,
    RUN_TO_RUN_KERNELS,
    UNPROFILED_LEAST,
    UNPROFILED_MOST,
)
from traceana.table import names_of, whole_sum
from traceana.timeline.busy import busy_time
from traceana.timeline.copies import copies
from traceana.timeline.idle_gaps import capture_ns
from traceana.timeline.steps import device_windows, measured_steps, select, steps
from traceana.timeline.work import has_frames, work
from traceana.trace import per_small_trace, per_trace
from traceana.trace.schema import TABLES
from traceana.trace.taxonomy import PRODUCTS
from traceana.trace.work import NO_LINE, OUTSIDE, SOURCE, labels_of, layer_labels, passes
from traceana.vocabulary.operators import COMPILED_GRAPH, COMPILED_REGION
from traceana.vocabulary.option_words import WorkBy
from traceana.whatif.program import without_profiler

if TYPE_CHECKING:
    from traceana.runs.layer_manifest import Manifest
    from traceana.trace import Trace

_KERNELS: Final = pl.col("kind").is_in(["kernel", "op", "graph"])
_ALIKE: Final = 0.25
STEPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "number": pl.Int64,
    "wall_ns": pl.Int64,
    "available_ns": pl.Int64,
    "work_ns": pl.Int64,
    "busy_ns": pl.Int64,
    "calls": pl.Int64,
    "kernel_ns": pl.Int64,
    "copy_ns": pl.Int64,
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
        self.trace = with_names_of(without_profiler(trace), model)
        self.model = model
        self.pairs = pairs
        self._batch = batch

    def with_trace(self, trace: Trace) -> Run:
        """Return the run of ``trace``, the same recording with other rows of layers."""
        return Run(self.label, trace, self.model, self._batch, self.pairs)

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
    the step's window, summed over its devices), ``calls``, ``kernel_ns`` and ``copy_ns`` (union of
    the kernels except collectives, and exposed copies in the window, mean over its devices; null
    for a whole recording). ``cells`` is the work of the steps
    (:func:`cells`); its ``step`` is a row of ``frame``. ``marked`` is
    False where the trace has no steps: the whole recording is then one step. ``timed`` is False
    for a printed summary, whose windows are unknown; they are its summed work.
    """

    frame: pl.DataFrame
    cells: pl.DataFrame
    marked: bool
    notes: tuple[str, ...]
    timed: bool = True

    def untimed(self) -> RunSteps:
        """Return the steps as a summary has them: their windows are their summed work."""
        work = pl.col("work_ns")
        windows = (work.alias(name) for name in ("wall_ns", "available_ns", "busy_ns"))
        return replace(self, frame=self.frame.with_columns(windows), timed=False)

    @property
    def count(self) -> int:
        """The number of steps."""
        return self.frame.height

    def spread(self, trace: Trace) -> float:
        """Return the relative standard deviation of the step time of ``trace`` between runs."""
        if trace.on_cpu:
            return spread_of_host(RUN_TO_RUN_CPU, trace.meta)
        sums = self.frame.select(pl.col("wall_ns", "kernel_ns", "copy_ns").sum()).row(0)
        wall, kernels, copied = sums
        work = self.cells.filter(pl.col("kind") == "memcpy")
        # Exact, as the order of the cells can differ from run to run.
        time, error = int(work["time_ns"].sum()), math.fsum(work["spread_ns"].drop_nulls())
        parts = (
            (kernels, RUN_TO_RUN_KERNELS),
            (copied, error / time if time else 0.0),
            (max(wall - kernels - copied, 0), spread_of_host(RUN_TO_RUN_HOST, trace.meta)),
        )
        return relative_spread(parts)


_OF_COST: Final = (UNPROFILED_MOST - UNPROFILED_LEAST) / 2 / PREDICTION_DEVIATE
"""Standard deviation of the host's time without the profiler, relative to its estimate. The host's
variation from run to run is in it."""


def cost_spread(a: Trace, b: Trace) -> float:
    """Return the standard deviation (ns) of the change of the step from ``a`` to ``b`` that is due
    to the profiler's cost: it is more, or less, than estimated in both."""
    ends = [
        (0, 0)
        if trace.meta.step_cost_ns is None or trace.meta.unprofiled_step_ns is not None
        else trace.meta.step_cost_ns
        for trace in (a, b)
    ]
    (low_a, high_a), (low_b, high_b) = ends
    of_both = abs((high_b - low_b) - (high_a - low_a)) / 2 / PREDICTION_DEVIATE
    return of_both * math.sqrt(1 - (RUN_TO_RUN_HOST / _OF_COST) ** 2)


def loaded(
    runs: Sequence[Given] | Mapping[str, Given] | str | os.PathLike[str],
    models: Sequence[Manifest | None] | None = None,
    pairs: Sequence[Pairs | None] | None = None,
) -> tuple[Run, ...]:
    """Return the runs of a comparison, labelled.

    The parameters, and the errors raised, are as in :func:`traceana.compare`.
    """
    names: Sequence[str] = ()
    if isinstance(runs, Mapping):
        names, given = list(map(str, runs)), list(runs.values())
    else:
        given = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
        paths = [Path(path) for path in given if isinstance(path, str | os.PathLike)]
        if len(paths) == len(given):
            inputs = runs_in(paths)
            names, given = inputs.labels, [*inputs.paths]
    if len(given) < 2:
        raise ValueError(f"{len(given)} runs given: a comparison needs two or more")
    models = [None] * len(given) if models is None else models
    forced = [None] * (len(given) - 1) if pairs is None else pairs
    if len(models) != len(given) or len(forced) != len(given) - 1:
        raise ValueError(f"{len(given)} runs need {len(given)} models and {len(given) - 1} pairs")
    traces = [opened(source, model) for source, model in zip(given, models, strict=True)]
    for trace, _ in traces:
        if trace.is_snapshot:
            summaries.needs_timeline(trace, "compare")
    names = names or labels([Path(trace.meta.source) for trace, _ in traces])
    return tuple(
        Run(name, trace, model, recorded_batch(source), forced_pairs)
        for name, (trace, model), source, forced_pairs in zip(
            names, traces, given, (None, *forced), strict=True
        )
    )


@per_small_trace
def run_steps(trace: Trace, *, whole: bool = False) -> RunSteps:
    """Return the measured steps of ``trace``, without warm-up, and their work.

    With ``whole``, and where the trace marks no steps, the whole recording is one step. A summary
    has no wall time: its window is its summed work.
    """
    measured = measured_steps(trace)
    if whole or not measured.rows:
        row: dict[str, int] = {"number": 0}
        if trace.is_summary:
            rows = summaries.counted(trace)
            row["calls"] = int(rows["calls"].sum())
            windows = ("wall_ns", "available_ns", "work_ns", "busy_ns")
            row |= dict.fromkeys(windows, int(rows["total_ns"].sum()))
            note = "printed summary without steps: all its work is one step"
        else:
            rows = work(trace, "rank", "device", "start", "duration")
            busy = busy_time(trace)
            row["wall_ns"] = capture_ns(trace) or 0
            used = rows.select("rank", "device").drop_nulls("device").unique().height
            row["available_ns"] = row["wall_ns"] * max(used, 1)
            row["work_ns"] = int(rows["duration"].sum())
            row["busy_ns"] = sum(busy.total(device) for device in busy.by_device)
            row["calls"] = rows.height
            note = "no steps marked: whole recording"
        one_step = cells(trace, pl.zeros(rows.height, pl.UInt32, eager=True))
        frame = pl.DataFrame([row], schema=STEPS)
        return RunSteps(frame, one_step, False, (note,), timed=not trace.is_summary)
    rows = work(trace, "rank", "device", "start", "duration", "kind", "category")
    kernels = computing(rows.filter(pl.col("category").ne_missing("collective")))
    and_copies = kernels.with_also(rows.filter(pl.col("kind") == "memcpy"))
    of_step = device_windows(trace)
    kernel_ns = kernels.within(of_step)
    numbers = trace.tables.steps["number"]
    of_devices = (
        of_step.select(
            numbers.gather(of_step["step"]),
            kernel_ns.alias("kernel_ns"),
            (and_copies.within(of_step) - kernel_ns).alias("copy_ns"),
        )
        .group_by("number")
        .agg(pl.col("kernel_ns", "copy_ns").mean().round().cast(pl.Int64))
    )
    frame = (
        steps(trace)
        .frame.filter("measured")
        .with_columns((pl.col("wall_ns") * pl.max_horizontal("devices", 1)).alias("available_ns"))
        .group_by(pl.col("step").alias("number"))
        .agg(
            pl.col("start_ns").min(),
            pl.col("wall_ns").max(),
            pl.col("available_ns", "work_ns", "busy_ns", "calls").sum(),
        )
        .sort("start_ns", "number")
        .join(of_devices, on="number", how="left")
        .with_columns(pl.col("kernel_ns", "copy_ns").fill_null(0))
        .select(*STEPS)
        .cast(pl.Schema(STEPS))
    )
    place = {number: row for row, number in enumerate(frame["number"])}
    step_of = {row: place[numbers[row]] for row in measured.rows}
    step = work(trace, "step")["step"].replace_strict(step_of, default=None, return_dtype=pl.UInt32)
    return RunSteps(frame, cells(trace, step), True, measured.notes)


def kernel_counts(runs: Sequence[Run]) -> list[int]:
    """Return the number of kernels of each recording."""
    return [int(run.whole.cells.filter(_KERNELS)["calls"].sum()) for run in runs]


def same_work(runs: Sequence[Run]) -> bool:
    """Return whether the recordings hold the same work, as one iteration of a program each.

    They do if the kernels that they have in common, by name, else by category, have as many calls
    in each for :data:`_ALIKE` of their time. The kernels of a recording with more iterations have
    more calls.
    """
    for key in ("name", "category"):
        of_runs = [
            run.whole.cells.filter(_KERNELS).group_by(key).agg(pl.col("calls", "time_ns").sum())
            for run in runs
        ]
        common = (
            pl.concat(of_runs)
            .group_by(key)
            .agg(pl.len(), pl.col("calls").n_unique() == 1, pl.col("time_ns").sum())
            .filter(pl.col("len") == len(runs))
        )
        if common.height:
            alike = int(common.filter("calls")["time_ns"].sum())
            return alike >= _ALIKE * int(common["time_ns"].sum())
    return not any(kernel_counts(runs))


UNKNOWN_GPU: Final = "unknown GPU"


def devices(trace: Trace) -> str:
    """Return the names of the used devices with their counts: ``2 x Tesla V100``."""
    if trace.on_cpu:
        return "CPU"
    used = work(trace, "rank", "device").drop_nulls("device").unique()
    described = trace.tables.devices.with_columns(pl.col("device").cast(pl.Int32))
    names = used.join(described, on=["rank", "device"], how="left", nulls_equal=True)
    counted = names.group_by(pl.col("name").fill_null(UNKNOWN_GPU)).len().sort("name")
    return ", ".join(f"{n} x {name}" if n > 1 else str(name) for name, n in counted.iter_rows())


@per_trace
def step_flops(
    trace: Trace, model: Manifest | None = None, *, whole: bool = False
) -> dict[str, float]:
    """Return by layer the FLOPs of all its passes, mean over the measured steps of ``trace``.

    Layers without shapes in the trace and in ``model``, and layers with uncounted work, are left
    out. With ``whole``, and without steps, the FLOPs are of the whole recording.
    """
    numbers = measured_steps(trace).numbers
    part = select(trace, steps=numbers) if numbers and not whole else trace
    table = layers(part, model=model).frame.filter(
        pl.col("role") == "layer", pl.col("flops_per_s").is_not_null(), pl.col("flops") > 0
    )
    steps = 1 if whole else max(len(numbers), 1)
    return dict(table.select("layer", pl.col("flops") / steps).iter_rows())


@per_trace
def run_flops(trace: Trace, model: Manifest | None = None, *, whole: bool = False) -> float | None:
    """Return the FLOPs of all layers, as :func:`step_flops`.

    None where layers with less than ``LEAST_COUNTED`` of the time of convolutions, GEMMs, attention
    and recurrent layers have a count: the sum would be of a part of the work.
    """
    flops = step_flops(trace, model, whole=whole)
    rows = work(trace, "layer_path", "duration", "category")
    products = rows.filter(pl.col("category").is_in(PRODUCTS))
    counted = products["layer_path"].cast(pl.String).is_in([*flops])
    times = products["duration"]
    if not flops or int(times.filter(counted).sum()) < LEAST_COUNTED * int(times.sum()):
        return None
    return sum(flops.values())


_COPY: Final = ("copy", "host_memory")
_CLASS: Final = (
    *("name", "precision", "tensor_core", "library", "tile", "gemm_layout", "batched"),
    *("function", "epilogue"),
)

_FUNCTION: Final = "CompiledFunction"
"""AOTAutograd's function of a compiled graph, or with ``Backward`` of its gradient."""
_BEGINS: Final = (COMPILED_REGION, COMPILED_GRAPH)
"""The ranges of Dynamo and Inductor around compiled code."""
KEYS: Final = {by: tuple(names_of(columns)) for by, columns in WORK.items()}
"""The names of the key columns of each grouping; the first is never null."""
OTHER: Final = "(other work)"
"""The row of all work other than GEMMs, or other than copies."""
NO_TILE: Final = "(no tile)"
"""``gemm`` of kernels without a tile and a layout in their name."""
_STRIDED: Final = r"(?i)strided_?batched"
_TENSILE: Final = r"^Cijk_"
_TENSILE_POINTERS: Final = r"_G[BG](?:_|$)"


def cells(trace: Trace, step: pl.Series) -> pl.DataFrame:
    """Return the summed work of ``trace``; ``step`` has the step of each row of the work.

    Work without a step is left out.

    Columns: ``step``, ``layer``, ``role``; ``category``, ``part``, ``direction`` (forward,
    backward, optimizer), ``pass`` (the same, or dgrad or wgrad), ``named_direction`` (that of
    the class); ``compiled`` (a compiled function launched it); ``line`` of the program; ``kind``,
    ``copy_kind``; ``copy`` and ``host_memory``, direction and host memory of copies by
    :func:`traceana.timeline.copies.copies`; of the class ``name``, ``precision``,
    ``tensor_core``, ``library``, ``tile``, ``gemm_layout``, ``batched``, ``function``,
    ``epilogue``; ``calls``, ``time_ns``, ``spread_ns`` (its standard deviation between runs),
    ``bytes`` (null where the size of a copy is unknown).
    """
    if trace.is_summary:
        described_copies = (
            summaries.copies(trace)
            .select("table", "name", pl.col("direction").alias("copy"), "host_memory")
            .unique()
        )
        rows = summaries.counted(trace).join(described_copies, on=["table", "name"], how="left")
        summed = summaries.added(rows, *SOURCE, *_COPY).with_columns(
            pl.lit(0, pl.UInt32).alias("step"),
            pl.lit(None, TABLES["activities"]["layer"]).alias("layer"),
            pl.lit(None, pl.String).alias("direction"),
            pl.lit(value=False).alias("compiled"),
            pl.lit(NO_LINE).alias("line"),
        )
    else:
        each = work(trace)
        each = each.with_columns(step.alias("step"), compiled(trace), _lines(trace, each))
        each = each.with_row_index("at")
        asked = copies(trace).select(pl.col("direction").alias("copy"), "host_memory")
        asked = asked.hstack(each.filter(pl.col("kind") == "memcpy").select("at"))
        summed = (
            each.filter(pl.col("step").is_not_null())
            .join(asked, on="at", how="left", maintain_order="left")
            .group_by(*SOURCE, "layer", "direction", "step", "compiled", "line", *_COPY)
            .agg(
                pl.len().cast(pl.Int64).alias("calls"),
                pl.col("duration").sum().alias("time_ns"),
                whole_sum("bytes"),
            )
            .with_columns(pl.col("direction").cast(pl.String))
        )
    rows = summed.hstack(labels_of(summed, trace.tables))
    spread = spread_of_work(trace)
    layers_of = layer_labels(trace.tables).select(pl.all().gather(rows["layer"]))
    return rows.with_columns(
        trace.tables.names["name"].gather(rows["name_id"]),
        passes(rows).alias("pass"),
        layers_of["layer_path"].cast(pl.String).fill_null(OUTSIDE).alias("layer"),
        layers_of["role"].cast(pl.String).fill_null("unattributed"),
        pl.col("kernel_direction").alias("named_direction"),
    ).select(
        *("step", "layer", "role", "category", "part", "direction", "pass", "named_direction"),
        *("compiled", "line"),
        pl.col("kind", "copy_kind").cast(pl.String),
        *_COPY,
        *_CLASS,
        *("calls", "time_ns"),
        (pl.col("time_ns") * spread).alias("spread_ns"),
        "bytes",
    )


def _lines(trace: Trace, rows: pl.DataFrame) -> pl.Series:
    """Return the line of the program that each row of the work is from, else :data:`NO_LINE`."""
    if not has_frames(trace):
        return pl.Series("line", [NO_LINE], dtype=pl.String).new_from_index(0, rows.height)
    names = trace.tables.frames.select(
        pl.coalesce(
            pl.format("{}: {}", "file", "text"),
            pl.format("{} {}", "file", "function"),
            pl.format("{}:{}", "file", "line"),
        )
    )
    line = names.to_series().gather(rows["frame"])
    return line.fill_null(NO_LINE).alias("line")


def compiled(trace: Trace) -> pl.Series:
    """Return for each row of the work whether code of ``torch.compile`` launched it."""
    rows = work(trace, "op", "range")
    launched = np.zeros(rows.height, dtype=np.bool_)
    for table, name, column in (
        (trace.tables.ops, "name", "op"),
        (trace.tables.ranges, "text", "range"),
    ):
        text = pl.col(name).cast(pl.String)
        marks = text.str.contains(_FUNCTION, literal=True)
        for begin in _BEGINS:
            marks |= text.str.starts_with(begin)
        marked = table.select(marks.fill_null(value=False))[name].to_numpy()
        if marked.any():
            at = from_rows(rows[column])
            launched |= (at != NONE) & (marked | Tree.of_table(table).inside(marked))[at]
    return pl.Series("compiled", launched)


def keyed(cells: pl.DataFrame, by: WorkBy) -> pl.DataFrame:
    """Return ``cells`` (:func:`cells`) with the columns :data:`KEYS`.

    ``algorithm`` and ``pass`` are for convolutions only. For GEMMs ``gemm`` is the tile and the
    layout of the operands in the kernel's name (``128x64_nn``), and ``form`` is ``plain``,
    ``batched``, ``strided batched``, or ``plain or batched`` where name and launch are ambiguous.
    For copies ``direction`` and ``host_memory`` are as in ``transfers``.
    """
    if by == "algorithm":
        conv = pl.col("category") == "conv"
        return cells.with_columns(
            pl.when(conv).then("part").alias("algorithm"),
            pl.when(conv).then(pl.col("pass").cast(pl.String)).alias("pass"),
        )
    if by == "gemm":
        gemm = pl.col("category") == "gemm"
        name = pl.concat_str("tile", "gemm_layout", separator="_", ignore_nulls=True)
        named = pl.when(name == "").then(pl.lit(NO_TILE)).otherwise(name)
        # Tensile's ProblemType.__str__ marks only kernels with arrays of pointers (_GB) or groups
        # (_GG); all its other batched kernels are strided. Kernels of other libraries named batched
        # may also be strided.
        kernel, batched = pl.col("name"), pl.col("batched")
        tensile = kernel.str.contains(_TENSILE) & ~kernel.str.contains(_TENSILE_POINTERS)
        strided = kernel.str.contains(_STRIDED) | tensile
        form = (
            pl.when(batched.is_null())
            .then(pl.lit("plain or batched"))
            .when(batched & strided)
            .then(pl.lit("strided batched"))
            .when(batched)
            .then(pl.lit("batched"))
            .otherwise(pl.lit("plain"))
        )
        return cells.with_columns(
            pl.when(gemm).then(named).otherwise(pl.lit(OTHER)).alias("gemm"),
            pl.when(gemm).then(form).alias("form"),
            *(
                pl.when(gemm).then(column)
                for column in ("precision", "library", "tile", "gemm_layout")
            ),
        )
    if by == "transfer":
        return cells.with_columns(pl.col("copy").fill_null(OTHER).alias("direction"))
    return cells
