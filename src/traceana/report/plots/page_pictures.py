"""The pictures of a page as one PNG or SVG file: charts, icicles, timelines, below each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import ceil
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from traceana.errors import NoSuchSelectionError
from traceana.files import write_output
from traceana.report import numbers
from traceana.report.html.pictures import picture
from traceana.report.page import Facts, Heading, Page, Timeline, pictures_of
from traceana.report.panels import Panels
from traceana.report.plots.charts import LEGEND_LINE, chart_height, draw_chart, legend_below
from traceana.report.plots.draw import (
    drawing,
    drawn,
    number,
    panels_figure,
    saved,
    text_heading,
    write,
)
from traceana.report.render import plot_format
from traceana.report.text import cut_end

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Data = Mapping[str, Any]

# Inches.
_ROW: Final = 0.19
_AROUND: Final = 0.75
_LEGEND_COLUMNS: Final = 3
_AXES_WIDTH: Final = 8.0
_LETTER: Final = 0.062

_NARROWEST: Final = 1 / 1000
"""The part of the width below which spans are drawn together, or not at all."""
_FULL: Final = 0.9
"""The part of a row's height that a span fills."""
_REST: Final = "#d5dbe1"
_MOST_ROWS: Final = 64


class _Span(NamedTuple):
    """A rectangle: its row from the top, start and length in nanoseconds, colour and label."""

    row: int
    start: int
    length: int
    colour: str
    label: str


def icicle_height(data: Data) -> float:
    """Return the inches that an icicle takes with its axis and legend."""
    rows = 1 + max(_depths(data["parent"]))
    return rows * _ROW * 1.2 + _AROUND + _legend_height(_legend_of(data))


def draw_icicle(axes: Axes, data: Data) -> None:
    """Draw the nodes of a tree, children below their parent, and the legend of the colours."""
    whole = data["whole_ns"]
    spans = list(_nodes(data, _depths(data["parent"]), whole))
    _draw(axes, spans, whole, 1 + max(span.row for span in spans), data["steps"])
    axes.set_yticks([])
    _legend(axes, _legend_of(data))


