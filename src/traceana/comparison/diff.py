"""The diff of two runs, gathered."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from traceana.analyze.costs.pairing import with_names_of
from traceana.comparison.changes import changes, found_changes, loading, things
from traceana.comparison.compared_run import Sample, devices, sample, step_flops
from traceana.comparison.diff_rows import (
    LEAST_CONFIDENCE,
    VIEWS,
    By,
    doubtful,
    layer_rows,
    pair_of,
    told,
    viewed,
)
from traceana.comparison.layer_alignment import Alignment, align
from traceana.comparison.layer_changes import Half
from traceana.comparison.layer_features import Side, side
from traceana.comparison.run_inputs import Pairs, forced_pairs, opened
from traceana.comparison.verdicts import Criteria, Step, judge_step, judged

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace


@dataclass(frozen=True, slots=True)
class Diff:
    """Two runs beside each other, ``a`` the one that was, ``b`` the one that is.

    ``step`` is what is said of the whole step; ``pairs`` the rows that layers are compared in;
    ``views`` the tables of :meth:`by`; ``changes`` the rows of
    :func:`traceana.comparison.changes.changes`; ``alike`` is True where both runs are one
    recording.
    """

    trace_a: Trace
    trace_b: Trace
    sample_a: Sample
    sample_b: Sample
    side_a: Side
    side_b: Side
    alignment: Alignment
    criteria: Criteria
    step: Step
    pairs: pl.DataFrame
    views: Mapping[By, pl.DataFrame]
    changes: pl.DataFrame
    alike: bool
    notes: tuple[str, ...]

    def by(self, what: By) -> pl.DataFrame:
        """Return all work by layer, class, algorithm, kernel, gemm or transfer.

        The columns are those of :func:`traceana.comparison.diff_rows.told`. ``delta_ns`` adds up to
        the difference of the steps' mean device time. All views and changes are tested together.
        """
        return self.views[what]

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
        """The work by algorithm of the convolutions, all else by category."""
        return self.by("algorithm")

    @property
    def kernels(self) -> pl.DataFrame:
        """The work by kernel."""
        return self.by("kernel")

    @property
    def steps_a(self) -> int:
        """How many steps of a are compared."""
        return self.sample_a.count

    @property
    def steps_b(self) -> int:
        """How many steps of b are compared."""
        return self.sample_b.count

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of layers: ``pairs`` (of these ``moved``, ``forced``), ``only_a``, ``only_b``."""
        pairs = self.alignment.pairs
        return {
            "pairs": len(pairs),
            "moved": sum(pair.how == "moved" for pair in pairs),
            "forced": sum(pair.how == "map" for pair in pairs),
            "only_a": len(self.side_a.layers) - len(pairs),
            "only_b": len(self.side_b.layers) - len(pairs),
        }

    @property
    def per_image(self) -> tuple[float, float] | None:
        """The statistic of the step's time over the batch (ns), where the batches differ."""
        a, b = self.side_a.batch, self.side_b.batch
        if not a or not b or a == b:
            return None
        return self.step.decides.a / a, self.step.decides.b / b

    def about(self, which: Literal["a", "b"]) -> dict[str, Any]:
        """Return of one run ``file``, ``devices``, ``framework``, ``steps`` and ``marked``."""
        trace, one = (
            (self.trace_a, self.sample_a) if which == "a" else (self.trace_b, self.sample_b)
        )
        return {
            "file": trace.meta.source,
            "devices": devices(trace),
            "framework": trace.meta.framework,
            "steps": one.count,
            "marked": one.marked,
        }

    @property
    def confidence(self) -> float | None:
        """How probable it is that what is said of a layer's partner is right; mean over layers."""
        return self.alignment.confidence


