"""A figure of matplotlib and its PNG or SVG file: panels of lines or bars, heading, legend."""

from __future__ import annotations

import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from traceana.errors import MissingDependencyError, how_to_install
from traceana.report.panels import Axis, Bars, Line, Panel, Panels
from traceana.report.text import cut_start, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design" (2008), without yellow, which is invisible on white.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Final = ("-", "--", ":")
GREY: Final = "#6B6B6B"

# Fractions of the panel's height.
_TOP: Final = 0.97
_BELOW: Final = 0.075
_LONGEST_REASON: Final = 24

_GROUP: Final = 0.82
"""Part of a group's height that its bars fill."""
_MOST_NUMBERS: Final = 120
_MOST_TICKS: Final = 12
_FEW_DECADES: Final = 2.5
_NOT_XML: Final = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
LONGEST: Final = 44
LONGEST_NAME: Final = 64
"""Maximum length of a label in the legend."""


def draw_lines(axes: Axes, panel: Panel, numbers: Mapping[str, int]) -> None:
    """Draw the lines of ``panel``; ``numbers`` are the numbers of the series by label.

    Failed runs are crosses at the upper edge, one line per series, at their position on the x axis.
    """
    failed = 0
    for line in panel.lines:
        if line.dash is not None:
            thin: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "linestyle": line.dash}
            axes.plot(line.x, line.y, label=drawn(line.label, LONGEST_NAME), zorder=1.5, **thin)
            continue
        style = of_series(numbers[line.label])
        _draw_line(axes, line, style)
        if line.failures:
            _crosses(axes, line, _TOP - _BELOW * failed, style["color"])
            failed += 1
    # The crosses are above the points.
    axes.margins(x=0.05, y=0.05 + (0.1 + _BELOW * failed if failed else 0))
    xs = [x for line in panel.lines for x in (*line.x, *(f.x for f in line.failures))]
    scale(axes, "x", panel.x, xs)
    if panel.y is not None:
        scale(axes, "y", panel.y, [y for line in panel.lines for y in line.y])
        if panel.y.log is None:
            axes.set_ylim(bottom=0)


def _draw_line(axes: Axes, line: Line, style: Mapping[str, Any]) -> None:
    label = drawn(line.label, LONGEST_NAME)
    points: dict[str, Any] = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.6}
    axes.plot(line.x, line.y, label=label, linewidth=1.6, **points, **style)
    if line.low is not None and line.high is not None:
        axes.fill_between(
            line.x, line.low, line.high, color=style["color"], alpha=0.15, linewidth=0
        )


def _crosses(axes: Axes, line: Line, height: float, colour: str) -> None:
    """Draw the failures of ``line``, with each reason at its first failure."""
    at = axes.get_xaxis_transform()
    positions = [failure.x for failure in line.failures]
    axes.scatter(
        positions,
        [height] * len(positions),
        marker="x",
        s=34,
        linewidths=1.8,
        color=colour,
        transform=at,
    )
    # Points in axes coordinates do not change the limits of the axes.
    axes.update_datalim([(x, 1.0) for x in positions], updatey=False)
    axes.autoscale_view()
    shown: set[str] = set()
    for failure in sorted(line.failures, key=lambda failure: failure.x):
        if failure.reason in shown:
            continue
        shown.add(failure.reason)
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


def draw_bars(axes: Axes, panel: Panel, numbers: Mapping[str, int]) -> None:
    """Draw the bars of ``panel``, with the first group at the top and values at their ends.

    Within a group, a series without a value takes no space.
    """
    series = sorted(panel.bars, key=lambda bars: numbers[bars.label])
    present = [
        [index for index, bars in enumerate(series) if _has(bars, row)]
        for row in range(len(panel.rows))
    ]
    thick = _GROUP / max(1, *map(len, present))
    numbered = sum(map(len, present)) <= _MOST_NUMBERS
    for index, bars in enumerate(series):
        heights = {
            row: row + (own.index(index) - (len(own) - 1) / 2) * thick
            for row, own in enumerate(present)
            if index in own
        }
        colour = of_series(numbers[bars.label])["color"]
        _draw_bars(axes, bars, heights, thick, colour, numbered)
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


def _draw_bars(
    axes: Axes,
    bars: Bars,
    heights: Mapping[int, float],
    thick: float,
    colour: str,
    numbered: bool,
) -> None:
    present = [(heights[row], value) for row, value in enumerate(bars.values) if value is not None]
    made = axes.barh(
        [height for height, _ in present],
        [value for _, value in present],
        height=thick * 0.92,
        label=drawn(bars.label, LONGEST_NAME),
        color="white" if bars.printed else colour,
        edgecolor=colour,
        hatch="//////" if bars.printed else None,
        linewidth=0.8 if bars.printed else 0,
    )
    if numbered:
        texts = [rounded(value) for _, value in present]
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


def scale(axes: Axes, which: Literal["x", "y"], wanted: Axis, values: Sequence[float]) -> None:
    """Set the label and ticks of an axis, and the scale of a logarithmic one.

    In base 2, which batches and devices have, the ticks are the values, or powers of two if the
    values are not integers.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text(drawn(wanted.label, 80))
    positive = [value for value in values if value > 0]
    if wanted.log is None or not positive:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    else:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=wanted.log)
        axis.set_minor_locator(NullLocator())
        if wanted.log == 2:
            axis.set_major_locator(FixedLocator(_in_base_2(positive)))
        else:
            decades = math.log10(max(positive) / min(positive))
            steps = (1.0, 2.0, 5.0) if decades < _FEW_DECADES else (1.0,)
            axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def number(value: float) -> str:
    """Return a number without trailing zeros: ``0.05``, ``2``, ``1,500``."""
    if value == 0 or abs(value) >= 1:
        return f"{value:,.10g}" if value == round(value) else f"{value:,.6g}"
    return f"{value:.6f}".rstrip("0") if abs(value) >= 1e-6 else f"{value:.0e}"


def rounded(value: float) -> str:
    """Return ``value`` with three significant digits."""
    return number(float(f"{value:.3g}"))


def _in_base_2(positive: Sequence[float]) -> list[float]:
    values = sorted(set(positive))
    if any(value != round(value) for value in values):
        least, most = math.floor(math.log2(values[0])), math.ceil(math.log2(values[-1]))
        values = [2.0**power for power in range(least, most + 1)]
    return values[:: math.ceil(len(values) / _MOST_TICKS)]


def drawn(text: str, width: int = LONGEST) -> str:
    """Return ``text`` as one line of at most ``width`` cells for PNG and SVG.

    Control characters and those that XML forbids are escaped. Matplotlib hides labels that begin
    with an underscore, so they get a leading space.
    """
    shown = _NOT_XML.sub(lambda match: f"\\u{ord(match.group()):04x}", plain(text))
    shown = cut_start(shown, width)
    return f" {shown}" if shown.startswith("_") else shown


def of_series(number: int) -> dict[str, Any]:
    """Return colour, marker and dashes of the series ``number``; 21 series are distinct."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


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
    """Raise :class:`~traceana.errors.MissingDependencyError` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"plots need matplotlib: {how_to_install('plots')}") from error


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
