"""Several runs side by side: a summary of each, and tables by layer, class, kernel, GEMM …"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.analyze.devices import launches
from traceana.analyze.layers import DIRECTIONS, by_direction
from traceana.analyze.summaries import needs_timeline
from traceana.analyze.transfers import transfers as of_one
from traceana.comparison import run_columns
from traceana.comparison.compared_run import (
    KEYS,
    OTHER,
    Run,
    devices,
    kernel_counts,
    keyed,
    run_flops,
    same_work,
)
from traceana.comparison.layer_rows import aligned, fused_alike
from traceana.result import ratio, with_share
from traceana.settings import LEAST_CONFIDENCE
from traceana.table import Columns, by_name, conformed, names_of
from traceana.vocabulary.option_words import CompareBy, WorkBy

RUN: Final = run_columns.RUN.name
ITEM: Final = run_columns.ITEM.name
RATIO: Final = run_columns.TO_FIRST.name

_WHOLE: Final = "totals of whole recordings"
SGEMM: Final = ("fp32", "tf32")
"""The operand types of SGEMM in BLAS; TF32 uses the same interface."""
BATCHES: Final = "batch sizes differ: times are per step, not per image"
_KERNELS: Final = ("kernel", "op", "graph")
_MOST_LIBRARIES: Final = 3
_TIMES: Final = (*DIRECTIONS, "time_ns")


class Table(msgspec.Struct, frozen=True):
    """One row per run and item.

    ``frame`` begins with ``run`` (its label), ``item`` (the number of the item, the same in all
    runs) and the columns ``keys``, which identify the item; a run has rows only for its own items.
    ``figures`` are the columns shown side by side, the most important first; ``time`` is the basis
    of ``to_first``: each item's sum over the first run's, null where that is 0. ``runs`` are the
    labels in their order, ``columns`` the declarations of the columns of ``frame``; shown are the
    keys that identify an item to a reader.
    """

    frame: pl.DataFrame
    columns: Columns
    keys: tuple[str, ...]
    figures: tuple[str, ...]
    time: str
    runs: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def pivot(self) -> pl.DataFrame:
        """Return one row per item: ``keys``, then the ``figures`` of each run.

        :meth:`column` names their columns. Numbers of several rows of an item are summed, texts
        joined by commas.
        """
        together = []
        for figure in self.figures:
            column = pl.col(figure)
            if self.frame.schema[figure] == pl.String:
                texts = column.drop_nulls().unique(maintain_order=True)
                together.append(texts.str.join(", ").replace("", None))
            elif figure == RATIO:
                together.append(column.first())
            else:
                together.append(pl.when(column.is_not_null().any()).then(column.sum()))
        by_item = self.frame.group_by(RUN, ITEM, maintain_order=True).agg(together)
        wide = self.frame.select(ITEM, *self.keys).unique(ITEM, keep="first").sort(ITEM)
        for run in self.runs:
            of_run = by_item.filter(pl.col(RUN) == run).drop(RUN)
            named = {figure: self.column(run, figure) for figure in self.figures}
            wide = wide.join(of_run.rename(named), on=ITEM, how="left", maintain_order="left")
        return wide.drop(ITEM)

    def pivoted(self) -> Columns:
        """Return the columns of :meth:`pivot`; the columns of a run have it as their group."""
        declared = by_name(self.columns)
        figures = (
            replace(
                declared[figure],
                name=self.column(run, figure),
                scale=declared[figure].scale or figure,
                group=f"{number} {run}",
                shown=True,
                rank=None,
            )
            for number, run in enumerate(self.runs, start=1)
            for figure in self.figures
        )
        return (*(declared[key] for key in self.keys), *figures)

    @staticmethod
    def column(run: str, figure: str) -> str:
        """Return the name of a column of :meth:`pivot`."""
        return f"{run} {figure}"


class Basis(msgspec.Struct, frozen=True):
    """By what runs are compared: the columns of time and calls, and whether ratios have a meaning.

    They have for steps, and for recordings without steps that hold the same work; others may have
    different numbers of iterations. ``notes`` are on runs without steps.
    """

    time: str
    calls: str
    ratios: bool
    notes: tuple[str, ...]


def basis(runs: Sequence[Run]) -> Basis:
    """Return by what ``runs`` are compared: by step, or by recording where not all mark steps."""
    without = [run.label for run in runs if not run.measured.marked]
    if not without:
        return Basis("step_ns", "step_calls", True, ())
    if len(without) < len(runs):
        note = f"no steps marked in {', '.join(without)}: {_WHOLE}, no ratios"
        return Basis("time_ns", "calls", False, (note,))
    counts, alike = kernel_counts(runs), same_work(runs)
    listed = f"kernel counts {', '.join(f'{count:,}' for count in counts)}"
    note = f"({listed if len(set(counts)) > 1 else 'equal kernel counts'})"
    note = f"{_WHOLE} {note}" if alike else f"{_WHOLE}, no ratios {note}"
    return Basis("time_ns", "calls", alike, (f"no steps marked: {note}",))


def table(
    runs: Sequence[Run],
    frames: Sequence[pl.DataFrame],
    keys: tuple[str, ...],
    figures: tuple[str, ...],
    columns: Columns,
    notes: Sequence[str] = (),
) -> Table:
    """Return the table of ``frames``, one per run, with ``columns``.

    ``keys`` identify the items and are columns of every frame. Items are sorted by their time in
    all runs, other work at the end, unless the frames number them. ``to_first`` is appended as the
    last of the figures.
    """
    by = basis(runs)
    labels = tuple(run.label for run in runs)
    rows = pl.concat(
        [
            frame.with_columns(pl.lit(label).alias(RUN))
            for label, frame in zip(labels, frames, strict=True)
        ]
    )
    if ITEM not in rows.columns:
        items = (
            rows.group_by(keys)
            .agg(pl.col(by.time).sum().alias("_most"))
            .sort(
                [pl.col(keys[0]) == OTHER, "_most", *keys],
                descending=[False, True, *(False for _ in keys)],
                nulls_last=True,
            )
            .drop("_most")
            .with_row_index(ITEM)
            .cast({ITEM: pl.Int64})
        )
        rows = rows.join(items, on=keys, how="left", nulls_equal=True, maintain_order="left")
    summed = rows.group_by(RUN, ITEM).agg(pl.col(by.time).sum().alias("_sum"))
    first = summed.filter(pl.col(RUN) == labels[0]).select(ITEM, pl.col("_sum").alias("_first"))
    has_ratio = (pl.col("_first") > 0) & by.ratios
    to_first = pl.when(has_ratio).then(ratio(pl.col("_sum"), pl.col("_first")))
    ratios = summed.join(first, on=ITEM, how="left").select(RUN, ITEM, to_first.alias(RATIO))
    place = {label: at for at, label in enumerate(labels)}
    order = pl.col(RUN).replace_strict(place, return_dtype=pl.Int64)
    frame = rows.join(ratios, on=[RUN, ITEM], how="left", maintain_order="left").sort(
        order, ITEM, maintain_order=True
    )
    all_notes = (*by.notes, *notes)
    frame = conformed(frame, columns)
    return Table(frame, columns, keys, (*figures, RATIO), by.time, labels, all_notes)


def added(
    run: Run,
    keys: Sequence[str],
    prepared: Callable[[pl.DataFrame], pl.DataFrame] = lambda cells: cells,
    times: Sequence[pl.Expr] = (),
) -> pl.DataFrame:
    """Return the work of ``run`` by ``keys``, columns of its cells when they are ``prepared``.

    The columns are ``keys`` and :data:`~traceana.comparison.run_columns.FIGURES`, with further sums
    of ``times``. Most time first.
    """
    figures = [pl.col("calls").sum(), *times, pl.col("time_ns").sum()]
    frame = prepared(run.whole.cells).group_by(keys).agg(figures)
    sums = [name for name in frame.columns if name not in keys]
    of_step = {name: "step_ns" if name == "time_ns" else f"step_{name}" for name in sums}
    if run.measured.marked:
        steps = run.measured.count
        per_step = prepared(run.measured.cells).group_by(keys).agg(figures)
        means = per_step.select(
            *keys,
            (pl.col("calls") / steps).alias("step_calls"),
            *((pl.col(name) // steps).alias(of_step[name]) for name in sums[1:]),
        )
        absent = pl.col("step_ns").is_null()
        frame = frame.join(means, on=keys, how="left", nulls_equal=True).with_columns(
            pl.when(absent).then(0).otherwise(name).alias(name) for name in of_step.values()
        )
    else:
        frame = frame.with_columns(
            pl.lit(None, pl.Float64 if name == "calls" else pl.Int64).alias(of_step[name])
            for name in sums
        )
    return with_share(frame).sort(
        ["time_ns", *keys], descending=[True, *(False for _ in keys)], nulls_last=True
    )


def work(runs: Sequence[Run], by: WorkBy, notes: Sequence[str] = ()) -> Table:
    """Return all work by the columns :data:`traceana.comparison.compared_run.KEYS` of ``by``.

    The rows of a run add up to all its work.
    """
    of = basis(runs)
    frames = [added(run, KEYS[by], lambda cells: keyed(cells, by)) for run in runs]
    return table(runs, frames, KEYS[by], (of.time, of.calls), run_columns.COLUMNS[by], notes)


def gemms(runs: Sequence[Run]) -> Table:
    """Return the GEMMs by kernel.

    All other work is a further item: the rows of a run add up to all its work.
    """
    is_gemm = pl.col("category") == "gemm"
    without = [run.label for run in runs if run.whole.cells.filter(is_gemm).is_empty()]
    return work(runs, "gemm", [f"{label}: no GEMMs" for label in without])


def sgemms(runs: Sequence[Run]) -> Table:
    """Return the rows of :func:`gemms` with the operand types of SGEMM: fp32 and tf32."""
    whole = gemms(runs)
    kept = whole.frame.filter(pl.col("precision").is_in(SGEMM))
    have = set(kept[RUN])
    notes = [f"{run.label}: no SGEMM" for run in runs if run.label not in have]
    return replace(whole, frame=kept, notes=(*whole.notes, *notes))


def transfers(runs: Sequence[Run]) -> Table:
    """Return the copies by direction and host memory. The rows of a run are all its copies."""
    figures, keys = names_of(run_columns.COPIES), KEYS["transfer"]
    frames = [of_one(run.trace).frame.select(*keys, *figures) for run in runs]
    time = basis(runs).time
    shown = ("step_count", "step_bytes") if time == "step_ns" else ("count", "bytes")
    none = [run.label for run, copies in zip(runs, frames, strict=True) if copies.is_empty()]
    notes = [f"{label}: no copies" for label in none]
    columns = run_columns.COLUMNS["transfer"]
    return table(runs, frames, keys, (*shown, "bytes_per_s", time), columns, notes)


SEPARATE: Final = "separate kernel"
FUSED: Final = "fused"

_NEITHER: Final = ("bn_stats",)
"""Epilogues that are neither a bias nor an activation."""

_GRADIENTS: Final = {"drelu": "relu", "dgelu": "gelu", "bgrad": "bias"}
"""The forward operation of cuBLASLt's epilogues of the backward pass."""

