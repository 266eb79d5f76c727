"""The differences between two runs, baseline and candidate, and which are significant."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import polars as pl

from traceana.comparison.changes import change_table, change_times, found_changes, idle_table
from traceana.comparison.compared_run import Run, RunSteps, step_flops
from traceana.comparison.diff_rows import (
    VIEWS,
    By,
    PairedRun,
    layer_rows,
    low_confidence,
    paired_run,
    view_of,
    view_table,
)
from traceana.comparison.fused_layers import fused_alike
from traceana.comparison.layer_alignment import Alignment, align
from traceana.comparison.run_inputs import Pairs, forced_pairs, opened
from traceana.comparison.verdicts import (
    Criteria,
    Gated,
    Step,
    gated,
    step_verdict,
    verdict_tables,
)
from traceana.settings import (
    CONFIDENCE_LEVEL,
    LEAST_CONFIDENCE,
    MINIMUM_EFFECT,
    RUN_TO_RUN_COPIES,
    RUN_TO_RUN_CPU,
    RUN_TO_RUN_HOST,
    RUN_TO_RUN_KERNELS,
    RUN_TO_RUN_PAGEABLE,
)
from traceana.timeline.steps import only_sums

if TYPE_CHECKING:
    from traceana.commands import Statistic
    from traceana.model import Manifest
    from traceana.trace import Trace


Given: TypeAlias = "Trace | str | os.PathLike[str]"


class Diff(msgspec.Struct, frozen=True):
    """Two runs compared: ``baseline`` and ``candidate``, in columns ``a`` and ``b``.

    ``step`` has the verdict on the whole step; ``kernel_time`` that on its GPU kernels (union of
    the kernels except collectives, mean over the devices), None on a CPU and without steps;
    ``runs`` is the number of runs of each program; step and kernels are their means and
    all else is of the first; ``pairs`` the layers of both runs, paired;
    ``views`` the tables of :meth:`by`; ``changes`` the rows of
    :func:`traceana.comparison.changes.change_table`; ``idle`` the idle time by cause; ``alike`` is
    True where both runs are one recording.
    """

    baseline: PairedRun
    candidate: PairedRun
    alignment: Alignment
    criteria: Criteria
    step: Step
    kernel_time: Step | None
    runs: tuple[int, int]
    pairs: pl.DataFrame
    views: Mapping[By, pl.DataFrame]
    changes: pl.DataFrame
    idle: pl.DataFrame
    alike: bool
    notes: tuple[str, ...]

    def by(self, what: By) -> pl.DataFrame:
        """Return all work by layer, class, algorithm, kernel, gemm or transfer.

        The columns are those of :func:`traceana.comparison.diff_rows.view_table`. ``delta_ns`` adds
        up to the difference of the steps' mean device time. All views and changes are tested
        together.
        """
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
    def confidence(self) -> float | None:
        """The match confidence: mean probability over layers that their match is correct."""
        return self.alignment.confidence


def diff(
    a: Given | Sequence[Given],
    b: Given | Sequence[Given],
    *,
    pairs: Pairs | None = None,
    model_a: Manifest | None = None,
    model_b: Manifest | None = None,
    level: float = CONFIDENCE_LEVEL,
    minimum_effect: float = MINIMUM_EFFECT,
    statistic: Statistic = "median",
) -> Diff:
    """Return the differences between baseline ``a`` and candidate ``b``, with their significance.

    The parameters, and the errors raised, are those of :func:`traceana.diff`.
    """
    if not 0.5 < level < 1 or minimum_effect < 0 or statistic not in ("median", "mean"):
        raise ValueError(
            f"invalid criteria: {level=} {minimum_effect=} {statistic=}: give 0.5 < level < 1, "
            "minimum_effect >= 0, and median or mean"
        )
    criteria = Criteria(level, minimum_effect, "mean" if statistic == "mean" else "median")
    (first_a, *more_a), (first_b, *more_b) = (
        [Run(label, *opened(one, model)) for one in _listed(given)]
        for label, given, model in (("a", a, model_a), ("b", b, model_b))
    )
    if bool(more_a) != bool(more_b):
        raise ValueError("several runs of one program only: give at least 2 runs of each")
    both = first_a, first_b
    run_a, run_b = both if pairs is not None else fused_alike(both)
    alignment = align(run_a.layers, run_b.layers, forced_pairs(pairs, run_a.layers, run_b.layers))
    sides = (run_a, *more_a), (run_b, *more_b)
    runs = len(sides[0]), len(sides[1])
    both_marked = all(run.measured.marked for side in sides for run in side)
    steps_a, steps_b = (run.measured if both_marked else run.whole for run in (run_a, run_b))
    if not (steps_a.timed and steps_b.timed):
        steps_a, steps_b = steps_a.untimed(), steps_b.untimed()
    rows = layer_rows(
        (run_a.layers, run_b.layers),
        alignment,
        (steps_a, steps_b),
        (step_flops(run_a.trace, run_a.model), step_flops(run_b.trace, run_b.model)),
    )
    baseline = paired_run(run_a, steps_a, rows, "a")
    candidate = paired_run(run_b, steps_b, rows, "b")
    walls = steps_a.frame["wall_ns"], steps_b.frame["wall_ns"]
    every = [
        [one, *(run.measured if both_marked else run.whole for run in side[1:])]
        for one, side in zip((steps_a, steps_b), sides, strict=True)
    ]
    views = [view_of(steps_a, steps_b, by, rows) for by in VIEWS]
    alike = not more_a and walls[0].equals(walls[1]) and all(view.rows.identical for view in views)
    on_cpu = run_a.trace.on_cpu, run_b.trace.on_cpu
    spreads = steps_a.spread(on_cpu=on_cpu[0]), steps_b.spread(on_cpu=on_cpu[1])
    step = step_verdict(*_column(every, "wall_ns"), criteria, spreads=spreads, alike=alike)
    kernel_time = None
    if both_marked and not any(on_cpu):
        spreads = RUN_TO_RUN_KERNELS, RUN_TO_RUN_KERNELS
        kernels = _column(every, "kernel_ns")
        kernel_time = step_verdict(*kernels, criteria, spreads=spreads, alike=alike)
    found = found_changes(baseline, candidate, rows)
    of_changes, *of_views = verdict_tables(
        [change_times(found, baseline, candidate), *(view.rows for view in views)],
        *(steps_a, steps_b, criteria),
        alike=alike,
    )
    batches = run_a.layers.batch, run_b.layers.batch
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
            view.by: view_table(view, figures, steps_a, steps_b, batches)
            for view, figures in zip(views, of_views, strict=True)
        },
        change_table(found, of_changes, (baseline, candidate), step, criteria),
        idle_table(found, of_changes),
        alike,
        (
            *(f"baseline: {note}" for note in steps_a.notes),
            *(f"candidate: {note}" for note in steps_b.notes),
            *_caveats(baseline, candidate, criteria, step, rows, runs, alike=alike),
        ),
    )


def _listed(given: Given | Sequence[Given]) -> Sequence[Given]:
    """Return the runs of a program."""
    from traceana.trace import Trace

    return [given] if isinstance(given, Trace | str | os.PathLike) else list(given)


def _column(
    sides: Sequence[Sequence[RunSteps]], name: str
) -> tuple[list[pl.Series], list[pl.Series]]:
    """Return for both programs a column of the steps of each run."""
    a, b = ([run.frame[name] for run in side] for side in sides)
    return a, b


def _caveats(
    a: PairedRun,
    b: PairedRun,
    criteria: Criteria,
    step: Step,
    pairs: pl.DataFrame,
    runs: tuple[int, int],
    *,
    alike: bool,
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
        yield "significance unknown: steps are not marked in both runs"
    elif not criteria.enough(*steps):
        yield (
            f"not enough steps: {steps[0]} and {steps[1]} measured, at least 4 per run needed at "
            f"{level} confidence"
        )
    else:
        yield f"faster, slower: significant at {level}, p corrected for all rows and changes"
        yield (
            f"same: {level} confidence interval within {100 * criteria.minimum_effect:g} % of the "
            "row, of idle time within that of the step; inconclusive: neither different nor same"
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
    if criteria.statistic == "median" and any(only_sums(one.run.trace) for one in (a, b)):
        yield "median step times not exact: --statistic mean compares the means"
    if a.run.trace.on_cpu != b.run.trace.on_cpu:
        yield "one run is CPU only: its operators are compared with kernels"
