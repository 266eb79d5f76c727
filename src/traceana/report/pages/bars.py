"""Bar charts of analyses, for HTML and plots: the rows with most time, or another figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from traceana.report import display_names, numbers
from traceana.report.page import Axis, Chart, Column, Marks
from traceana.report.pages.single_table import column
from traceana.report.text import cut_distinct, cut_end

MOST_BARS: Final = 20
_LONGEST: Final = 40
"""Letters of a kernel's name."""
_LEAST: Final = 0.001
_PIXELS: Final = 20
"""The height of a bar with its space."""


def bars(
    frame: pl.DataFrame,
    title: str,
    item: str,
    figure: str,
    *,
    axis: str,
    shown: tuple[str, ...] = (),
    titles: Mapping[str, str] | None = None,
    coloured: bool = False,
) -> list[Chart]:
    """Return a bar of the column ``figure`` for each ``item`` of ``frame``; empty without values.

    Rows of one item are added. There are at most :data:`MOST_BARS`, largest first, none below a
    thousandth of all; the summary has the number of the others and their part. Bars that are
    ``coloured`` have the colour of their ``category``. ``shown`` are columns for a reader to look
    up, with ``titles`` of their own.
    """
    own = ("category",) if coloured else ()
    summed = (
        frame.filter(pl.col(item).is_not_null())
        .group_by(item, maintain_order=True)
        .agg(pl.col(figure, *shown).sum(), pl.col(own).first())
        .filter(pl.col(figure) > 0)
        .sort(figure, descending=True, maintain_order=True)
    )
    if summed.is_empty():
        return []
    whole = int(summed[figure].sum())
    top = summed.filter(pl.col(figure) >= _LEAST * whole).head(MOST_BARS)
    if coloured:
        called = [display_names.category(one or "other") for one in top["category"]]
        top = top.with_columns(pl.Series("category", called, pl.String))
    summary = f"Bars of {numbers.counted(top.height, 'row')}, largest first."
    if summed.height > top.height:
        rest = numbers.share((whole - int(top[figure].sum())) / whole)
        summary = f"{summary[:-1]}; the other {summed.height - top.height} have {rest}."
    given = column(figure, axis)
    return [
        Chart(
            title,
            summary,
            Axis(axis, given.kind),
            Axis("", column(item).kind),
            (
                Marks(
                    top,
                    "bar",
                    figure,
                    item,
                    colour="category" if coloured else "",
                    label=item,
                    shown=(given, *(_titled(name, titles or {}) for name in shown)),
                ),
            ),
            height=40 + _PIXELS * top.height,
        )
    ]


def _titled(name: str, titles: Mapping[str, str]) -> Column:
    return column(name, titles.get(name))


def class_bars(breakdown: pl.DataFrame, processor: str, *, mean: str) -> list[Chart]:
    """Return the time of each class.

    The figures of ``breakdown`` are ``mean``: ``per step and process``; if empty they are sums.
    """
    called = [display_names.category(one or "other") for one in breakdown["category"]]
    return bars(
        breakdown.with_columns(pl.Series("class", called, pl.String)),
        f"{processor} time by class{f', mean {mean}' if mean else ''}",
        "class",
        "time_ns",
        axis=f"time {mean}".rstrip(),
        shown=("calls",),
        coloured=True,
    )


def cause_bars(idle: pl.DataFrame, stepped: int, summed: str) -> list[Chart]:
    """Return the idle time by cause (``idle --by cause``): the mean per step and device.

    ``stepped`` is the number of devices with measured steps. A gap outside these steps is then in
    no bar, as in the columns per step of the table. Without any, the time of all devices is
    ``summed``: ``sum over 3 GPUs``, empty with one.
    """
    per_step = idle["step_ns"].count() > 0
    of = f", {summed}" if summed else ""
    each = " per step and device" if summed else " per step"
    if per_step:
        of = f", mean{each}"
        idle = idle.group_by("cause", maintain_order=True).agg(
            count=pl.col("step_count").sum() / stepped,
            time_ns=pl.col("step_ns").sum() // stepped,
        )
    called = [one.replace("_", " ") for one in idle["cause"].cast(pl.String)]
    return bars(
        idle.with_columns(pl.Series("cause", called, pl.String)),
        f"Idle time by cause{of}",
        "cause",
        "time_ns",
        axis=f"idle time{each}" if per_step else "idle time",
        shown=("count",),
        titles={"count": f"gaps{each}" if per_step else "gaps"},
    )


def path_bars(segments: pl.DataFrame, steps: int | None, *, several: bool) -> list[Chart]:
    """Return the time on the critical path by kernel, operator or call (``--by segment``).

    It is the mean over ``steps`` measured steps, of ``several`` processes or one, or without steps
    that of the capture.

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
        else ": ".join(one for one in (display_names.category(of), other) if one)
        for of, kernel, other in by_culprit.select("class", "kernel", "other").iter_rows()
    ]
    shown = cut_distinct(called, _LONGEST, cut_end)
    per = f" per step{' and process' if several else ''}" if steps else ""
    return bars(
        by_culprit.with_columns(pl.Series("culprit", shown, pl.String)),
        f"Critical path by kernel, operator and wait{f', mean{per}' if per else ''}",
        "culprit",
        "time_ns",
        axis=f"time on the critical path{per}",
        shown=("count",),
    )


def kernel_bars(kernels: pl.DataFrame) -> list[Chart]:
    """Return the kernels with most time, coloured by class."""
    by_name = kernels.group_by("name", maintain_order=True).agg(pl.col("time_ns").sum())
    # The names of kernels without a bar, which can be many, stay as they are.
    top = by_name.sort("time_ns", descending=True, maintain_order=True).head(MOST_BARS)["name"]
    brief = display_names.briefs(map(str, top.drop_nulls()))
    shown = dict(zip(brief, cut_distinct([*brief.values()], _LONGEST, cut_end), strict=True))
    label = pl.col("name").cast(pl.String).replace(shown).alias("kernel")
    return bars(
        kernels.with_columns(label),
        "Kernels with most time, coloured by class",
        "kernel",
        "time_ns",
        axis="time",
        shown=("calls",),
        coloured=True,
    )


def operator_bars(flops: pl.DataFrame) -> list[Chart]:
    """Return the operators with most FLOPs."""
    return bars(
        flops,
        "Operators with most FLOPs",
        "operator",
        "flops",
        axis="FLOPs",
        shown=("calls", "time_ns"),
    )


def type_bars(layers: pl.DataFrame) -> list[Chart]:
    """Return the time of each layer, or type of layers, of a grouped table."""
    return bars(layers, "Time by layer", "layer", "time_ns", axis="time", shown=("calls",))