def _depths(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def _nodes(data: Data, depths: Sequence[int], whole: int) -> Iterator[_Span]:
    """Yield a span per node; narrow ones beside each other are one grey span."""
    used = [0] * len(depths)
    starts = [0] * len(depths)
    rest: dict[int, list[int]] = {}
    for at, (parent, time) in enumerate(zip(data["parent"], data["time_ns"], strict=True)):
        if parent >= 0:
            starts[at] = starts[parent] + used[parent]
            used[parent] += time
        if time >= whole * _NARROWEST:
            colour = data["colours"][data["category"][at]]
            yield _Span(depths[at], starts[at], time, colour, data["label"][at])
            continue
        start, end = starts[at], starts[at] + time
        one = rest.get(depths[at])
        if one is not None and start <= one[1] + whole * _NARROWEST:
            one[1] = max(one[1], end)
            continue
        if one is not None:
            yield _Span(depths[at], one[0], one[1] - one[0], _REST, "")
        rest[depths[at]] = [start, end]
    for row, (start, end) in rest.items():
        yield _Span(row, start, end - start, _REST, "")


def timeline_height(data: Data) -> float:
    """Return the inches that the first window of a timeline takes with its axis and legend."""
    window = data["windows"][0]
    rows = min(len(_rows(window)), _MOST_ROWS)
    return rows * _ROW + _AROUND + _legend_height(_legend_of(window))


def draw_timeline(axes: Axes, data: Data) -> None:
    """Draw the events of the first window on their tracks, and the legend of the colours."""
    window = data["windows"][0]
    rows = _rows(window)
    shown = {key: row for key, row in rows.items() if row < _MOST_ROWS}
    _draw(axes, list(_events(window, shown)), window["span_ns"], len(shown))
    first: dict[int, int] = {}
    for (track, _), row in shown.items():
        first.setdefault(track, row)
    labels = [
        drawn(" ".join(part for part in window["tracks"][track].values() if part), 40)
        for track in first
    ]
    axes.set_yticks(list(first.values()), labels)
    axes.tick_params(axis="y", length=0, labelsize=8)
    if len(rows) > len(shown):
        note = f"{len(rows) - len(shown)} more rows of events"
        axes.annotate(note, (1, 1), xycoords="axes fraction", ha="right", va="bottom", fontsize=8)
    _legend(axes, _legend_of(window))


def _rows(window: Data) -> dict[tuple[int, int], int]:
    """Return the row of each track and depth that has events."""
    keys = sorted(set(zip(window["track"], window["depth"], strict=True)))
    return {key: row for row, key in enumerate(keys)}


def _events(window: Data, rows: Mapping[tuple[int, int], int]) -> Iterator[_Span]:
    """Yield a span per event that is not hidden by another within the narrowest width."""
    narrow = window["span_ns"] * _NARROWEST
    ends = dict.fromkeys(rows.values(), -narrow)
    starts = accumulate(window["start"])
    for at, start in enumerate(starts):
        row = rows.get((window["track"][at], window["depth"][at]))
        if row is None:
            continue
        end = start + window["time"][at]
        if end <= ends[row] + narrow / 2:
            continue
        ends[row] = max(end, start + narrow)
        colour = window["colours"][window["category"][at]]
        yield _Span(row, start, window["time"][at], colour, window["names"][window["name"][at]])


def _legend_of(data: Data) -> dict[str, str]:
    """Return the colours by the classes that have them: classes of a colour have one entry."""
    named: dict[str, list[str]] = {}
    for name, colour in zip(data["categories"], data["colours"], strict=True):
        if name:
            named.setdefault(colour, []).append(name)
    return {", ".join(dict.fromkeys(of)): colour for colour, of in named.items()}


def _draw(axes: Axes, spans: Sequence[_Span], whole: int, rows: int, steps: int = 1) -> None:
    """Draw ``spans`` with labels where they fit, over an axis from 0 to ``whole``.

    The axis has the mean time of ``steps`` steps.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    unit = numbers.scale([whole / steps], numbers.TIME)
    scale = unit.factor * steps
    least = whole * _NARROWEST
    corners = []
    for span in spans:
        left, right = span.start, span.start + max(span.length, least)
        top, bottom = span.row - _FULL / 2, span.row + _FULL / 2
        corners.append([(left, top), (right, top), (right, bottom), (left, bottom)])
    shapes = PolyCollection(
        [[(x / scale, y) for x, y in one] for one in corners],
        facecolors=[span.colour for span in spans],
        edgecolors="white",
        linewidths=0.3,
    )
    # Thousands of rectangles are one image in an SVG.
    shapes.set_rasterized(True)
    axes.add_collection(shapes, autolim=False)
    for span in spans:
        letters = int(span.length / max(whole, 1) * _AXES_WIDTH / _LETTER) - 1
        if span.label and letters >= 3:
            middle = (span.start + span.length / 2) / scale
            axes.text(
                middle,
                span.row,
                cut_end(drawn(span.label, 200), letters),
                ha="center",
                va="center",
                fontsize=6.5,
                color=_readable(span.colour),
                clip_on=True,
            )
    axes.set_xlim(0, max(whole, 1) / scale)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xlabel(f"time{' per step' if steps > 1 else ''} ({unit.unit})")
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def _readable(colour: str) -> str:
    """Return black or white, whichever has more contrast with ``#rrggbb``."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def _legend_height(entries: Mapping[str, str]) -> float:
    return ceil(len(entries) / _LEGEND_COLUMNS) * LEGEND_LINE


def _legend(axes: Axes, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = {name: Patch(color=colour) for name, colour in colours.items()}
    legend_below(axes, handles, _LEGEND_COLUMNS, titled=True)


WIDTH: Final = 9.6
"""Inches."""
_LONGEST_TITLE: Final = 120
_MOST_FACTS: Final = 6


class _Kind(NamedTuple):
    """What draws a picture from its data, and the inches that it takes."""

    draw: Callable[[Axes, Any], None]
    height: Callable[[Any], float]


_KINDS: Final = {
    "chart": _Kind(draw_chart, chart_height),
    "icicle": _Kind(draw_icicle, icicle_height),
    "timeline": _Kind(draw_timeline, timeline_height),
}


def write_plot(page: Page, path: Path, *, force: bool) -> None:
    """Write the pictures of ``page`` to ``path``, whose suffix is the format.

    Raises :class:`~traceana.errors.NoSuchSelectionError` if it has none,
    :class:`~traceana.errors.CannotWriteError` on another suffix than ``.png`` and ``.svg``, and
    :class:`~traceana.errors.MissingDependencyError` without matplotlib.
    """
    form = plot_format(path)
    if not pictures_of(page):
        raise NoSuchSelectionError(f"nothing to plot: {page.command} has no picture of this input")
    write_output(path, page_file(page, form), force=force)


def page_file(page: Page, format: str) -> bytes:  # noqa: A002
    """Return the pictures of ``page``, which has some, as a file of ``format``.

    Raises :class:`~traceana.errors.MissingDependencyError` without matplotlib.
    """
    panels = next((one for one in pictures_of(page) if isinstance(one, Panels)), None)
    with drawing():
        made = page_figure(page) if panels is None else panels_figure(panels)
        return saved(made, format)


def page_figure(page: Page) -> Figure:
    """Return the pictures of ``page`` as a figure; to be called within :func:`drawing`."""
    from matplotlib.figure import Figure

    blocks = [block.first if isinstance(block, Timeline) else block for block in pictures_of(page)]
    each = [picture(block) for block in blocks]
    kinds = [_KINDS[data["kind"]] for data in each]
    heights = [kind.height(data) for kind, data in zip(kinds, each, strict=True)]
    head = text_heading(_title(page), _conditions(page), WIDTH)
    total = head.height + sum(heights)
    made = Figure(figsize=(WIDTH, total))
    made.set_layout_engine(
        "constrained", rect=(0, 0, 1, 1 - head.height / total), h_pad=0.07, w_pad=0.09
    )
    grid = made.subplots(len(each), 1, squeeze=False, height_ratios=heights)
    for axes, block, data, kind in zip(grid[:, 0], blocks, each, kinds, strict=True):
        axes.set_title(drawn(block.title, _LONGEST_TITLE))
        kind.draw(axes, data)
        for axis in (axes.xaxis, axes.yaxis):
            if not axis.get_label_text():
                # To find a place for no label, each drawing measures those of all ticks.
                axis.set_label_coords(0, 0)
    write(made, head, [])
    return made


def _title(page: Page) -> str:
    """Return the page's first heading, or the command and the file."""
    first = page.blocks[0]
    if isinstance(first, Heading):
        return first.text
    name = PurePath(page.data.source.get("file") or "").name
    return f"{name} · traceana {page.command}" if name else f"traceana {page.command}"


def _conditions(page: Page) -> Iterator[str]:
    """Yield the remark of the first heading, and the facts above the tables."""
    for block in page.blocks[:2]:
        if isinstance(block, Heading) and block.remark:
            yield block.remark
        if isinstance(block, Facts):
            yield from ("  ".join(row).strip() for row in block.rows[:_MOST_FACTS])
