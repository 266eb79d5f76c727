"""``lines``: one row per line of the program."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from traceana.analyze import lines as analysis
from traceana.analyze.summaries import needs_timeline
from traceana.report.pages.single_table import per_step_result, table_result

if TYPE_CHECKING:
    from traceana.analyze.per_step import Basis
    from traceana.report.result import CommandResult
    from traceana.result import Result
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import LinesBy

_KEYS: Final = {
    "line": ("file", "line", "function"),
    "function": ("file", "function"),
    "file": ("file",),
    "stack": ("stack", "file", "line", "function"),
}


def lines(trace: Trace, *, by: LinesBy = "line", sum: bool = False) -> CommandResult:  # noqa: A002
    """Return the GPU time, idle time, host time and FLOPs of each line of the program.

    One row per line, function, file, or stack of lines. Screens show means per measured step, with
    ``sum`` sums over the capture.
    """
    needs_timeline(trace, "lines")
    analyze = partial(analysis.lines, by=by)
    return per_step_result(trace, analyze, _page, keys=_KEYS[by], sums=sum, idle=True)


def _page(trace: Trace, result: Result, basis: Basis | None) -> CommandResult:
    return table_result("lines", result, trace, summed=True, screenful=30, basis=basis)
