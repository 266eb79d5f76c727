"""The pictures of a page as the content of one PNG or SVG file, below each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

import msgspec

from traceana.errors import NoSuchSelectionError
from traceana.files import write_output
from traceana.report.html.pictures import picture
from traceana.report.page import Facts, Heading, Page, Timeline, pictures_of
from traceana.report.panels import Panels
from traceana.report.plots.charts import chart_height, draw_chart
from traceana.report.plots.draw import drawing, panels_figure, saved, text_heading, write
from traceana.report.plots.panels import drawn
from traceana.report.plots.spans import (
    draw_icicle,
    draw_timeline,
    icicle_height,
    timeline_height,
)
from traceana.report.render import plot_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH: Final = 9.6
"""Inches."""
_LONGEST_TITLE: Final = 120
_MOST_FACTS: Final = 6


class _Kind(msgspec.Struct, frozen=True):
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
    :class:`~traceana.errors.MissingExtraError` without matplotlib.
    """
    form = plot_format(path)
    if not pictures_of(page):
        raise NoSuchSelectionError(f"nothing to plot: {page.command} has no picture of this input")
    write_output(path, page_file(page, form), force=force)


def page_file(page: Page, format: str) -> bytes:  # noqa: A002
    """Return the pictures of ``page``, which has some, as a file of ``format``.

    Raises :class:`~traceana.errors.MissingExtraError` without matplotlib.
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
