"""``lines``: one row per line of the program."""

from __future__ import annotations

from functools import cache, partial
from itertools import cycle
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze import lines as analysis
from traceana.analyze.summaries import needs_timeline
from traceana.report.charts.colours import PALETTE
from traceana.report.page import Facts, Heading, Icicle, Table
from traceana.report.pages.bars import bars
from traceana.report.pages.single_table import per_step_result, ranked, table_result
from traceana.table import COUNT, LINE, LONG, SHARE, TIME, Column, chosen
from traceana.timeline.work import processor
from traceana.trace.work import line_name
from traceana.whatif.program import without_profiler

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceana.analyze.per_step import Basis
    from traceana.report.page import Block, Chart
    from traceana.report.result import CommandResult
    from traceana.result import Arranged, Result
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import LinesBy

    _MakePage = Callable[[Trace, Result, Basis | None], CommandResult]


def lines(
    trace: Trace,
    *,
    by: LinesBy = "line",
    source: str | None = None,
    sum: bool = False,  # noqa: A002
) -> CommandResult:
    """Return the GPU time, idle time, host time and FLOPs of each line of the program.

    One row per line, function, file, or stack of lines, which screens show as a tree of calls; with
    ``source`` the lines of that file. Screens show means per measured step, with ``sum`` sums over
    the capture. Raises :class:`~traceana.errors.NoSuchSelectionError` where no file is called
    ``source``.
    """
    needs_timeline(trace, "lines")
    if analysis.has_stacks(trace):
        trace = without_profiler(trace)
    if source is not None:
        return listing(trace, source, sums=sum)
    analyze = partial(analysis.lines, by=by)
    of_kind: dict[LinesBy, _MakePage] = {
        "stack": _tree_page,
        "function": partial(_page, dropped=_BY_FUNCTION),
    }
    return per_step_result(
        trace, analyze, of_kind.get(by, _page), keys=analysis.KEYS[by], sums=sum, idle=True
    )


def listing(trace: Trace, file: str, *, sums: bool = False) -> CommandResult:
    """Return the regions of ``file`` that have work, waits or host time, with their texts."""
    # Few pages have one.
    from traceana.analyze.source_listing import source_listing

    def page(trace: Trace, result: Result, basis: Basis | None) -> CommandResult:
        return table_result("lines", result, trace, summed=True, basis=basis)

    analyze = partial(source_listing, file=file)
    return per_step_result(trace, analyze, page, keys=("line",), sums=sums, idle=True)


_BY_FUNCTION: Final = tuple(
    name for name in ranked(analysis.COLUMNS) if name not in ("function", "text")
)
_MOST_FILES: Final = 8
_LEAST_OF_FILE: Final = 0.01
"""Share of all work, or of all idle time, of a file that a page of everything shows."""


def sources(trace: Trace) -> tuple[Block, ...]:
    """Return the program's files with most time, each with a heading, for the page of a report."""
    from traceana.analyze.source_listing import files_by_time

    files = files_by_time(trace)
    large = pl.any_horizontal(
        pl.col(name) >= (_LEAST_OF_FILE * pl.col(name).sum()).clip(1)
        for name in ("time_ns", "idle_ns")
    )
    pages = {
        file: listing(trace, file).page(columns=("line", "time", "total", "idle", "text")).blocks
        for file in files.filter(large)["file"].head(_MOST_FILES)
    }
    # One scale of heat for all files: the part of the step that a line takes.
    heat = pl.col("time_ns").fill_null(0) + pl.col("idle_ns").fill_null(0)
    tables = [block for shown in pages.values() for block in shown if isinstance(block, Table)]
    hottest = max((table.frame.select(heat.max()).item() or 0 for table in tables), default=0)
    blocks: list[Block] = []
    for file, shown in pages.items():
        blocks.append(Heading(file))
        for block in shown:
            if isinstance(block, Table):
                frame = block.frame.with_columns(heat.alias("heat_ns"))
                blocks.append(
                    replace(block, frame=frame, bars="heat_ns", largest_hidden=float(hottest))
                )
            elif not isinstance(block, Facts):
                blocks.append(block)
    return tuple(blocks)


def _page(
    trace: Trace, result: Result, basis: Basis | None, *, dropped: tuple[str, ...] = ()
) -> CommandResult:
    return table_result(
        *("lines", result, trace),
        dropped=dropped,
        summed=True,
        screenful=30,
        basis=basis,
        pictures=lambda: _pictures(trace, result, basis),
    )


