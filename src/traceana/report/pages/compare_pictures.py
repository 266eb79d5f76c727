"""The picture of a comparison: the step time of each run, and the items with most time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.report import names, numbers
from traceana.report.panels import Bars, Panel, Panels, scaled, summed, time_axis
from traceana.report.text import cut_distinct, cut_end

if TYPE_CHECKING:
    from traceana.choices import CompareBy
    from traceana.comparison.compare import Comparison

MOST_ITEMS: Final = 16
_LONGEST: Final = 40

_NAMES: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "class": lambda row: names.class_of(row["category"], row["part"]),
    "algorithm": lambda row: " ".join(
        (names.class_of(row["category"], row["algorithm"]), row["pass"] or "")
    ).strip(),
    "kernel": lambda row: names.brief(row["name"]),
}
_TITLES: Final[Mapping[str, str]] = {"gemm": "GEMM", "epilogue": "bias and activation"}


def picture(
    found: Comparison, by: CompareBy, keys: tuple[str, ...], conditions: Iterable[str]
) -> Panels:
    """Return the wall time of the runs beside that of the largest items of ``by``.

    ``keys`` are the columns that identify an item; a summary has the classes. ``conditions`` are
    the lines below the title.
    """
    runs = found.by("summary").frame
    stepped = runs["steps"].null_count() == 0
    panels = [_walls(runs, "Step time" if stepped else "Recording")]
    of = "class" if by == "summary" else by
    table = found.by(of)
    frame = table.frame.drop_nulls(table.time).filter(pl.col(table.time) > 0)
    if frame.height:
        panels.append(_items(frame, of, table.time, keys, stepped))
    title = f"{numbers.counted(runs.height, 'run')} side by side"
    return Panels(title, tuple(conditions), panels, columns=1)


def _walls(runs: pl.DataFrame, title: str) -> Panel:
    axis, unit = time_axis("wall time", runs["wall_ns"])
    labels = runs["run"].to_list()
    values = scaled(runs["wall_ns"].to_list(), unit)
    bars = [
        Bars(label, [value if at == own else None for at, value in enumerate(values)])
        for own, label in enumerate(labels)
    ]
    return Panel(title, axis, rows=labels, bars=bars)


def _items(frame: pl.DataFrame, by: str, time: str, keys: tuple[str, ...], stepped: bool) -> Panel:
    """Return the time of the items with most time in all runs."""
    items = frame.group_by("item").agg(pl.col(time).sum(), pl.col(keys).first())
    top = items.sort(time, "item", descending=[True, False]).head(MOST_ITEMS)
    called = [_name(by, {"part": None, **row}, keys) for row in top.to_dicts()]
    labels = cut_distinct(called, _LONGEST, cut_end)
    labelled = frame.join(
        pl.DataFrame({"item": top["item"], "label": labels}), on="item", maintain_order="left"
    )
    axis, unit = time_axis("time per step" if stepped else "time", labelled[time])
    rows = list(dict.fromkeys(labels))
    bars = summed(labelled, "run", "label", rows, time, unit)
    rest = items.height - top.height
    title = f"Time by {_TITLES.get(by, by)}"
    if rest:
        title += f" ({numbers.counted(rest, 'other')} left out)"
    return Panel(title, axis, rows=rows, bars=bars)


def _name(by: str, row: dict[str, Any], keys: tuple[str, ...]) -> str:
    known = _NAMES.get(by)
    if known is not None:
        return known(row)
    return " ".join(names.part(str(row[key])) for key in keys if row[key])
