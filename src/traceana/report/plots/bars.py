"""Draws a panel of horizontal bars in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from traceana.report.plots.axes import rounded, scale
from traceana.report.plots.picture import Bars, Panel
from traceana.report.plots.style import GREY, of_series
from traceana.report.plots.text import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUP: Final = 0.82
"""Part of a group's room that its bars fill."""
_MOST_NUMBERS: Final = 120


def draw_bars(axes: Axes, panel: Panel, numbers: Mapping[str, int]) -> None:
    """Draw the bars of ``panel``, the first group on top, a number at the end of each."""
    thick = _GROUP / len(panel.bars)
    for place, bars in enumerate(panel.bars):
        offset = (place - (len(panel.bars) - 1) / 2) * thick
        numbered = len(panel.rows) * len(panel.bars) <= _MOST_NUMBERS
        _draw(axes, bars, offset, thick, of_series(numbers[bars.label])["color"], numbered)
    axes.set_yticks(range(len(panel.rows)), [drawn(row) for row in panel.rows])
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    if panel.mark is not None:
        axes.axvline(panel.mark, color=GREY, linewidth=0.9, linestyle="--")
    axes.margins(x=0.15)
    scale(axes, "x", panel.x, [v for bars in panel.bars for v in bars.values if v is not None])


def _draw(axes: Axes, bars: Bars, offset: float, thick: float, colour: str, numbered: bool) -> None:
    there = [(row, value) for row, value in enumerate(bars.values) if value is not None]
    made = axes.barh(
        [row + offset for row, _ in there],
        [value for _, value in there],
        height=thick * 0.92,
        label=drawn(bars.label),
        color="white" if bars.printed else colour,
        edgecolor=colour,
        hatch="//////" if bars.printed else None,
        linewidth=0.8 if bars.printed else 0,
    )
    if numbered:
        texts = [rounded(value) for _, value in there]
        axes.bar_label(made, texts, padding=2, fontsize=7, color=GREY)
    for row, note in enumerate(bars.notes):
        if note is not None:
            axes.annotate(
                drawn(note),
                (0, row + offset),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=colour,
            )
