"""Pictures of studies whose rows are a run and an item: a group of bars an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import polars as pl

from traceana.report.plots.picture import Axis, Panel, Picture
from traceana.report.plots.summed import summed
from traceana.report.plots.units import bytes_axis, time_axis
from traceana.report.text import plain
from traceana.study.model import Study
from traceana.study.names import Name

_MOST: Final = 30
"""More items than this are unreadable beside each other."""

_ITEMS: Final[Mapping[Name, tuple[str, ...]]] = {
    Name.FRAMEWORKS: ("layer",),
    Name.EPILOGUES: ("operation", "direction"),
    Name.SGEMM: ("gemm", "form"),
    Name.TRANSFERS: ("direction", "host_memory"),
}
_PANELS: Final[Mapping[Name, Mapping[str, str]]] = {
    Name.FRAMEWORKS: {"forward_ns": "forward", "backward_ns": "backward"},
    Name.EPILOGUES: {"time_ns": ""},
    Name.SGEMM: {"time_ns": "time", "calls": "calls"},
    Name.TRANSFERS: {"bytes": "size", "bytes_per_s": "throughput", "time_ns": "time"},
}


def picture(study: Study) -> Picture:
    """Return the bars of ``study``: one panel a figure, one series a run.

    What is no layer is no row. Of more than 30 items those with the most time are drawn, in their
    order; the heading says so.
    """
    frame = study.result.frame.with_columns(
        _named(study, _ITEMS[study.name]).alias("_row"), _label(study.result.frame).alias("_label")
    )
    if "role" in frame.columns:
        frame = frame.filter(pl.col("role") == "layer")
    rows = frame["_row"].unique(maintain_order=True).to_list()
    on = list(study.on)
    if len(rows) > _MOST:
        most = frame.group_by("_row").agg(pl.col("time_ns").sum()).sort("time_ns", descending=True)
        kept = set(most["_row"].head(_MOST))
        on.append(f"the {_MOST} of {len(rows)} rows with the most time")
        rows = [row for row in rows if row in kept]
    drawn = _PANELS[study.name]
    # The passes are parts of one step.
    one_scale = study.name is Name.FRAMEWORKS
    panels = [
        _panel(frame, rows, column, title, tuple(drawn) if one_scale else (column,))
        for column, title in drawn.items()
    ]
    return Picture(study.title, on, panels, min(3, len(panels)), share="all", one_scale=one_scale)


def _named(study: Study, columns: Sequence[str]) -> pl.Expr:
    networks = study.result.frame["network"].drop_nulls().n_unique()
    parts = [*(["network"] if networks > 1 else []), *columns]
    return pl.concat_str(parts, separator=", ", ignore_nulls=True)


def _label(frame: pl.DataFrame) -> pl.Expr:
    if "source" not in frame.columns:
        return pl.col("run")
    printed = pl.format("{} ({})", "run", "source")
    return pl.when(pl.col("source").is_null()).then("run").otherwise(printed)


def _panel(
    frame: pl.DataFrame, rows: Sequence[str], column: str, title: str, scale: Sequence[str]
) -> Panel:
    """Return the bars of ``column``, on an axis for the columns ``scale``."""
    axis, size = _axis(column)(pl.concat([frame[each].rename("") for each in scale]))
    bars = summed(frame, "_label", "_row", rows, column, size)
    return Panel(title, axis, rows=[plain(row) for row in rows], bars=bars)


def _axis(column: str) -> Callable[[pl.Series], tuple[Axis, int]]:
    if column.endswith("_ns"):
        return lambda values: time_axis("time", values)
    if column == "bytes":
        return lambda values: bytes_axis("copied", values)
    if column == "bytes_per_s":
        return lambda _: (Axis("throughput (GB/s)"), 10**9)
    return lambda _: (Axis(column), 1)