def diff(
    a: Trace | str | os.PathLike[str],
    b: Trace | str | os.PathLike[str],
    *,
    pairs: Pairs | None = None,
    model_a: Manifest | None = None,
    model_b: Manifest | None = None,
    level: float = 0.95,
    minimum_effect: float = 0.01,
    statistic: str = "median",
) -> Diff:
    """Return what changed from ``a`` to ``b``, where, and whether it is real.

    Traces that are given by path are opened, with the layer manifest that lies beside them.
    ``pairs`` forces layers of ``a`` on layers of ``b``: a mapping of names, or a file of them
    (:mod:`traceana.comparison.run_inputs`). A difference is real at confidence ``level`` if its
    relative effect is at least ``minimum_effect``; ``statistic`` is ``median`` or ``mean``.
    Raises ``ValueError`` on a level, an effect or a statistic that is none, and the errors of
    :mod:`traceana.errors`.
    """
    if not 0.5 < level < 1 or minimum_effect < 0 or statistic not in ("median", "mean"):
        raise ValueError(f"no criteria: {level=} {minimum_effect=} {statistic=}")
    criteria = Criteria(level, minimum_effect, "mean" if statistic == "mean" else "median")
    trace_a, model_a = opened(a, model_a)
    trace_b, model_b = opened(b, model_b)
    trace_a, trace_b = with_names_of(trace_a, model_a), with_names_of(trace_b, model_b)
    side_a, side_b = side(trace_a, model_a), side(trace_b, model_b)
    alignment = align(side_a, side_b, forced_pairs(pairs, side_a, side_b))
    sample_a, sample_b = sample(trace_a), sample(trace_b)
    if sample_a.marked != sample_b.marked:
        sample_a, sample_b = sample(trace_a, whole=True), sample(trace_b, whole=True)
    flops = step_flops(trace_a, model_a), step_flops(trace_b, model_b)
    rows = layer_rows(side_a, side_b, alignment, sample_a, sample_b, flops)
    half_a = _half(trace_a, sample_a, side_a, pair_of(sample_a.cells, rows, "a"))
    half_b = _half(trace_b, sample_b, side_b, pair_of(sample_b.cells, rows, "b"))
    walls = sample_a.steps["wall_ns"], sample_b.steps["wall_ns"]
    views = [viewed(sample_a, sample_b, by, rows) for by in VIEWS]
    alike = walls[0].equals(walls[1]) and all(view.things.identical for view in views)
    step = judge_step(*walls, criteria, alike=alike)
    altered = found_changes(half_a, half_b, rows)
    of_changes, *of_views = judged(
        [things(altered, half_a, half_b), *(view.things for view in views)],
        *(sample_a, sample_b, criteria),
        alike=alike,
    )
    batches = side_a.batch, side_b.batch
    caveats = doubts(half_a, half_b, criteria, step, rows, alike=alike)
    notes = [
        f"{name}: {note}" for name, one in (("a", sample_a), ("b", sample_b)) for note in one.notes
    ]
    return Diff(
        trace_a,
        trace_b,
        sample_a,
        sample_b,
        side_a,
        side_b,
        alignment,
        criteria,
        step,
        rows,
        {
            view.by: told(view, figures, sample_a, sample_b, batches)
            for view, figures in zip(views, of_views, strict=True)
        },
        changes(altered, of_changes, (half_a, half_b), step, criteria),
        alike,
        (
            *notes,
            *caveats,
            *_places(trace_a, trace_b),
        ),
    )


def _half(trace: Trace, one: Sample, of: Side, pair: pl.Series) -> Half:
    waiting = loading(trace, one.steps["number"]) if one.marked else None
    return Half(one, one.cells.with_columns(pair.alias("pair")), of, waiting)


def _places(a: Trace, b: Trace) -> list[str]:
    if a.on_cpu == b.on_cpu:
        return []
    return ["one side has no device work: operators of the host stand against kernels"]


def doubts(
    a: Half, b: Half, criteria: Criteria, step: Step, pairs: pl.DataFrame, *, alike: bool
) -> Iterator[str]:
    """Yield what a reader of the verdicts has to know."""
    steps = a.sample.count, b.sample.count
    if unsure := pairs.filter(doubtful()).height:
        yield (
            f"no difference told of {unsure} layer pairs: match confidence below "
            f"{100 * LEAST_CONFIDENCE:g} %"
        )
    if alike:
        yield "every time in a is that of b: this is one recording, and nothing differs"
    elif not a.sample.marked or not b.sample.marked:
        yield "without marked steps on both sides nobody can tell whether a difference is real"
    elif not criteria.enough(*steps):
        yield (
            f"{steps[0]} and {steps[1]} steps are not enough to tell a difference from noise at "
            f"{100 * criteria.level:g} %: record at least 4 on both sides beside the warm-up"
        )
    else:
        yield (
            "faster and slower hold for all rows and changes together (p is corrected for their "
            f"number); same: all of the {100 * criteria.level:g} % interval is within "
            f"{100 * criteria.minimum_effect:g} %; inconclusive: neither is shown"
        )
        if step.verdict == "inconclusive":
            yield "more steps on both sides make the interval of the step narrower"
        yield (
            "an interval tells what these two recordings show: clocks, heat and neighbours of "
            "another day are not in it"
        )
