"""Draws a panel of horizontal bars in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from traceana.report.plots.axes import rounded, scale
from traceana.report.plots.picture import Bars, Panel
from traceana.report.plots.style import GREY, of_series
from traceana.report.plots.text import LONGEST_NAME, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUP: Final = 0.82
"""Part of a group's room that its bars fill."""
_MOST_NUMBERS: Final = 120


def draw_bars(axes: Axes, panel: Panel, numbers: Mapping[str, int]) -> None:
    """Draw the bars of ``panel``, the first group on top, a number at the end of each.

    In a group the bars stand together that are there: a series without a value takes no room.
    """
    series = sorted(panel.bars, key=lambda bars: numbers[bars.label])
    there = [
        [place for place, bars in enumerate(series) if _has(bars, row)]
        for row in range(len(panel.rows))
    ]
    thick = _GROUP / max(1, *map(len, there))
    numbered = sum(map(len, there)) <= _MOST_NUMBERS
    for place, bars in enumerate(series):
        heights = {
            row: row + (own.index(place) - (len(own) - 1) / 2) * thick
            for row, own in enumerate(there)
            if place in own
        }
        colour = of_series(numbers[bars.label])["color"]
        _draw(axes, bars, heights, thick, colour, numbered)
    axes.set_yticks(range(len(panel.rows)), [drawn(row) for row in panel.rows])
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    if panel.mark is not None:
        axes.axvline(panel.mark, color=GREY, linewidth=0.9, linestyle="--")
    axes.margins(x=0.15)
    scale(axes, "x", panel.x, [v for bars in panel.bars for v in bars.values if v is not None])


def _has(bars: Bars, row: int) -> bool:
    return bars.values[row] is not None or (bool(bars.notes) and bars.notes[row] is not None)


def _draw(
    axes: Axes,
    bars: Bars,
    heights: Mapping[int, float],
    thick: float,
    colour: str,
    numbered: bool,
) -> None:
    there = [(heights[row], value) for row, value in enumerate(bars.values) if value is not None]
    made = axes.barh(
        [height for height, _ in there],
        [value for _, value in there],
        height=thick * 0.92,
        label=drawn(bars.label, LONGEST_NAME),
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
                (0, heights[row]),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=colour,
            )
