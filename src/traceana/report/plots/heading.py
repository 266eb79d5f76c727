"""What stands above the panels: title, what was measured on what, and the key to the series."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from traceana.report.plots.picture import Picture
from traceana.report.plots.style import GREY
from traceana.report.plots.text import LONGEST_NAME, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_MARGIN: Final = 0.12
_TITLE_LINE: Final = 0.24
_ON_LINE: Final = 0.17
_KEY_LINE: Final = 0.2
_KEY_HANDLE: Final = 0.55
# Characters an inch, of text at 12 points (bold) and at 9.
_LARGE: Final = 9.5
_SMALL: Final = 13.0


@dataclass(frozen=True, slots=True)
class Heading:
    """The lines of text, and the key's columns and lines."""

    title: list[str]
    on: list[str]
    columns: int
    keys: int

    @property
    def height(self) -> float:
        """Return the inches that it takes."""
        lines = len(self.title) * _TITLE_LINE + len(self.on) * _ON_LINE + self.keys * _KEY_LINE
        return _MARGIN + lines + 0.08 + (0.06 if self.keys else 0)


def heading(picture: Picture, width: float) -> Heading:
    """Return the heading of a picture that is ``width`` inches wide."""
    labels = {
        drawn(one.label, LONGEST_NAME)
        for panel in picture.panels
        for series in (panel.lines, panel.bars)
        for one in series
    }
    room = width - 2 * _MARGIN
    on = [part for text in picture.on for part in _wrapped(text, round(room * _SMALL))]
    longest = max(map(len, labels), default=0)
    columns = max(1, min(len(labels), int(room / (longest / _SMALL + _KEY_HANDLE))))
    return Heading(
        _wrapped(picture.title, round(room * _LARGE)), on, columns, ceil(len(labels) / columns)
    )


def write(figure: Figure, head: Heading, panels: list[Axes]) -> None:
    """Write ``head`` on ``figure``, whose ``panels`` have the series with their labels."""
    width, total = figure.get_size_inches()
    left, at = _MARGIN / width, total - _MARGIN
    for line in head.title:
        figure.text(left, at / total, line, va="top", fontsize=12, fontweight="bold")
        at -= _TITLE_LINE
    for line in head.on:
        figure.text(left, at / total, line, va="top", color=GREY)
        at -= _ON_LINE
    if head.keys:
        found: dict[str, Any] = {}
        for axes in panels:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
        key = figure.legend(
            list(found.values()),
            list(found),
            loc="upper left",
            bbox_to_anchor=(left - 0.01 / width, (at - 0.02) / total),
            ncols=head.columns,
            frameon=False,
            borderaxespad=0,
            borderpad=0.1,
            handlelength=2.2,
            columnspacing=1.6,
        )
        key.set_in_layout(False)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(drawn(text, 1000), width)
