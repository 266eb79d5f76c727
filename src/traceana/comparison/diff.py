"""The differences between two runs, baseline and candidate, and which are significant.

The work of both runs is in rows by layer, class, kernel, GEMM or copy that add up to the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.fused_rows import FUSED
from traceana.comparison.changes import (
    change_table,
    change_times,
    found_changes,
    idle_table,
    low_confidence,
    not_compared,
)
from traceana.comparison.columns import FIGURE, FIGURES, WORK, in_both
from traceana.comparison.compared_run import (
    KEYS,
    Run,
    RunSteps,
    cost_spread,
    kernel_counts,
    keyed,
    same_work,
    step_flops,
)
from traceana.comparison.layer_alignment import Alignment, align
from traceana.comparison.layer_rows import fused_alike
from traceana.comparison.paired_run import PairedRun
from traceana.comparison.run_inputs import Pairs, forced_pairs
from traceana.comparison.verdicts import (
    Criteria,
    Gated,
    RowPairs,
    RowTimes,
    Step,
    gated,
    mean_available,
    step_verdict,
    verdict_tables,
    with_deltas,
)
from traceana.errors import UsageError
from traceana.settings import (
    BUSY_MACHINE,
    LEAST_CONFIDENCE,
    RUN_TO_RUN_COPIES,
    RUN_TO_RUN_CPU,
    RUN_TO_RUN_HOST,
    RUN_TO_RUN_KERNELS,
    RUN_TO_RUN_PAGEABLE,
)
from traceana.table import (
    BYTES,
    FLOP_RATE,
    FLOPS,
    PATH,
    RATE,
    SHARE,
    TEXT,
    TIME,
    Column,
    Columns,
    by_name,
    conformed,
    laid_out,
)
from traceana.timeline.steps import only_sums
from traceana.timeline.work import has_frames
from traceana.vocabulary.option_words import DiffBy

VIEWS: Final[tuple[DiffBy, ...]] = ("layer", *(by for by in KEYS if by != "line"))
"""The views of any two runs; by line it needs lines in both."""

IDLE: Final = "(idle)"
"""Time of the step in which a device was idle, summed over the devices."""

OVERLAP: Final = "(overlap correction)"
"""The difference between the step and the rows' sum: work of several streams overlaps, work of a
step may end after it, and means are rounded down."""

PAIRS: Final = (
    Column(
        "a",
        PATH,
        "by layer: its path in the baseline; null where it has no partner",
        title="layer",
    ),
    Column(
        "b",
        PATH,
        "its path in the candidate; null where it has no partner",
        title="candidate layer",
    ),
    Column("role", TEXT, "as in `layers`"),
    *in_both(Column("type", TEXT, "type of the layer")),
    Column(
        "confidence",
        SHARE,
        "match confidence: probability that the pair, or that it has no partner, is right",
        title="match confidence",
    ),
    Column(
        "how",
        TEXT,
        "`order` (of the alignment), `moved` (out of order), `map` (forced); null without a "
        "partner",
    ),
    *in_both(
        Column("shape", TEXT, "shape of its first input, of one image, axes by size: `3x224x224`"),
        Column(
            "weight", TEXT, "extents of its weight by size: `3x3x64x64`; null where it is unknown"
        ),
        Column(
            "memory_format",
            TEXT,
            "memory format of its first input by its strides: `contiguous`, `channels_last`; null "
            "where it is not recorded",
        ),
        Column("flops", FLOPS, "FLOPs per step", type=pl.Float64),
    ),
)
"""What is known of a pair of layers."""
RATES: Final = in_both(
    Column(
        "image_ns",
        TIME,
        "by layer: time over the batch, rounded down, where the batch sizes differ; else null",
        title="per image",
    ),
    Column(
        "flops_per_s",
        FLOP_RATE,
        "by layer: FLOPs over all time of the layer",
        title="FLOP/s",
        scale="FLOP/s of runs",
    ),
)
COPIES: Final = in_both(
    Column(
        "bytes",
        BYTES,
        "by transfer: mean bytes per step, rounded down; null where the size of one of the copies "
        "is not known",
        scale="bytes of runs",
    ),
    Column(
        "bytes_per_s",
        RATE,
        "by transfer: bandwidth",
        title="bandwidth",
        scale="bandwidth of runs",
    ),
)
_PAIR: Final = by_name(PAIRS)
_CLASS: Final = {"part": "class", "algorithm": "class"}
COLUMNS: Final[Mapping[DiffBy, Columns]] = {
    "layer": laid_out(
        (
            *PAIRS[:2],
            *FIGURES,
            _PAIR["confidence"],
            *RATES,
            *(column for column in PAIRS[2:] if column.name != "confidence"),
        ),
        hidden="low_ns high_ns role type_a type_b how shape_a shape_b weight_a weight_b "
        "memory_format_a memory_format_b flops_a flops_b",
        dropped="flops_per_s_a flops_per_s_b p calls_a calls_b image_a_ns image_b_ns confidence "
        "of_step b relative",
    ),
    "class": laid_out(
        (*WORK["class"], *FIGURES),
        hidden="category low_ns high_ns",
        dropped="p calls_a calls_b of_step relative",
        titles=_CLASS,
    ),
    "algorithm": laid_out(
        (*WORK["algorithm"], *FIGURES),
        hidden="category low_ns high_ns",
        dropped="p calls_a calls_b of_step relative",
        titles=_CLASS,
    ),
    "kernel": laid_out(
        (*WORK["kernel"], *FIGURES),
        hidden="part low_ns high_ns",
        dropped="p category calls_a calls_b of_step relative",
    ),
    "gemm": laid_out(
        (*WORK["gemm"], *FIGURES),
        hidden="tile gemm_layout low_ns high_ns",
        dropped="p library of_step calls_a calls_b relative form",
    ),
    "line": laid_out(
        (*WORK["line"], *FIGURES),
        hidden="low_ns high_ns",
        dropped="p calls_a calls_b of_step relative",
    ),
    "transfer": laid_out(
        (*WORK["transfer"], *FIGURES, *COPIES),
        hidden="low_ns high_ns",
        dropped="p of_step bytes_per_s_a bytes_per_s_b bytes_a bytes_b calls_a calls_b relative",
    ),
}
SUMMARY: Final = laid_out(
    (
        *PAIRS[:2],
        *(FIGURE[name] for name in ("time_a_ns", "time_b_ns", "delta_ns", "relative", "verdict")),
        _PAIR["confidence"],
    ),
    dropped="confidence b relative",
)
"""The layers on the summary's page."""


