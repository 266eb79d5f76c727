"""Draws a panel of lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from traceana.report.plots.axes import scale
from traceana.report.plots.picture import Line, Panel
from traceana.report.plots.style import GREY, of_series
from traceana.report.plots.text import LONGEST_NAME, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of the panel's height.
_TOP: Final = 0.97
_BELOW: Final = 0.075
_LONGEST_REASON: Final = 24


def draw_lines(axes: Axes, panel: Panel, numbers: Mapping[str, int]) -> None:
    """Draw the lines of ``panel``; ``numbers`` are those of the series, by label.

    Runs without a figure are crosses at the upper edge, a line of them a series, at their place on
    the x axis.
    """
    failed = 0
    for line in panel.lines:
        if line.dash is not None:
            thin: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "linestyle": line.dash}
            axes.plot(line.x, line.y, label=drawn(line.label, LONGEST_NAME), zorder=1.5, **thin)
            continue
        style = of_series(numbers[line.label])
        _draw(axes, line, style)
        if line.failures:
            _crosses(axes, line, _TOP - _BELOW * failed, style["color"])
            failed += 1
    # Room above the points for the crosses.
    axes.margins(x=0.05, y=0.05 + (0.1 + _BELOW * failed if failed else 0))
    xs = [x for line in panel.lines for x in (*line.x, *(f.x for f in line.failures))]
    scale(axes, "x", panel.x, xs)
    if panel.y is not None:
        scale(axes, "y", panel.y, [y for line in panel.lines for y in line.y])
        if panel.y.log is None:
            axes.set_ylim(bottom=0)


def _draw(axes: Axes, line: Line, style: Mapping[str, Any]) -> None:
    label = drawn(line.label, LONGEST_NAME)
    points: dict[str, Any] = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.6}
    axes.plot(line.x, line.y, label=label, linewidth=1.6, **points, **style)
    if line.low is not None and line.high is not None:
        axes.fill_between(
            line.x, line.low, line.high, color=style["color"], alpha=0.15, linewidth=0
        )


def _crosses(axes: Axes, line: Line, height: float, colour: str) -> None:
    """Draw the failures of ``line``, each reason where it is met first."""
    at = axes.get_xaxis_transform()
    places = [failure.x for failure in line.failures]
    axes.scatter(
        places, [height] * len(places), marker="x", s=34, linewidths=1.8, color=colour, transform=at
    )
    # What stands at a height of the panel does not widen its axes by itself.
    axes.update_datalim([(place, 1.0) for place in places], updatey=False)
    axes.autoscale_view()
    told: set[str] = set()
    for failure in sorted(line.failures, key=lambda failure: failure.x):
        if failure.reason in told:
            continue
        told.add(failure.reason)
        axes.annotate(
            drawn(failure.reason, _LONGEST_REASON),
            (failure.x, height),
            xycoords=at,
            xytext=(-6, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=7.5,
            color=colour,
        )
