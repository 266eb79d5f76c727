"""``lines``: one row per line of the program."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze import lines as analysis
from traceana.analyze.summaries import needs_timeline
from traceana.report.pages.bars import bars
from traceana.report.pages.single_table import per_step_result, table_result
from traceana.table import LINE, Column, chosen
from traceana.timeline.work import processor
from traceana.trace.work import line_name

if TYPE_CHECKING:
    from traceana.analyze.per_step import Basis
    from traceana.report.page import Chart
    from traceana.report.result import CommandResult
    from traceana.result import Result
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import LinesBy


def lines(trace: Trace, *, by: LinesBy = "line", sum: bool = False) -> CommandResult:  # noqa: A002
    """Return the GPU time, idle time, host time and FLOPs of each line of the program.

    One row per line, function, file, or stack of lines. Screens show means per measured step, with
    ``sum`` sums over the capture.
    """
    needs_timeline(trace, "lines")
    analyze = partial(analysis.lines, by=by)
    return per_step_result(trace, analyze, _page, keys=analysis.KEYS[by], sums=sum, idle=True)


def _page(trace: Trace, result: Result, basis: Basis | None) -> CommandResult:
    return table_result(
        *("lines", result, trace),
        summed=True,
        screenful=30,
        basis=basis,
        pictures=lambda: _pictures(trace, result, basis),
    )


_LONGEST: Final = 60
"""Characters of a line in a picture."""


def _pictures(trace: Trace, result: Result, basis: Basis | None) -> list[Chart]:
    """Return bars of the lines with most time, and of those that caused most idle time."""
    said = pl.coalesce("text", "function").str.slice(0, _LONGEST)
    frame = result.frame.with_columns(line_name(" " + said).alias("place"))
    column = Column("place", LINE, "line of the program", title="line")
    of = processor(trace)
    per = "" if basis is None else f" {basis.per}"
    return [
        *bars(
            frame,
            f"Lines with most {of} time",
            (column, *chosen(result.columns, ("time_ns", "calls"))),
            axis=f"{of} time{per}",
        ),
        *bars(
            frame,
            "Lines that caused most idle time",
            (column, *chosen(result.columns, ("idle_ns",))),
            axis=f"idle time{per}",
        ),
    ]
