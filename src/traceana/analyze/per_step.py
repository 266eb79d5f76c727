"""Means per measured step: the part of a trace that they cover, and the columns ``step_…``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import polars as pl

from traceana.result import Result, column_sum
from traceana.table import (
    BYTES,
    FLOPS,
    MEAN,
    OF_FLOPS,
    STEP,
    TIME,
    Column,
    Columns,
    Kind,
    by_name,
    chosen,
    conformed,
    names_of,
)
from traceana.timeline.steps import measured, measured_steps, step_processes
from traceana.timeline.work import work, work_ns
from traceana.trace import Trace

COLUMNS: Final = (
    Column(
        "step_count",
        MEAN,
        "mean number of calls per measured step; null without steps",
        title="calls per step",
        shown=False,
    ),
    Column(
        "step_ns",
        TIME,
        "`time_ns` of the measured steps per step, rounded down; null without steps",
        title="per step",
        scale=STEP,
        shown=False,
    ),
)
FLOPS_PER_STEP: Final = (
    Column(
        "step_flops",
        FLOPS,
        "`flops` of the measured steps per step, rounded down; null without steps",
        title="FLOPs per step",
        scale=OF_FLOPS,
        shown=False,
    ),
)
BYTES_PER_STEP: Final = (
    Column(
        "step_bytes",
        BYTES,
        "`bytes` of the measured steps per step, rounded down; null without steps",
        title="bytes per step",
        shown=False,
    ),
)
COSTS: Final = (*FLOPS_PER_STEP, *BYTES_PER_STEP)
_ALL: Final = 0.9995
"""A share from here on is printed as 100.0 %."""
_SOURCES: Final = {
    "step_count": ("calls", "count"),
    "step_ns": ("time_ns",),
    "step_flops": ("flops",),
    "step_bytes": ("bytes",),
}


class Basis(msgspec.Struct, frozen=True):
    """What tables of means cover: the measured steps, else the capture.

    ``trace`` is that part of the trace, ``steps`` the divisor of its sums: the number of measured
    steps of each process, 1 for the capture. ``work_share`` is the part's share of the work of the
    trace, ``all_work`` whether it has all of it. ``notes`` name the measured steps.
    """

    trace: Trace
    steps: int
    stepped: bool
    work_share: float
    all_work: bool
    notes: tuple[str, ...]

    @property
    def per(self) -> str:
        """The divisor of the means: ``per step``, or ``per step and process`` with several.

        Empty for sums.
        """
        if not self.stepped:
            return ""
        several = step_processes(self.trace) > 1
        return "per step and process" if several else "per step"

    @property
    def outside(self) -> float | None:
        """The share of the work outside the measured steps; None if that would print 0.0 %."""
        return 1 - self.work_share if self.work_share < _ALL else None

    def title(self, table: str) -> str:
        """Return the title of ``table``, with "per step" if its figures are means."""
        return f"{table}, per step" if self.stepped else table

    def analyzed(self, analyze: Callable[[Trace], Result], whole: Result) -> Result:
        """Return the analysis of the part; ``whole`` is that of the trace."""
        return whole if self.all_work else analyze(self.trace)

    def means(self, result: Result) -> Result:
        """Return ``result``, a table of the part, with means per step.

        Columns that are additive are divided by the number of steps; times, bytes and FLOPs are
        rounded down.
        """
        if not self.stepped:
            return result
        frame = result.frame
        additive = [column for column in result.columns if column.additive]
        means = frame.with_columns(
            pl.col(column.name) / self.steps
            if column.kind is Kind.COUNT
            else pl.col(column.name) // self.steps
            for column in additive
        )
        names = names_of(tuple(additive))
        totals = {
            name: total
            if name not in names
            # The total of a union of intervals is no sum of the rows.
            else column_sum(means[name])
            if column_sum(frame[name]) == total
            else total // self.steps
            for name, total in result.totals.items()
        }
        return Result(means, totals, result.notes, result.columns)

    def with_step_columns(self, whole: Result, part: Result, keys: Sequence[str]) -> Result:
        """Return ``whole``, the sums over the trace, with the means of ``part`` as columns.

        A row is that of ``part`` with the same ``keys``.
        """
        added = _step_columns(whole.columns)
        columns = (*whole.columns, *added)
        frame = whole.frame
        if self.stepped and frame.height:
            means, sources = self.means(part), _sources(part.columns)
            of_part = means.frame.select(
                *keys, *(pl.col(sources[name]).alias(name) for name in names_of(added))
            )
            of_part = of_part.unique(list(keys), keep="first").with_columns(in_part=True)
            frame = frame.join(
                of_part, on=list(keys), how="left", nulls_equal=True, maintain_order="left"
            )
            # A row without work in the measured steps.
            outside = pl.col("in_part").is_null()
            frame = frame.with_columns(
                pl.when(outside & pl.col(sources[name]).is_not_null())
                .then(0)
                .otherwise(name)
                .alias(name)
                for name in names_of(added)
            )
        return Result(conformed(frame, columns), whole.totals, whole.notes, columns)


def basis(trace: Trace) -> Basis:
    """Return the basis of the means of ``trace``."""
    part = measured(trace)
    stepped = part is not trace
    ran, of = work_ns(part), work_ns(trace)
    return Basis(
        trace=part,
        steps=part.tables.steps.height if stepped else 1,
        stepped=stepped,
        work_share=ran / of if of else 1.0,
        all_work=not stepped or work(part, "kind").height == work(trace, "kind").height,
        notes=measured_steps(trace).notes if stepped else (),
    )


def _sources(columns: Columns) -> dict[str, str]:
    """Return the column of sums that each column per step is the mean of."""
    additive = {column.name for column in columns if column.additive}
    return {
        name: source
        for name, sources in _SOURCES.items()
        for source in sources
        if source in additive
    }


def _step_columns(columns: Columns) -> Columns:
    """Return the columns per step that ``columns`` lack."""
    missing = [name for name in _sources(columns) if name not in by_name(columns)]
    return chosen((*COLUMNS, *COSTS), missing)