class Diff(msgspec.Struct, frozen=True):
    """Two runs compared: ``baseline`` and ``candidate``, in columns ``a`` and ``b``.

    ``step`` has the verdict on the whole step; ``kernel_time`` that on its GPU kernels (union of
    the kernels except collectives, mean over the devices), None on a CPU and without steps;
    ``runs`` is the number of runs of each program; step and kernels are their means and
    all else is of the first; ``pairs`` the layers of both runs, paired;
    ``views`` the tables of :meth:`by`; ``changes`` the rows of
    :func:`traceana.comparison.changes.change_table`; ``idle`` the idle time by cause; ``walls`` has
    the step times of all runs of both programs (ns), ``spreads`` the usual relative standard
    deviation of each from run to run, ``of_cost`` that of the difference by the profiler's cost
    (ns): all that the verdict on the step is made of; ``alike`` is
    True where both runs are one recording, ``same_work`` is False where they mark no steps and hold
    different work: their times are then not compared.
    """

    baseline: PairedRun
    candidate: PairedRun
    alignment: Alignment
    criteria: Criteria
    step: Step
    kernel_time: Step | None
    runs: tuple[int, int]
    pairs: pl.DataFrame
    views: Mapping[DiffBy, pl.DataFrame]
    changes: pl.DataFrame
    idle: pl.DataFrame
    walls: tuple[list[pl.Series], list[pl.Series]]
    spreads: tuple[float, float]
    of_cost: float
    alike: bool
    same_work: bool
    notes: tuple[str, ...]

    def by(self, what: DiffBy) -> pl.DataFrame:
        """Return all work by layer, class, algorithm, kernel, gemm, transfer or line.

        The columns are :data:`COLUMNS`. ``delta_ns`` adds up to the difference of the steps' mean
        device time. All views and changes are tested together. Raises ``UsageError`` by line,
        unless both runs have lines.
        """
        if what not in self.views:
            raise UsageError("lines of the program are not recorded in both runs: docs/lines.md")
        return self.views[what]

    def gated(self, limit: float) -> tuple[Gated, str]:
        """Return whether the candidate is slower by more than the fraction ``limit``, and why."""
        kernels = self.kernel_time
        return gated(self.step.decides, limit, None if kernels is None else kernels.decides)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of ``pairs`` (also ``moved``, ``forced``), ``only_a`` and ``only_b``."""
        pairs = self.alignment.pairs
        return {
            "pairs": len(pairs),
            "moved": sum(pair.how == "moved" for pair in pairs),
            "forced": sum(pair.how == "map" for pair in pairs),
            "only_a": len(self.baseline.layers.layers) - len(pairs),
            "only_b": len(self.candidate.layers.layers) - len(pairs),
        }

    @property
    def per_image(self) -> tuple[float, float] | None:
        """The step time per image of both runs (ns), where the batch sizes differ."""
        a, b = self.baseline.layers.batch, self.candidate.layers.batch
        if not a or not b or a == b:
            return None
        return self.step.decides.a / a, self.step.decides.b / b

    @property
    def timed_ns(self) -> tuple[int, int] | None:
        """The steps that both recorded runs timed without the profiler, where it is in the others.

        None where a run did not, with several runs, and where a step is without the profiler.
        """
        traces = self.baseline.run.trace, self.candidate.run.trace
        a, b = (trace.meta.unprofiled_step_ns for trace in traces)
        by_program = any(trace.recorded is not None for trace in traces)
        if a is None or b is None or by_program or self.runs != (1, 1):
            return None
        return round(a), round(b)

    @property
    def confidence(self) -> float | None:
        """The match confidence: mean probability over layers that their match is correct."""
        return self.alignment.confidence


def compared(
    a: Sequence[Run], b: Sequence[Run], criteria: Criteria, pairs: Pairs | None = None
) -> Diff:
    """Return the differences between the runs of ``a``, the baseline, and of ``b``, the candidate.

    The parameters, and the errors raised, are as in :func:`traceana.diff`.
    """
    (first_a, *more_a), (first_b, *more_b) = a, b
    if bool(more_a) != bool(more_b):
        raise ValueError("several runs of one program only: give at least 2 runs of each")
    both = first_a, first_b
    run_a, run_b = both if pairs is not None else fused_alike(both)
    alignment = align(run_a.layers, run_b.layers, forced_pairs(pairs, run_a.layers, run_b.layers))
    sides = (run_a, *more_a), (run_b, *more_b)
    runs = len(sides[0]), len(sides[1])
    marked = all(run.measured.marked for side in sides for run in side)
    every = [[run.measured if marked else run.whole for run in side] for side in sides]
    steps_a, steps_b = every[0][0], every[1][0]
    if not (steps_a.timed and steps_b.timed):
        steps_a, steps_b = every[0][0], every[1][0] = steps_a.untimed(), steps_b.untimed()
    rows = layer_rows((run_a, run_b), (steps_a, steps_b), alignment)
    baseline, candidate = (
        PairedRun(run, steps, steps.cells.with_columns(_layer_row(steps, rows, side).alias("pair")))
        for run, steps, side in ((run_a, steps_a, "a"), (run_b, steps_b, "b"))
    )
    views = [_view(baseline, candidate, by, rows) for by in VIEWS]
    if all(has_frames(run.trace) for run in (run_a, run_b)):
        views.append(_view(baseline, candidate, "line", rows))
    walls_a, walls_b = ([steps.frame["wall_ns"] for steps in side] for side in every)
    alike = (
        not more_a and walls_a[0].equals(walls_b[0]) and all(view.rows.identical for view in views)
    )
    spreads = steps_a.spread(run_a.trace), steps_b.spread(run_b.trace)
    of_cost = cost_spread(run_a.trace, run_b.trace)
    step = step_verdict(walls_a, walls_b, criteria, spreads=spreads, of_cost=of_cost, alike=alike)
    kernel_time = None
    if marked and not (run_a.trace.on_cpu or run_b.trace.on_cpu):
        of_kernels = RUN_TO_RUN_KERNELS, RUN_TO_RUN_KERNELS
        kernels_a, kernels_b = ([steps.frame["kernel_ns"] for steps in side] for side in every)
        kernel_time = step_verdict(kernels_a, kernels_b, criteria, spreads=of_kernels, alike=alike)
    same = marked or same_work((run_a, run_b))
    changes = found_changes(baseline, candidate, rows, criteria)
    of_changes, *of_views = verdict_tables(
        [change_times(changes, baseline, candidate), *(view.rows for view in views)],
        *(steps_a, steps_b, criteria),
        alike=alike,
    )
    return Diff(
        baseline,
        candidate,
        alignment,
        criteria,
        step,
        kernel_time,
        runs,
        rows,
        {
            view.by: _view_table(view, figures, baseline, candidate, same=same)
            for view, figures in zip(views, of_views, strict=True)
        },
        change_table(changes, of_changes, (baseline, candidate), step, criteria, same=same),
        idle_table(changes, of_changes, same=same),
        (walls_a, walls_b),
        spreads,
        of_cost,
        alike,
        same,
        (
            *(f"baseline: {note}" for note in steps_a.notes),
            *(f"candidate: {note}" for note in steps_b.notes),
            *_caveats(baseline, candidate, criteria, step, rows, runs, alike=alike, same=same),
        ),
    )


def layer_rows(
    runs: tuple[Run, Run], steps: tuple[RunSteps, RunSteps], alignment: Alignment
) -> pl.DataFrame:
    """Return one row per pair of layers, per layer without a match, and per role.

    The columns are :data:`PAIRS`. Roles (optimizer, data …) are paired by their names.
    """
    of_layers = []
    for side, run in zip("ab", runs, strict=True):
        flops = step_flops(run.trace, run.model)
        of_layers.append(
            [
                {
                    side: layer.label,
                    f"type_{side}": layer.type,
                    # A row of several layers has no input of its own.
                    f"shape_{side}": None if layer.type == FUSED else layer.takes,
                    f"weight_{side}": None if layer.type == FUSED else layer.kernel,
                    f"memory_format_{side}": None if layer.type == FUSED else layer.memory_format,
                    f"flops_{side}": flops.get(layer.label),
                }
                for layer in run.layers.layers
            ]
        )
    partner = {pair.a: pair for pair in alignment.pairs}
    rows: list[dict[str, object]] = []
    for place, row in enumerate(of_layers[0]):
        if place in partner:
            pair = partner[place]
            row |= {**of_layers[1][pair.b], "confidence": pair.confidence, "how": pair.how}
        rows.append({"confidence": alignment.alone_a[place], **row, "role": "layer"})
    paired_b = {pair.b for pair in alignment.pairs}
    rows += [
        {**row, "confidence": alignment.alone_b[place], "role": "layer"}
        for place, row in enumerate(of_layers[1])
        if place not in paired_b
    ]
    roles = [
        set(run_steps.cells.filter(pl.col("role") != "layer").select("layer", "role").iter_rows())
        for run_steps in steps
    ]
    for label, role in sorted(roles[0] | roles[1]):
        in_a, in_b = ((label, role) in labels for labels in roles)
        rows.append({"a": label if in_a else None, "b": label if in_b else None, "role": role})
    return pl.DataFrame(rows, schema={column.name: column.dtype for column in PAIRS})


def _layer_row(steps: RunSteps, rows: pl.DataFrame, side: str) -> pl.Series:
    """Return for each cell of ``steps`` the row of :func:`layer_rows` with its layer or role."""
    is_layer = (pl.col("role") == "layer").alias("_layer")
    named = rows.with_row_index("_row").select("_row", pl.col(side).alias("layer"), is_layer)
    on = ["layer", "_layer"]
    cells = steps.cells.select("layer", is_layer)
    return cells.join(named.drop_nulls("layer"), on=on, how="left", maintain_order="left")["_row"]


class _View(msgspec.Struct, frozen=True):
    """All work of two runs in the rows ``named``, before any test.

    ``row_a`` and ``row_b`` have the row of each cell, ``rows`` the times of the rows in each step.
    """

    by: DiffBy
    named: pl.DataFrame
    row_a: pl.Series
    row_b: pl.Series
    rows: RowPairs


def _view(a: PairedRun, b: PairedRun, by: DiffBy, pairs: pl.DataFrame) -> _View:
    """Return all work by ``by``; ``pairs`` is from :func:`layer_rows`."""
    if by == "layer":
        named, places = pairs, [run.cells["pair"] for run in (a, b)]
    else:
        keys = KEYS[by]
        cells = [keyed(run.steps.cells, by).select(keys) for run in (a, b)]
        named = pl.concat(cells).unique().sort(keys, nulls_last=True)
        numbered = named.with_row_index("_row")
        on = list(keys)
        places = [
            rows.join(numbered, on=on, how="left", nulls_equal=True, maintain_order="left")["_row"]
            for rows in cells
        ]
    sides = []
    for steps, place in zip((a.steps, b.steps), places, strict=True):
        work = RowTimes.of(steps, place, named.height)
        available, busy = (steps.frame[c].to_numpy() for c in ("available_ns", "busy_ns"))
        rest = np.column_stack([available - busy, busy - work.times.sum(axis=1)])
        spread = RUN_TO_RUN_HOST * np.abs(rest.mean(axis=0))
        sides.append(RowTimes.joined([work, RowTimes(rest, np.zeros_like(rest), spread)]))
    rows = RowPairs(sides[0], sides[1], np.arange(named.height + 2) >= named.height)
    rest_rows = pl.DataFrame({named.columns[0]: [IDLE, OVERLAP]})
    if by == "layer":
        rest_rows = rest_rows.with_columns(b="a", role=pl.lit("unattributed"))
    return _View(by, pl.concat([named, rest_rows], how="diagonal"), places[0], places[1], rows)


def _view_table(
    view: _View,
    figures: pl.DataFrame,
    baseline: PairedRun,
    candidate: PairedRun,
    *,
    same: bool,
) -> pl.DataFrame:
    """Return the rows of ``view``, largest difference first; they add up to the step.

    The columns are :data:`COLUMNS`; ``figures`` are from
    :func:`traceana.comparison.verdicts.verdict_tables`. Two rows are :data:`IDLE` and
    :data:`OVERLAP`, unless a run is a summary: its idle time is unknown. ``delta_ns``, its bounds
    and ratios are null for pairs of layers below :data:`LEAST_CONFIDENCE`, and everywhere if the
    runs do not hold the ``same`` work.
    """
    named, rows = view.named, pl.int_range(pl.len(), dtype=pl.UInt32)
    runs = (("a", baseline, view.row_a), ("b", candidate, view.row_b))
    # The times of a run add up to the mean of its steps' device time, by the last row. That has no
    # relative change.
    last = rows == figures.height - 1
    for side, run, _ in runs:
        column = f"time_{side}_ns"
        rest = mean_available(run.steps) - int(figures[column].head(figures.height - 1).sum())
        figures = figures.with_columns(pl.when(last).then(rest).otherwise(column).alias(column))
    relative = pl.when(~last).then("relative").alias("relative")
    figures = with_deltas(figures, mean_available(baseline.steps)).with_columns(relative)
    batches = {run.layers.batch for _, run, _ in runs}
    per_image = None not in batches and len(batches) > 1
    for side, run, row in runs:
        time = pl.col(f"time_{side}_ns")
        if view.by == "layer":
            rate = named[f"flops_{side}"] / figures[f"time_{side}_ns"].replace(0, None) * 1e9
            image = time // run.layers.batch if per_image else pl.lit(None, pl.Int64)
            figures = figures.with_columns(
                rate.alias(f"flops_per_s_{side}"), image.alias(f"image_{side}_ns")
            )
        elif view.by == "transfer":
            size, spent = pl.col("bytes"), pl.col("time_ns")
            sized = (size.is_not_null() & pl.col("copy").is_not_null()).all().over("_row")
            copied = (
                run.steps.cells.select("copy", "bytes", "time_ns", row.alias("_row"))
                .filter(sized)
                .group_by("_row")
                .agg(size.sum(), spent.sum())
                .select(
                    "_row",
                    (size // run.steps.count).alias(f"bytes_{side}"),
                    pl.when(spent > 0).then(size * 1e9 / spent).alias(f"bytes_per_s_{side}"),
                )
            )
            on = figures.with_columns(rows.alias("_row"))
            figures = on.join(copied, on="_row", how="left", maintain_order="left").drop("_row")
    texts = [column for column in named.columns if named.schema[column] == pl.String]
    table = (
        named.hstack(figures)
        .with_columns(pl.col("delta_ns").abs().alias("_size"))
        .sort("_size", *texts, descending=[True, *(False for _ in texts)], nulls_last=True)
        .drop("_size")
    )
    table = conformed(table, COLUMNS[view.by])
    if not baseline.steps.timed:
        table = table.filter(~pl.col(named.columns[0]).is_in([IDLE, OVERLAP]).fill_null(False))
    if view.by == "layer":
        table = not_compared(table, low_confidence(), "inconclusive")
    return table if same else not_compared(table, pl.lit(value=True))


def _caveats(
    a: PairedRun,
    b: PairedRun,
    criteria: Criteria,
    step: Step,
    pairs: pl.DataFrame,
    runs: tuple[int, int],
    *,
    alike: bool,
    same: bool,
) -> Iterator[str]:
    """Yield the limits of the verdicts."""
    steps = a.steps.count, b.steps.count
    level = f"{100 * criteria.level:g} %"
    if max(runs) > 1:
        of = f"{runs[0]} and {runs[1]} runs"
        yield f"step time, GPU kernels: means of {of}, variance between these runs"
        yield "layers, changes and other tables: first run of each"
    if unmatched := pairs.filter(low_confidence()).height:
        confidence = f"{100 * LEAST_CONFIDENCE:g} %"
        yield f"layer pairs not compared: {unmatched} (match confidence below {confidence})"
    if alike:
        yield "identical times: both files are one recording"
    elif not a.steps.marked or not b.steps.marked:
        if not a.steps.timed:
            yield "printed summaries: the times of the work are compared, idle time is unknown"
        if same:
            yield "significance unknown: steps are not marked in both runs"
        else:
            counts = " and ".join(f"{count:,}" for count in kernel_counts((a.run, b.run)))
            yield f"times not compared: no steps marked, and different work ({counts} kernels)"
    elif not criteria.enough(*steps):
        yield (
            f"not enough steps: {steps[0]} and {steps[1]} measured, at least 4 per run needed at "
            f"{level} confidence"
        )
    else:
        yield f"faster, slower: significant at {level}, p corrected for all rows and changes"
        yield (
            f"same: {level} confidence interval within {100 * criteria.minimum_effect:g} % of the "
            "step; inconclusive: neither different nor same"
        )
        if step.verdict == "inconclusive":
            how = "more runs" if max(runs) > 1 else "several runs of each (A1,A2 B1,B2)"
            yield f"step time inconclusive: {how} narrow the confidence interval"
        kinds = {
            **{"kernels": RUN_TO_RUN_KERNELS, "pageable copies": RUN_TO_RUN_PAGEABLE},
            **{"other copies": RUN_TO_RUN_COPIES, "host and idle": RUN_TO_RUN_HOST},
        }
        if a.run.trace.on_cpu and b.run.trace.on_cpu:
            kinds = {"CPU": RUN_TO_RUN_CPU}
        between = ", ".join(f"{kind} {100 * value:g} %" for kind, value in kinds.items())
        yield f"confidence intervals: variance within runs, and between runs as usual ({between})"
        of_a, of_b = (run.run.trace.meta.ready_share for run in (a, b))
        if max(of_a, of_b) >= BUSY_MACHINE:
            yield (
                "busy machine: other processes kept a thread waiting for a processor for "
                f"{100 * of_a:.0f} % of the baseline's steps, {100 * of_b:.0f} % of the "
                "candidate's; the confidence intervals are wider by that"
            )
        blocks = [run.run.trace.meta.spread_of_blocks for run in (a, b)]
        measured = [f"{100 * block:.1f} %" for block in blocks if block is not None]
        if len(measured) == 2:
            yield (
                "variance between runs: also by the timed steps before and after the profiled ones "
                f"({measured[0]} in the baseline, {measured[1]} in the candidate)"
            )
        clocks = [run.run.trace.meta.gpu_clock_mhz for run in (a, b)]
        if None not in clocks and clocks[0] != clocks[1]:
            yield (
                f"GPU clock after the steps: {clocks[0]:,} MHz in the baseline, {clocks[1]:,} MHz "
                "in the candidate"
            )
    if criteria.statistic == "median" and any(only_sums(run.run.trace) for run in (a, b)):
        yield "median step times not exact: --statistic mean compares the means"
    if a.run.trace.on_cpu != b.run.trace.on_cpu:
        yield "one run is CPU only: its operators are compared with kernels"
