"""A figure of matplotlib and the PNG or SVG file of it: panels, heading, legend, style."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import msgspec

from traceana.errors import MissingExtraError
from traceana.report.panels import Panel, Panels
from traceana.report.plots.panels import GREY, LONGEST_NAME, draw_bars, draw_lines, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_WIDTHS: Final = {1: 7.4, 2: 9.6, 3: 12.2}
_LINES_HEIGHT: Final = 3.2
_BAR_HEIGHT: Final = 0.15
_BARS_AROUND: Final = 0.9

# Inches.
_MARGIN: Final = 0.12
_TITLE_LINE: Final = 0.24
_CONDITION_LINE: Final = 0.17
_LEGEND_LINE: Final = 0.2
_LEGEND_HANDLE: Final = 0.55

_PLACES: Final = 9
"""Decimals of positions, which are fractions of a figure."""

# Characters an inch, of text at 12 points (bold) and at 9.
_LARGE: Final = 9.5
_SMALL: Final = 13.0
INK: Final = "#222222"
PARAMETERS: Final[dict[str, Any]] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    # Above the axes; to find a place, each drawing measures all labels.
    "axes.titley": 1.0,
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    # A dollar sign in a name does not start a formula.
    "text.parse_math": False,
    "text.usetex": False,
    # Text is not converted to paths, and equal figures result in equal files.
    "svg.fonttype": "none",
    "svg.hashsalt": "traceana",
    "figure.dpi": 100,
    "savefig.dpi": 150,
}


def saved(figure: Figure, format: str) -> bytes:  # noqa: A002
    """Return ``figure`` as a file of ``format``; to be called within :func:`drawing`."""
    _place(figure)
    buffer = BytesIO()
    # A date would make the files of equal figures differ.
    metadata: dict[str, Any] = {"Date": None} if format == "svg" else {}
    figure.savefig(buffer, format=format, metadata=metadata)
    return buffer.getvalue()


def _place(figure: Figure) -> None:
    """Lay out ``figure`` once and round the positions of its axes.

    The solver of the layout adds in the order of its variables' addresses. The last bits of its
    results differ from figure to figure, and matplotlib hashes them into the ids of clip paths.
    """
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    # With any engine, that of `none` too, savefig draws the figure twice.
    figure.set_layout_engine(None)
    for axes in figure.axes:
        parts = (round(float(part), _PLACES) for part in axes.get_position().bounds)
        left, bottom, width, height = parts
        axes.set_position((left, bottom, width, height))


def require_matplotlib() -> None:
    """Raise :class:`~traceana.errors.MissingExtraError` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("plots need matplotlib: pip install 'traceana[plots]'") from error


@contextmanager
def drawing() -> Iterator[None]:
    """Set matplotlib to traceana's style, independent of the user's settings."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(PARAMETERS)  # type: ignore[arg-type]
        # Characters that the font lacks are drawn as boxes in PNG, and are text in SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def panels_figure(picture: Panels) -> Figure:
    """Return ``picture`` as a figure of matplotlib; to be called within :func:`drawing`."""
    from matplotlib.figure import Figure

    columns = min(picture.columns, len(picture.panels))
    numbers = _numbers(picture)
    width = _WIDTHS[columns]
    head = heading(picture, width)
    rows = ceil(len(picture.panels) / columns)
    heights = [
        max(map(_height, picture.panels[row * columns : (row + 1) * columns]))
        for row in range(rows)
    ]
    total = head.height + sum(heights)
    figure_ = Figure(figsize=(width, total))
    figure_.set_layout_engine(
        "constrained", rect=(0, 0, 1, 1 - head.height / total), h_pad=0.07, w_pad=0.09
    )
    share = picture.share or "none"
    grid = figure_.subplots(
        rows,
        columns,
        squeeze=False,
        sharex=picture.one_scale,
        sharey=share,
        height_ratios=heights,
    )
    cells = list(grid.flat)
    for axes in cells[len(picture.panels) :]:
        axes.remove()
    panels = cells[: len(picture.panels)]
    for axes, panel in zip(panels, picture.panels, strict=True):
        axes.set_title(drawn(panel.title, 70))
        (draw_bars if panel.rows else draw_lines)(axes, panel, numbers)
    write(figure_, head, panels)
    return figure_


def _numbers(picture: Panels) -> dict[str, int]:
    """Return the number of each label, so that a label has the same colour in every panel."""
    labels = [
        *(line.label for panel in picture.panels for line in panel.lines if line.dash is None),
        *(bars.label for panel in picture.panels for bars in panel.bars),
    ]
    return {label: number for number, label in enumerate(dict.fromkeys(labels))}


def _height(panel: Panel) -> float:
    if not panel.rows:
        return _LINES_HEIGHT
    most = max(
        sum(bars.values[row] is not None for bars in panel.bars) for row in range(len(panel.rows))
    )
    # A group has the height of its bars, and at least that of a line of text.
    return _BARS_AROUND + len(panel.rows) * max(0.22, _BAR_HEIGHT * (most + 0.6))


class Heading(msgspec.Struct, frozen=True):
    """The lines of text, and the legend's columns and lines."""

    title: list[str]
    conditions: list[str]
    columns: int
    legend_lines: int

    @property
    def height(self) -> float:
        """The height in inches."""
        lines = (
            len(self.title) * _TITLE_LINE
            + len(self.conditions) * _CONDITION_LINE
            + self.legend_lines * _LEGEND_LINE
        )
        return _MARGIN + lines + 0.08 + (0.06 if self.legend_lines else 0)


def heading(picture: Panels, width: float) -> Heading:
    """Return the heading of a picture that is ``width`` inches wide."""
    labels = {
        drawn(one.label, LONGEST_NAME)
        for panel in picture.panels
        for series in (panel.lines, panel.bars)
        for one in series
    }
    longest = max(map(len, labels), default=0)
    room = width - 2 * _MARGIN
    columns = max(1, min(len(labels), int(room / (longest / _SMALL + _LEGEND_HANDLE))))
    return text_heading(
        picture.title, picture.conditions, width, columns, ceil(len(labels) / columns)
    )


def text_heading(
    title: str, conditions: Iterable[str], width: float, columns: int = 1, legend_lines: int = 0
) -> Heading:
    """Return the heading of a title and conditions that is ``width`` inches wide."""
    room = width - 2 * _MARGIN
    return Heading(
        _wrapped(title, round(room * _LARGE)),
        [part for text in conditions for part in _wrapped(text, round(room * _SMALL))],
        columns,
        legend_lines,
    )


def write(figure: Figure, head: Heading, panels: list[Axes]) -> None:
    """Write the heading and the legend of ``panels`` on ``figure``."""
    width, total = figure.get_size_inches()
    left, at = _MARGIN / width, total - _MARGIN
    for line in head.title:
        figure.text(left, at / total, line, va="top", fontsize=12, fontweight="bold")
        at -= _TITLE_LINE
    for line in head.conditions:
        figure.text(left, at / total, line, va="top", color=GREY)
        at -= _CONDITION_LINE
    if head.legend_lines:
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