def _tree_page(trace: Trace, result: Result, basis: Basis | None) -> CommandResult:
    """Return the page of the stacks: their tree, unless rows are sorted or filtered."""
    from traceana.analyze.line_tree import line_tree

    # Machine formats have no tree.
    tree = cache(partial(line_tree, trace))
    steps = 1 if basis is None else basis.steps

    def as_tree(shown: Arranged) -> Arranged:
        if shown.sort is not None or shown.frame.height + shown.hidden < result.frame.height:
            return shown
        return drawn_tree(tree(), steps, shown)

    return table_result(
        *("lines", result, trace),
        summed=True,
        basis=basis,
        displayed=as_tree,
        pictures=lambda: line_icicle(tree(), steps, processor(trace)),
    )


_LEAST_BRANCH: Final = 0.01
"""Share of all time, or of all idle time, of a branch that is drawn."""
_TREE: Final = (
    Column("line", LONG, "line of the program, below the line that calls it"),
    Column("calls", COUNT, "pieces of work of the line and of the lines that it calls"),
    Column("time_ns", TIME, "their time", title="time"),
    Column("share", SHARE, "of all time"),
    Column("idle_ns", TIME, "idle time that began on them", title="idle"),
    Column("host_ns", TIME, "time of the host's thread on them", title="host"),
)


def drawn_tree(tree: pl.DataFrame, steps: int, shown: Arranged) -> Arranged:
    """Return the branches of :func:`traceana.analyze.line_tree.line_tree` above 1 %, drawn."""
    figures = ("time_ns", "idle_ns")
    whole = tree.row(0, named=True)
    large = pl.any_horizontal(
        pl.col(name) >= max(_LEAST_BRANCH * whole[name], 1) for name in figures
    )
    rows = tree.with_row_index("row").filter(large & pl.col("parent").is_not_null())
    names = _shortened(rows["place"].to_list())
    is_last = pl.col("row") == pl.col("row").max().over("parent")
    drawn = []
    goes_on: list[bool] = []
    """Whether a branch follows, by depth, below the parent of the row."""
    for place, text, depth, last in rows.select(
        "place", "text", "depth", is_last.alias("last")
    ).iter_rows():
        goes_on[depth - 1 :] = [not last]
        above = "".join("│  " if more else "   " for more in goes_on[1:-1])
        branch = "" if depth == 1 else f"{above}{'└─ ' if last else '├─ '}"
        drawn.append(f"{branch}{names[place]} {text or ''}".rstrip())
    frame = rows.with_columns(
        pl.Series("line", drawn, dtype=pl.String),
        (pl.col("time_ns") / max(whole["time_ns"], 1)).alias("share"),
        pl.col("calls") / steps,
        *(pl.col(name) // steps for name in (*figures, "host_ns")),
    )
    left_out = tree.height - 1 - rows.height
    notes = shown.notes
    if left_out:
        notes = (*notes, f"{left_out} branches below 1 % left out (--format csv has all stacks)")
    frame = frame.select(column.name for column in _TREE)
    return replace(shown, frame=frame, columns=_TREE, totals={}, notes=notes, hidden=0, rows=None)


def _shortened(places: list[str]) -> dict[str, str]:
    """Return each of ``places`` without its folders, where no other file is called so."""
    folders: dict[str, set[str]] = {}
    for place in places:
        file = place.rpartition(":")[0]
        folders.setdefault(file.rpartition("/")[2], set()).add(file)
    return {
        place: place.rpartition("/")[2]
        if len(folders[place.rpartition(":")[0].rpartition("/")[2]]) == 1
        else place
        for place in places
    }


def line_icicle(tree: pl.DataFrame, steps: int, of: str) -> list[Icicle]:
    """Return the tree of the lines with their time; empty without lines of the program."""
    if tree.height < 3 or not tree["time_ns"][0]:
        return []
    whole = int(tree["time_ns"][0])
    label = pl.coalesce(
        pl.when(pl.col("parent").is_null()).then(pl.lit("all work")),
        pl.format("{} {}", pl.col("place").str.split("/").list.last(), pl.col("text")),
        pl.col("place"),
    )
    file = pl.col("place").str.extract(r"([^/]*):\d+$").fill_null("(no line)")
    files = tree.select(file.unique(maintain_order=True)).to_series()
    shown = tree.with_columns(
        label.alias("label"),
        pl.col("place").alias("path"),
        file.alias("category"),
        (pl.col("time_ns") / whole).alias("share"),
    )
    return [
        Icicle(
            f"Lines of the program by {of} time, below the lines that call them",
            f"{tree.height - 1} lines; widths are times.",
            shown,
            chosen(_TREE, ("time_ns", "share", "calls")),
            steps,
            dict(zip(files, cycle(PALETTE), strict=False)),
        )
    ]


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