_PASSES: Final = {
    **{"forward": "forward", "fprop": "forward"},
    **{"backward": "backward", "dgrad": "backward", "wgrad": "backward"},
}


def epilogues(runs: Sequence[Run]) -> Table:
    """Return the time of bias additions and activations, by library.

    The items are operation, direction and how it runs. The time of fused operations is unknown: it
    is null, and ``calls`` counts them. All other work is a further item: the rows of a run add up
    to all its work.
    """
    named = pl.col("named_direction").replace_strict(_PASSES, default=None, return_dtype=pl.String)
    direction = pl.coalesce("direction", named).alias("direction")
    category = pl.col("category")

    def separate(cells: pl.DataFrame) -> pl.DataFrame:
        here = category.is_in(["bias", "activation"])
        operation = (
            pl.when(category == "bias")
            .then(pl.lit("bias"))
            .when(category == "activation")
            .then(pl.col("function").fill_null("activation"))
            .otherwise(pl.lit(OTHER))
        )
        how = pl.lit(SEPARATE).alias("how")
        keys = (pl.when(here).then(label) for label in (direction, pl.col("library"), how))
        return cells.select("calls", "time_ns", operation.alias("operation"), *keys)

    def fused(cells: pl.DataFrame) -> pl.DataFrame:
        """Return the convolutions and GEMMs once per part of their epilogue."""
        operation = pl.col("epilogue").str.split("+").alias("operation")
        how = pl.lit(FUSED).alias("how")
        gradient = pl.col("operation").is_in(list(_GRADIENTS))
        backward = pl.when(gradient).then(pl.lit("backward")).otherwise("direction")
        return (
            cells.filter(category.is_in(["conv", "gemm"]) & pl.col("epilogue").is_not_null())
            .select("calls", "time_ns", operation, direction, "library", how)
            .explode("operation")
            .filter(~pl.col("operation").is_in(_NEITHER))
            .with_columns(backward.alias("direction"), pl.col("operation").replace(_GRADIENTS))
        )

    keys = ("operation", "direction", "library", "how")
    unknown = pl.lit(None)
    frames = []
    for run in runs:
        timed = added(run, keys, separate)
        calls_only = added(run, keys, fused).with_columns(
            unknown.cast(timed.schema[name]).alias(name) for name in ("time_ns", "step_ns", "share")
        )
        frames.append(pl.concat([timed, calls_only]))
    notes = []
    for run, frame in zip(runs, frames, strict=True):
        if not (frame["operation"] == OTHER).all():
            continue
        of_run = run.measured if run.measured.marked else run.whole
        compiled = int(of_run.cells.filter(category == "fused")["time_ns"].sum()) / of_run.count
        notes.append(
            f"{run.label}: bias and activations are parts of compiler-fused kernels, "
            f"{compiled / 1e6:.2f} ms{' per step' if run.measured.marked else ''} with their other "
            "work"
            if compiled
            else f"{run.label}: no bias additions or activations"
        )
    if any((frame["how"] == FUSED).any() for frame in frames):
        notes.append("fused: part of a convolution or GEMM kernel, no time of its own")
    of = basis(runs)
    figures = (of.time, "library", of.calls)
    columns = run_columns.COLUMNS["epilogue"]
    return table(runs, frames, ("operation", "direction", "how"), figures, columns, notes)


