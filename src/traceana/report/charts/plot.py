"""The pictures of a page as one PNG or SVG file, below each other."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, Final

from traceana.errors import (
    CannotWriteError,
    MissingDependencyError,
    NoSuchSelectionError,
    how_to_install,
)
from traceana.files import write_output
from traceana.report.charts.pictures import picture
from traceana.report.charts.spans import icicle_view, left_of_timeline, timeline_view
from traceana.report.charts.specification import (
    PAGE,
    SCHEMA,
    Colours,
    config,
    left_of,
    parameters,
    short,
    view,
)
from traceana.report.page import (
    Chart,
    Facts,
    Heading,
    Icicle,
    Page,
    Panels,
    Strip,
    Timeline,
    head_of,
    pictures_of,
)
from traceana.report.text import cut_end

WIDTH: Final = 900
"""Pixels."""
_MARGIN: Final = 14
_FONT: Final = "Liberation Sans, Arial, sans-serif"
_COLOURS: Final = Colours("#222222", "#5c5c5c", "#dedede", "#ffffff")
_LETTERS: Final = 88
"""Letters in a line of the title; a line of facts has a third more."""
_MOST_FACTS: Final = 6

_OWN: Final = dict.fromkeys(("color", "shape", "size", "fillOpacity", "yOffset"), "independent")


def write_plot(page: Page, path: Path, format: str, *, force: bool) -> None:  # noqa: A002
    """Write the pictures of ``page`` to ``path`` as ``format``, ``png`` or ``svg``.

    Raises :class:`~traceana.errors.NoSuchSelectionError` if it has none,
    :class:`~traceana.errors.CannotWriteError` if they cannot be drawn, and
    :class:`~traceana.errors.MissingDependencyError` without vl-convert.
    """
    if not pictures_of(page):
        raise NoSuchSelectionError(f"nothing to plot: {page.command} has no picture of this input")
    write_output(path, page_file(page, format), force=force)


def page_file(page: Page, format: str) -> bytes:  # noqa: A002
    """Return the pictures of ``page``, which has some, as a file of ``format``.

    Raises :class:`~traceana.errors.MissingDependencyError` without vl-convert, and
    :class:`~traceana.errors.CannotWriteError` if they cannot be drawn.
    """
    drawn = _svg(page_specification(page))
    if format == "svg":
        return drawn.encode()
    import vl_convert

    return vl_convert.svg_to_png(drawn, scale=2)


def chart_svg(chart: Chart) -> str:
    """Return ``chart`` as SVG in the colours of a page's style sheet, as wide as its element.

    Raises :class:`~traceana.errors.MissingDependencyError` without vl-convert, and
    :class:`~traceana.errors.CannotWriteError` if it cannot be drawn.
    """
    return _svg(
        {
            "$schema": SCHEMA,
            "config": {**config(PAGE), "background": None, "font": _FONT},
            "params": parameters(PAGE),
            **view(chart, WIDTH - left_of(chart), WIDTH),
        }
    )


def _svg(specification: dict[str, Any]) -> str:
    """Return the picture of ``specification``.

    Where Vega fails it prints its error, and returns an empty picture.
    """
    require_vl_convert()
    import vl_convert

    failure = "it is empty"
    try:
        drawn = vl_convert.vegalite_to_svg(specification, allowed_base_urls=[])
    except ValueError as error:
        drawn, failure = "", str(error).partition("\n")[0]
    # One group is the picture itself.
    if drawn.count('class="mark-') < 2:
        raise CannotWriteError(
            f"the picture cannot be drawn ({failure}): please report it with the format of the file"
        )
    return drawn


def require_vl_convert() -> None:
    """Raise :class:`~traceana.errors.MissingDependencyError` if vl-convert is not installed."""
    try:
        import vl_convert  # noqa: F401
    except ImportError as error:
        wanted = f"pictures need vl-convert: {how_to_install('html')}"
        raise MissingDependencyError(wanted) from error


def page_specification(page: Page) -> dict[str, Any]:
    """Return the pictures of ``page`` as one specification."""
    blocks = [
        block.first if isinstance(block, Timeline) else block
        for block in pictures_of(page)
        if not isinstance(block, Strip)
    ]
    panels = next((block for block in blocks if isinstance(block, Panels)), None)
    title = _title(page) if panels is None else panels.title
    left = max(map(_left_of, blocks))
    rows: list[dict[str, Any]] = []
    for illustration in blocks:
        if isinstance(illustration, Panels):
            rows += _panel_rows(illustration)
        else:
            rows.append(_titled(_view(illustration, WIDTH - left), illustration.title))
    # Panels of several runs have a line for each.
    conditions = _conditions(page, _MOST_FACTS if panels is None else None)
    lines = (textwrap.wrap(short(condition), _LETTERS * 4 // 3) for condition in conditions)
    return {
        "$schema": SCHEMA,
        "config": {**config(_COLOURS), "background": _COLOURS.paper, "font": _FONT},
        "params": parameters(_COLOURS),
        "padding": _MARGIN,
        "title": {
            "text": textwrap.wrap(short(title), _LETTERS),
            "subtitle": [line for wrapped in lines for line in wrapped],
            **{"anchor": "start", "frame": "bounds", "fontSize": 16, "offset": 16},
        },
        "spacing": 34,
        "vconcat": rows,
        "resolve": {"scale": _OWN},
    }


def _panel_rows(panels: Panels) -> list[dict[str, Any]]:
    """Return the charts of ``panels`` in rows of its columns."""
    charts, columns = panels.charts, panels.columns
    wide = WIDTH if columns < 3 else 4 * WIDTH // 3
    each = (wide - 30 * (columns - 1)) // columns
    left = max(map(left_of, charts))
    views = [
        _titled(
            view(chart, max(each - left, 160), each),
            chart.title if chart.title != panels.title else "",
        )
        for chart in charts
    ]
    return [
        {"hconcat": views[at : at + columns], "spacing": 30, "resolve": {"scale": _OWN}}
        for at in range(0, len(views), columns)
    ]


def _left_of(block: Any) -> int:
    """Return the pixels left of the axes of ``block``."""
    if isinstance(block, Chart):
        return left_of(block)
    return left_of_timeline(picture(block)) if isinstance(block, Timeline) else 0


def _view(block: Any, width: int) -> dict[str, Any]:
    if isinstance(block, Chart):
        return view(block, width, WIDTH)
    draw = icicle_view if isinstance(block, Icicle) else timeline_view
    return draw(picture(block), width)


def _titled(drawn: dict[str, Any], title: str) -> dict[str, Any]:
    if not title:
        return drawn
    text = cut_end(short(title), _LETTERS * drawn["width"] // 700)
    return {**drawn, "title": {"text": text, "frame": "group", "fontSize": 13, "offset": 8}}


def _title(page: Page) -> str:
    """Return the page's first heading, or the command and the file."""
    first = page.blocks[0]
    if isinstance(first, Heading):
        return first.text
    name = PurePath(page.data.source.get("file") or "").name
    return f"{name} · traceana {page.command}" if name else f"traceana {page.command}"


def _conditions(page: Page, most: int | None) -> Iterator[str]:
    """Yield the remark of the title, and ``most`` of the facts below it."""
    for block in head_of(page):
        if isinstance(block, Heading) and block.remark:
            yield block.remark
        if isinstance(block, Facts):
            yield from (": ".join(filter(None, row)) for row in block.rows[:most])
