"""The page of a command with one table, and functions that all pages share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl
from msgspec.structs import replace

from traceana.analyze.per_step import Basis, basis
from traceana.report import display_names, numbers
from traceana.report.cells import BAR
from traceana.report.page import Block, Data, Facts, Hidden, Notes, Page, Rows, Table
from traceana.report.result import CommandResult
from traceana.settings import LEAST_ROW_SHARE
from traceana.table import NO_TITLES, Column, Kind
from traceana.timeline.idle_gaps import selects_steps
from traceana.timeline.steps import measured_steps, step_processes
from traceana.timeline.work import processor, work_ns

if TYPE_CHECKING:
    from traceana.result import Arranged, Result
    from traceana.trace import Trace


_UNKNOWN: Final = ("algorithm", "part", "host_memory")
_NONE: Final = {
    "collective": "(not recorded)",
    "operator": "(no operator)",
    "range": "(no range)",
    "line": "(no line recorded)",
    "call": "(no call)",
}


def table_result(
    command: str,
    result: Result,
    trace: Trace | None = None,
    *,
    dropped: tuple[str, ...] = (),
    layout: Literal["ruled", "compact", "records"] = "ruled",
    titles: Mapping[str, str] = NO_TITLES,
    order: str = "",
    summed: bool = False,
    displayed: Callable[[Arranged], Arranged] | None = None,
    below: Callable[[Arranged], Iterable[Block]] | None = None,
    sections: Callable[[], Mapping[str, Result]] = dict,
    screenful: int | None = None,
    pictures: Callable[[], Sequence[Block]] | None = None,
    basis: Basis | None = None,
) -> CommandResult:
    """Return ``result`` with a page: the table of its rows, blocks ``below`` it, and its notes.

    The table shows the rows of the machine formats as ``displayed`` transforms them. ``order``
    describes their order, unless the user chose another. The figures of a ``summed`` table are
    sums over the trace, or means of ``basis``; a line above it names the steps and devices.
    ``sections`` are further tables for the JSON; the rest as of :func:`table_of`.
    """

    def page(shown: Arranged) -> Page:
        rows = shown if displayed is None else displayed(shown)
        table = table_of(rows, dropped=dropped, layout=layout, titles=titles)
        if order and shown.sort is None:
            table = replace(table, order=order)
        over: tuple[Facts, ...] = ()
        if summed and trace and shown.frame.height:
            over = (_sums(trace, table) if basis is None else _means(basis, table),)
        facts = () if below is None else below(shown)
        blocks = (*over, table, *facts, *notes_of(rows.notes))
        source = {} if trace is None else source_of(trace)
        return Page(command, blocks, data_of(shown, source, sections()))

    return CommandResult.of(result, page, screenful=screenful, pictures=pictures)


def table_of(
    shown: Arranged,
    *,
    dropped: tuple[str, ...] = (),
    layout: Literal["ruled", "compact", "records"] = "ruled",
    titles: Mapping[str, str] = NO_TITLES,
) -> Table:
    """Return the table of the rows ``shown``, without columns that have no values.

    ``dropped`` are the columns that a narrow terminal leaves out, in this order; the default is
    the order of their ranks. ``titles`` replace the declared titles.
    """
    wanted = [
        replace(column, title=titles.get(column.name, column.title))
        for column in shown.columns
        if column.shown
    ]
    dropped, bars = dropped or ranked(shown.columns), with_bars(shown.columns)
    frame = without_unknown(named(shown.frame, wanted[0].name))
    columns = with_values(frame, wanted, shown.totals)
    largest = None if bars is None or shown.rows is None else shown.rows[bars].max()
    return Table(
        frame,
        columns,
        shown.totals,
        without_zeros(frame, columns, dropped),
        bars,
        layout,
        hidden_of(shown),
        largest_hidden=float(largest) if isinstance(largest, int | float) else 0.0,
    )


def ranked(columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the names of ``columns`` in the order in which they go for lack of width."""
    ranks = [(column.rank, column.name) for column in columns if column.rank is not None]
    ranks += [(column.bars, BAR) for column in columns if column.bars is not None]
    return tuple(name for _, name in sorted(ranks))


def with_bars(columns: Iterable[Column]) -> str | None:
    """Return the name of the column that has bars, if there is one."""
    return next((column.name for column in columns if column.bars is not None), None)


