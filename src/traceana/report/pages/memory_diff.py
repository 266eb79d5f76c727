"""``diff`` of two memory snapshots: the growth of live memory by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.memory import blocks
from traceana.analyze.summaries import needs_timeline
from traceana.comparison.memory_growth import memory_growth
from traceana.errors import UsageError
from traceana.report import display_names, numbers
from traceana.report.page import Block, Facts, Page
from traceana.report.pages.single_table import data_of, notes_of, source_of, table_of
from traceana.report.result import CommandResult
from traceana.result import Arranged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceana.trace import Trace

_ALLOCATED: Final = pl.col("state") == "active_allocated"


def diff_snapshots(a: Sequence[Trace], b: Sequence[Trace], by: str | None) -> CommandResult:
    """Return the growth of live memory from snapshot ``a`` to ``b``, by line of the program.

    Raises ``UsageError`` for several runs and for other rows than lines, and
    ``NoSuchSelectionError`` where one of the two is not a snapshot.
    """
    traces = (*a, *b)
    if not all(trace.is_snapshot for trace in traces):
        needs_timeline(next(trace for trace in traces if trace.is_snapshot), "diff with a trace")
    if len(traces) != 2 or by not in (None, "line"):
        raise UsageError("memory snapshots: diff compares two of them, by line")

    def page(shown: Arranged) -> Page:
        facts = [
            (label, f"{display_names.trace_file(trace.meta.source)} · {_sizes(trace)}")
            for label, trace in zip(("Baseline", "Candidate"), traces, strict=True)
        ]
        facts.append(("Table", "memory that is live in the snapshots, requested bytes"))
        parts: tuple[Block, ...] = (
            *(Facts(tuple(facts)), table_of(shown)),
            *notes_of(shown.notes),
        )
        source = {"a": source_of(traces[0]), "b": source_of(traces[1])}
        return Page("diff", parts, data_of(shown, source))

    return CommandResult.of(memory_growth(*traces), page, screenful=30)


def _sizes(trace: Trace) -> str:
    held = blocks(trace)
    allocated, reserved = (int(rows["bytes"].sum()) for rows in (held.filter(_ALLOCATED), held))
    return f"allocated {numbers.size(allocated)} of {numbers.size(reserved)} reserved"