def layer_table(runs: Sequence[Run]) -> Table:
    """Return all work by layer, the layers of all runs aligned.

    Roles such as the optimizer are in parentheses. ``step_other_ns`` is the rest of ``step_ns``. In
    the order of the model; the rows of a run add up to all its work.
    """
    runs = fused_alike(runs)
    rows: list[dict[str, Any]] = []
    matched = aligned(runs)
    for item, members in enumerate(matched):
        there = [(runs[at], members[at]) for at in sorted(members)]
        seen = [run.layers.layers[member.index] for run, member in there]
        kind = next((layer.type for layer in seen if layer.type is not None), None)
        rows += [
            {RUN: run.label, ITEM: item, "layer": seen[0].label, "type": kind, "role": "layer"}
            | {"path": layer.label, "confidence": member.confidence}
            for (run, member), layer in zip(there, seen, strict=True)
        ]
    roles = [
        set(run.whole.cells.filter(pl.col("role") != "layer").select("layer", "role").iter_rows())
        for run in runs
    ]
    for item, (label, role) in enumerate(sorted(set().union(*roles)), start=len(matched)):
        rows += [
            {RUN: run.label, ITEM: item, "layer": label, "role": role, "path": label}
            for run, pairs in zip(runs, roles, strict=True)
            if (label, role) in pairs
        ]
    texts = dict.fromkeys((RUN, "layer", "type", "role", "path"), pl.String)
    items = pl.DataFrame(rows, schema={**texts, ITEM: pl.Int64, "confidence": pl.Float64})
    rest = pl.col("step_ns") - pl.sum_horizontal(f"step_{name}" for name in DIRECTIONS[:-1])
    frames = []
    for run in runs:
        named = items.filter(pl.col(RUN) == run.label).drop(RUN)
        times = added(run, ("layer", "role"), times=by_direction()).rename({"layer": "path"})
        timed = named.join(times, on=["path", "role"])
        frames.append(timed.with_columns(rest.alias("step_other_ns")))
    of = basis(runs)
    shown = [name if of.time == "time_ns" else f"step_{name}" for name in DIRECTIONS]
    shown = [column for column in shown if any(frame[column].sum() for frame in frames)]
    none = [f"{run.label}: no layers" for run in runs if not run.layers.layers]
    figures, columns = (*shown, of.time, "confidence"), run_columns.COLUMNS["layer"]
    result = table(runs, frames, ("layer", "type", "role"), figures, columns, none)
    unsure = (pl.col("confidence") < LEAST_CONFIDENCE).fill_null(value=False)
    to_first = pl.when(~unsure).then(RATIO).alias(RATIO)
    return replace(result, frame=result.frame.with_columns(to_first))