def _sums(trace: Trace, table: Table) -> Facts:
    """Return the line that names the steps and devices of the sums, and the base of shares."""
    processes = step_processes(trace)
    # Ranks number their own devices.
    devices = trace.tables.activities.select("rank", "device").drop_nulls("device").n_unique()
    counts = [numbers.counted(trace.tables.steps["number"].n_unique(), "step")] * bool(
        trace.tables.steps.height
    )
    if processes > 1:
        counts.append(f"{processes} processes")
    elif devices > 1:
        counts.append(f"{devices} devices")
    text = f"sums over the {window_text(trace)}"
    if counts:
        warm_up = len(measured_steps(trace).rows) < trace.tables.steps.height
        outside = pl.col("step").is_null() & (pl.col("kind") != "sync")
        if trace.tables.steps.height and trace.tables.activities.select(outside.any()).item():
            counts[-1] += " and work outside them"
        text += f" ({' of '.join(counts)}{', warm-up included' if warm_up else ''})"
    if _has_share(table):
        of = f"{numbers.duration(work_ns(trace))} summed {processor(trace)} time"
        text += f" · share: of {of}"
    return Facts((("Table", text),))


def _means(basis: Basis, table: Table) -> Facts:
    """Return the line that names the steps of the means, and the base of shares."""
    parts = ["; ".join(basis.notes)]
    if step_processes(basis.trace) > 1:
        parts[0] += f", {basis.per}"
    if _has_share(table):
        time = numbers.duration(work_ns(basis.trace) // basis.steps)
        parts.append(f"share: of {time} {processor(basis.trace)} time")
    if (outside := basis.outside) is not None:
        of = processor(basis.trace)
        parts.append(f"{numbers.share(outside)} of {of} time is outside these steps")
    return Facts((("Table", " · ".join(parts)),))


def _has_share(table: Table) -> bool:
    return any(column.name == column.title == "share" for column in table.columns)


def per_step_result(
    trace: Trace,
    analyze: Callable[[Trace], Result],
    show: Callable[[Trace, Result, Basis | None], CommandResult],
    *,
    keys: Sequence[str],
    sums: bool = False,
    idle: bool = False,
) -> CommandResult:
    """Return what ``analyze`` returns of ``trace``, with columns per step, and its page.

    ``show`` makes the page of a part of the trace and of its result. Screens, HTML and Markdown
    show the means per measured step, where there are such steps, else, and with ``sums``, the sums
    over the capture, as also where some kernels were measured by another profiler. ``keys``
    identify the rows. With ``idle`` the figures include time without work: the part is analyzed by
    itself even if it has all work.
    """
    over = basis(trace)
    whole = analyze(trace)
    part = analyze(over.trace) if idle else over.analyzed(analyze, whole)
    exact = show(trace, over.with_step_columns(whole, part, keys), None)
    # Another profiler measures the first launches, which may be of the warm-up.
    is_measured = "measured" in whole.frame.columns and whole.frame["measured"].count() > 0
    if sums or is_measured or not over.stepped:
        return exact
    return replace(exact, _per_step=show(over.trace, over.means(part), over))


def window_text(trace: Trace) -> str:
    """Return the window of the figures: the selected steps, or the capture."""
    return "selected steps" if selects_steps(trace) else "capture"


def device_title(keys: Iterable[str]) -> str:
    """Return the title of the devices that ``keys`` identify: ``rank``, ``GPU``, ``rank/GPU``."""
    return "/".join({"rank": "rank", "device": "GPU"}[key] for key in keys)


def named(frame: pl.DataFrame, first: str) -> pl.DataFrame:
    """Return ``frame`` with a name for the rows without an operator or range, its first column."""
    if first == "collective" and "part" in frame.columns:
        frame = frame.with_columns(_with_kernel(frame["collective"], frame["part"]))
    elif (
        first not in _NONE
        or frame[first].dtype.is_numeric()
        or frame[first].null_count() == frame.height
    ):
        return frame
    return frame.with_columns(pl.col(first).fill_null(_NONE[first]))


def _with_kernel(collectives: pl.Series, parts: pl.Series) -> pl.Series:
    """Return ``collectives`` with the class of the kernel where it has another name."""
    called = [
        f"{display_names.part(collective)} ({display_names.part(part)})"
        if collective and part not in (None, "unknown", collective)
        else collective and display_names.part(collective)
        for collective, part in zip(collectives, parts, strict=True)
    ]
    return pl.Series("collective", called, pl.String)


def without_unknown(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with unknown algorithms, parts and kinds of host memory empty.

    A column that is unknown in every row is then left out.
    """
    names = [name for name in _UNKNOWN if name in frame.columns]
    return frame.with_columns(pl.col(names).replace("unknown", None))


def without_zeros(
    frame: pl.DataFrame, columns: Iterable[Column], dropped: tuple[str, ...]
) -> tuple[str, ...]:
    """Return ``dropped`` with the durations that are 0 in every row of ``frame`` after the bars.

    They are among the ``columns`` of a table only because hidden rows have such values.
    """
    times = {column.name for column in columns if column.kind is Kind.TIME}
    zeros = [name for name in dropped if name in times and not (frame[name] != 0).any()]
    at = dropped.index(BAR) + 1 if BAR in dropped else 0
    return (*dropped[:at], *zeros, *dropped[at:])


def has_values(values: pl.Series, column: Column, total: int | None = None) -> bool:
    """Return whether ``column`` is shown: its values are not all null, and durations not all 0.

    A column with a ``total`` above 0 has values in hidden rows.
    """
    if total:
        return True
    if values.null_count() == len(values):
        return False
    return column.kind is not Kind.TIME or column.zeros or bool((values != 0).any())


def with_values(
    frame: pl.DataFrame, columns: Iterable[Column], totals: Mapping[str, int] | None = None
) -> tuple[Column, ...]:
    """Return the ``columns`` that a page shows and that have values in ``frame``."""
    return tuple(
        column
        for column in columns
        if column.shown and has_values(frame[column.name], column, (totals or {}).get(column.name))
    )


def hidden_of(shown: Arranged, command: str = "") -> Hidden | None:
    """Return the hidden rows; ``command`` is the command that shows them."""
    if not shown.hidden:
        return None
    return Hidden(shown.hidden, shown.hidden_totals.get("time_ns"), command)


def notes_of(notes: Iterable[str]) -> tuple[Notes, ...]:
    """Return the block of ``notes``, empty without notes."""
    rows = tuple(("", note) for note in notes)
    return (Notes(rows),) if rows else ()


def outside_text(row: Mapping[str, Any]) -> str:
    """Return the time of the recording before and after the capture; empty below 1 % of it."""
    before, after = row["before_ns"] or 0, row["after_ns"] or 0
    if before + after < LEAST_ROW_SHARE * row["span_ns"]:
        return ""
    times = " and ".join(
        f"{numbers.duration(time)} {where}"
        for time, where in ((before, "before the first"), (after, "after the last"))
        if time
    )
    return f"{times} activity, outside the capture"


def data_of(
    shown: Arranged, source: Mapping[str, Any], sections: Mapping[str, Result] | None = None
) -> Data:
    """Return the data of the rows ``shown``; ``sections`` are further tables with all rows."""
    return Data(
        Rows(shown.frame, columns=shown.columns),
        source,
        shown.totals,
        shown.frame.height + shown.hidden,
        shown.notes,
        {
            name: Rows(result.frame, columns=result.columns)
            for name, result in (sections or {}).items()
        },
    )


def source_of(trace: Trace) -> dict[str, Any]:
    """Return file, format, selection and integrity problems, for the JSON's ``meta``."""
    meta = trace.meta
    problems = trace.tables.ledger.filter(trace.tables.ledger["severity"] == "problem")
    return {
        "file": meta.source,
        "format": meta.format,
        "format_version": meta.format_version,
        "framework": meta.framework,
        "on_cpu": trace.on_cpu,
        "clock": "recorded" if trace.recorded is None else "program",
        "selected_steps": meta.properties.get("selected_steps"),
        "selected_devices": meta.properties.get("selected_devices"),
        "selected_ranks": meta.properties.get("selected_ranks"),
        "counters": meta.properties.get("counters_file"),
        "truncated": meta.truncated,
        "bytes_read": meta.bytes_read,
        "bytes_total": meta.bytes_total,
        "problems": problems.select("reason", "count", "time_ns").to_dicts(),
    }
