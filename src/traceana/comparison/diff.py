"""The differences between two runs, baseline and candidate, and which are significant."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import polars as pl

from traceana.comparison.changes import change_table, change_times, found_changes, idle_table
from traceana.comparison.compared_run import Run, step_flops
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
from traceana.comparison.verdicts import Criteria, Step, step_verdict, verdict_tables
from traceana.result import HasResult, Result
from traceana.settings import CONFIDENCE_LEVEL, LEAST_CONFIDENCE, MINIMUM_EFFECT
from traceana.timeline.steps import only_sums

if TYPE_CHECKING:
    from traceana.choices import DiffBy, Statistic
    from traceana.model import Manifest
    from traceana.trace import Trace


class Diff(HasResult, frozen=True):
    """Two runs compared: ``baseline`` and ``candidate``, in columns ``a`` and ``b``.

    ``step`` has the verdict on the whole step; ``pairs`` the layers of both runs, paired;
    ``views`` the tables of :meth:`by`; ``changes`` the rows of
    :func:`traceana.comparison.changes.change_table`; ``idle`` the idle time by cause; ``alike`` is
    True where both runs are one recording.
    """

    baseline: PairedRun
    candidate: PairedRun
    alignment: Alignment
    criteria: Criteria
    step: Step
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

    def result(self, by: DiffBy | None = None) -> Result:
        """Return the table of ``traceana diff --by``; without ``by`` its page is the summary."""
        from traceana.report.pages.diff import diff as page

        return page(self, by=by)

    @property
    def layers(self) -> pl.DataFrame:
        """The work by layer."""
        return self.by("layer")

    @property
    def classes(self) -> pl.DataFrame:
        """The work by class."""
        return self.by("class")

    @property
    def algorithms(self) -> pl.DataFrame:
        """The work of convolutions by algorithm, other work by category."""
        return self.by("algorithm")

    @property
    def kernels(self) -> pl.DataFrame:
        """The work by kernel."""
        return self.by("kernel")

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
    a: Trace | str | os.PathLike[str],
    b: Trace | str | os.PathLike[str],
    *,
    pairs: Pairs | None = None,
    model_a: Manifest | None = None,
    model_b: Manifest | None = None,
    level: float = CONFIDENCE_LEVEL,
    minimum_effect: float = MINIMUM_EFFECT,
    statistic: Statistic = "median",
) -> Diff:
    """Return the differences between baseline ``a`` and candidate ``b``, with their significance.

    Traces given by path are opened, with the layer manifest beside them. ``pairs`` forces pairs of
    layers of ``a`` and ``b``: a mapping of names, or a file of them
    (:mod:`traceana.comparison.run_inputs`). A verdict is faster or slower if the difference is
    significant at confidence ``level`` and its relative change is at least ``minimum_effect``;
    ``statistic`` is ``median`` or ``mean``.
    Raises ``ValueError`` on an invalid level, minimum or statistic, and the errors of
    :mod:`traceana.errors`.
    """
    if not 0.5 < level < 1 or minimum_effect < 0 or statistic not in ("median", "mean"):
        raise ValueError(
            f"invalid criteria: {level=} {minimum_effect=} {statistic=}: give 0.5 < level < 1, "
            "minimum_effect >= 0, and median or mean"
        )
    criteria = Criteria(level, minimum_effect, "mean" if statistic == "mean" else "median")
    both = Run("a", *opened(a, model_a)), Run("b", *opened(b, model_b))
    run_a, run_b = both if pairs is not None else fused_alike(both)
    alignment = align(run_a.layers, run_b.layers, forced_pairs(pairs, run_a.layers, run_b.layers))
    both_marked = run_a.measured.marked and run_b.measured.marked
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
    views = [view_of(steps_a, steps_b, by, rows) for by in VIEWS]
    alike = walls[0].equals(walls[1]) and all(view.rows.identical for view in views)
    step = step_verdict(*walls, criteria, alike=alike)
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
            *_caveats(baseline, candidate, criteria, step, rows, alike=alike),
        ),
    )


def _caveats(
    a: PairedRun, b: PairedRun, criteria: Criteria, step: Step, pairs: pl.DataFrame, *, alike: bool
) -> Iterator[str]:
    """Yield the limits of the verdicts."""
    steps = a.steps.count, b.steps.count
    level = f"{100 * criteria.level:g} %"
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
            yield "step time inconclusive: more steps per run narrow the confidence interval"
        yield ("confidence intervals: within-run variance only (not clocks, thermals, co-tenants)")
    if criteria.statistic == "median" and any(only_sums(one.run.trace) for one in (a, b)):
        yield "median step times not exact: --statistic mean compares the means"
    if a.run.trace.on_cpu != b.run.trace.on_cpu:
        yield "one run is CPU only: its operators are compared with kernels"