def summary_table(runs: Sequence[Run]) -> Table:
    """Return one row per run: its file, devices and libraries, and the time and work of a step.

    Where not all runs mark steps, each run is one step from its first to the end of its last work.
    """
    of = basis(runs)
    whole, kernel = of.time == "time_ns", pl.col("kind").is_in(_KERNELS)
    rows: list[dict[str, Any]] = []
    for run in runs:
        run_steps = run.whole if whole else run.measured
        steps, cells = run_steps.frame, run_steps.cells
        # A summary has the time of the work alone.
        wall = None if run.trace.is_summary else steps["wall_ns"]
        mean = None if wall is None else int(wall.sum()) // run_steps.count
        median = None if wall is None else int(wall.median() or 0)  # type: ignore[arg-type]
        available, busy = int(steps["available_ns"].sum()), int(steps["busy_ns"].sum())
        launched = launches(run.trace)["launches" if whole else "step_launches"]
        libraries = (
            run.whole.cells.filter(kernel)
            .drop_nulls("library")
            .group_by("library")
            .agg(pl.col("time_ns").sum())
            .sort(["time_ns", "library"], descending=[True, False])["library"]
        )
        flops = run_flops(run.trace, run.model, whole=whole)
        copied = int(cells.filter(pl.col("kind") == "memcpy")["calls"].sum())
        idle = None if wall is None else available - busy
        rows.append(
            {
                RUN: run.label,
                "file": run.trace.meta.source,
                "framework": run.trace.meta.framework,
                "devices": devices(run.trace) or None,
                "libraries": ", ".join(libraries.head(_MOST_LIBRARIES)) or None,
                "steps": run.measured.count if run.measured.marked else None,
                "batch": run.batch,
                "layers": len(run.layers.layers),
                "wall_ns": median,
                "mean_wall_ns": mean,
                "image_ns": median // run.batch if run.batch and median and not whole else None,
                "step_kernels": int(cells.filter(kernel)["calls"].sum()) / run_steps.count,
                "step_launches": float(launched.sum()) if launched.count() else None,
                "step_copies": copied / run_steps.count,
                "step_ns": int(steps["work_ns"].sum()) // run_steps.count,
                "idle_ns": None if idle is None else idle // run_steps.count,
                "idle_share": idle / available if idle is not None and available else None,
                "flops": flops,
                "flops_per_s": flops / mean * 1e9 if flops is not None and mean else None,
            }
        )
    for row in rows:
        for name, column in ((RATIO, "wall_ns"), ("image_to_first", "image_ns")):
            has_ratio = of.ratios and row[column] is not None and rows[0][column]
            row[name] = row[column] / rows[0][column] if has_ratio else None
    figures = tuple(names_of(run_columns.SUMMARY[1:]))
    labels = tuple(run.label for run in runs)
    differ = len({row["batch"] for row in rows} - {None}) > 1
    notes = (*of.notes, *((BATCHES,) if differ else ()))
    columns = run_columns.SUMMARY
    frame = pl.DataFrame(rows, schema={column.name: column.dtype for column in columns})
    return Table(frame, columns, (), figures, "wall_ns", labels, notes)


_TABLES: Final[dict[CompareBy, Callable[[Sequence[Run]], Table]]] = {
    "summary": summary_table,
    "layer": layer_table,
    "gemm": gemms,
    "epilogue": epilogues,
    "transfer": transfers,
}


class Comparison(msgspec.Struct, frozen=True):
    """Several runs side by side.

    :meth:`by` returns a :class:`Table` with one row per run and item, which can be pivoted
    (:meth:`Table.pivot`).
    """

    runs: tuple[Run, ...]

    def by(self, what: CompareBy) -> Table:
        """Return the table of all runs."""
        if what == "layer":
            for run in self.runs:
                needs_timeline(run.trace, "compare --by layer")
        if what in ("class", "algorithm", "kernel", "line"):
            return work(self.runs, what)
        return _TABLES[what](self.runs)
