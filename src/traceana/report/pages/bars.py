"""Bar charts, for HTML and plots: the rows with most of a figure, or the runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import polars as pl

from traceana.report import display_names, numbers
from traceana.report.cells import texts
from traceana.report.page import Axis, Chart, Marks
from traceana.table import Column, Columns, Kind, names_of

MOST_BARS: Final = 20
_LEAST: Final = 0.001
_MOST_VALUES: Final = 120
"""Bars with their values written at their ends."""


def bars(
    frame: pl.DataFrame,
    title: str,
    columns: Columns,
    *,
    axis: str,
    coloured: bool = False,
) -> list[Chart]:
    """Return a bar of the figure for each item of ``frame``; empty without values.

    ``columns`` are the item, the figure, and what a reader can look up. Rows of one item are added.
    There are at most :data:`MOST_BARS`, largest first, none below a thousandth of all; the summary
    has the number of the others and their part. Bars that are ``coloured`` have the colour of their
    ``category``.
    """
    named, drawn, *looked_up = columns
    item, figure = named.name, drawn.name
    category = pl.col("category").fill_null("other")
    summed = (
        (frame.with_columns(category) if coloured else frame)
        .filter(pl.col(item).is_not_null())
        .group_by(item, maintain_order=True)
        .agg(
            pl.col(figure, *names_of(tuple(looked_up))).sum(),
            *([pl.col("category").first().alias("class")] if coloured else []),
        )
        .filter(pl.col(figure) > 0)
        .sort(figure, descending=True, maintain_order=True)
    )
    if summed.is_empty():
        return []
    whole = int(summed[figure].sum())
    top = summed.filter(pl.col(figure) >= _LEAST * whole).head(MOST_BARS)
    kind = named.kind
    top = top.with_columns(pl.Series(item, texts(kind, top[item]), pl.String))
    if coloured:
        called = texts(Kind.CATEGORY, top["class"])
        top = top.with_columns(pl.Series("category", called, pl.String))
    summary = f"Bars of {numbers.counted(top.height, 'row')}, largest first."
    if summed.height > top.height:
        rest = numbers.share((whole - int(top[figure].sum())) / whole)
        summary = f"{summary[:-1]}; the other {summed.height - top.height} have {rest}."
    colour = "category" if coloured else ""
    marks = Marks(top, "bar", figure, item, colour=colour, shown=tuple(looked_up))
    return [Chart(title, summary, Axis(axis, drawn.kind), Axis("", kind), (marks,))]


def grouped_bars(
    frame: pl.DataFrame,
    title: str,
    figure: str,
    axis: Axis,
    colours: Mapping[str, str],
    reference: float | None = None,
) -> Chart:
    """Return a bar of ``figure`` for each row, at its ``item``, with the value at its end.

    Bars of one item are of several ``series``. A row without a value is the reason why it
    ``failed``; a frame without failures needs no such column. A bar is pale if it is
    ``published``. A dashed line marks the ``reference``.
    """
    valued, faint = pl.col(figure).is_not_null(), "published" in frame.columns
    failed = "failed" if "failed" in frame.columns else ""
    written = frame.filter(valued | pl.col("failed").is_not_null() if failed else valued)
    drawn = written.filter(valued)
    series = written["series"].unique(maintain_order=True)
    rows = numbers.counted(written["item"].n_unique(), "row")
    grouped = bool(written["item"].is_duplicated().any())
    if drawn.height > _MOST_VALUES:
        written = written.filter(~valued)
    of = partial(Marks, x=figure, y="item", colour="series", grouped=grouped)
    marks = [
        of(drawn, "bar", faint="published" if faint else ""),
        of(written, "value", label=failed),
    ]
    if reference is not None:
        marks.append(Marks(pl.DataFrame({figure: [reference]}), "rule", figure))
    summary = f"Bars of {rows}, {len(series)} series: {', '.join(series)}."
    return Chart(title, summary, axis, Axis("", Kind.TEXT), tuple(marks), colours=colours)


def cause_bars(idle: pl.DataFrame, stepped: int, summed: str) -> list[Chart]:
    """Return the idle time by cause (``idle --by cause``): the mean per step and device.

    ``stepped`` is the number of devices with measured steps. A gap outside these steps is then in
    no bar, as in the columns per step of the table. Without any, the time of all devices is
    ``summed``: ``sum over 3 GPUs``, empty with one.
    """
    per_step = idle["step_ns"].count() > 0
    of = f", {summed}" if summed else ""
    each = ""
    if per_step:
        each = " per step and device" if summed else " per step"
        of = f", mean{each}"
        idle = idle.select(
            "cause",
            count=pl.col("step_count") / stepped,
            time_ns=pl.col("step_ns") / stepped,
        )
    return bars(
        idle,
        f"Idle time by cause{of}",
        (
            Column("cause", Kind.PART),
            Column("time_ns", Kind.TIME),
            Column("count", Kind.COUNT, title=f"gaps{each}"),
        ),
        axis=f"idle time{each}",
    )


def path_bars(segments: pl.DataFrame, steps: int | None, *, several: bool) -> list[Chart]:
    """Return the time on the critical path by kernel, operator or call (``--by segment``).

    It is the mean over ``steps`` measured steps of one or ``several`` processes; without steps, the
    time in the capture.

    Device work is named by its kernel or copy, the host by its operator or annotation, launches and
    waits by the operator that they belong to.
    """
    of_work = pl.col("class").is_in(["kernel", "collective", "copy", "memset"])
    by_culprit = (
        segments.select(
            "class",
            pl.when(of_work).then("name").alias("kernel"),
            pl.when(~of_work).then(pl.coalesce("operator", "name")).alias("other"),
            "time_ns",
        )
        .group_by("class", "kernel", "other", maintain_order=True)
        .agg(pl.col("time_ns").sum(), pl.len().cast(pl.Int64).alias("count"))
        .sort("time_ns", descending=True, maintain_order=True)
        .head(4 * MOST_BARS)
    )
    if steps is not None:
        by_culprit = by_culprit.with_columns(pl.col("time_ns") // steps, pl.col("count") / steps)
    brief = display_names.briefs(map(str, by_culprit["kernel"].drop_nulls()))
    called = [
        brief[kernel]
        if kernel
        else ": ".join(text for text in (display_names.category(of), other) if text)
        for of, kernel, other in by_culprit.select("class", "kernel", "other").iter_rows()
    ]
    per = f" per step{' and process' if several else ''}" if steps else ""
    return bars(
        by_culprit.with_columns(pl.Series("segment", called, pl.String)),
        f"Critical path by kernel, operator and wait{f', mean{per}' if per else ''}",
        (Column("segment"), Column("time_ns", Kind.TIME), Column("count", Kind.COUNT)),
        axis=f"time on the critical path{per}",
    )
