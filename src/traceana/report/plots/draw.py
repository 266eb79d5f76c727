"""From a picture to a file's content."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from traceana.errors import MissingExtraError
from traceana.report.plots.heading import heading, write
from traceana.report.plots.picture import Panel, Picture
from traceana.report.plots.style import PARAMETERS
from traceana.report.plots.text import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = ("png", "svg")

# Inches.
_WIDTHS: Final = {1: 7.4, 2: 9.6, 3: 12.2}
_LINES_HEIGHT: Final = 3.2
_BAR_HEIGHT: Final = 0.15
_BARS_AROUND: Final = 0.9


def picture_file(picture: Picture, format: str) -> bytes:  # noqa: A002
    """Return ``picture`` as a file of ``format`` (:data:`FORMATS`).

    Raises :class:`~traceana.errors.MissingExtraError` without matplotlib.
    """
    with drawing():
        made = figure(picture)
        buffer = BytesIO()
        # A date would make each run's file another.
        metadata: dict[str, Any] = {"Date": None} if format == "svg" else {}
        made.savefig(buffer, format=format, metadata=metadata)
    return buffer.getvalue()


def require_matplotlib() -> None:
    """Raise :class:`~traceana.errors.MissingExtraError` where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--plot needs matplotlib: pip install 'traceana[plots]'") from error


@contextmanager
def drawing() -> Iterator[None]:
    """Have matplotlib draw in our style, whatever the user's own settings say."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(PARAMETERS)  # type: ignore[arg-type]
        # A name in a script that the font lacks is drawn as boxes in PNG, and is text in SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def figure(picture: Picture) -> Figure:
    """Return ``picture`` as a figure of matplotlib; to be called while :func:`drawing`."""
    from matplotlib.figure import Figure

    from traceana.report.plots.bars import draw_bars
    from traceana.report.plots.lines import draw_lines

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
    made = Figure(figsize=(width, total))
    made.set_layout_engine(
        "constrained", rect=(0, 0, 1, 1 - head.height / total), h_pad=0.07, w_pad=0.09
    )
    share = picture.share or "none"
    grid = made.subplots(
        rows,
        columns,
        squeeze=False,
        sharex=picture.one_scale,
        sharey=share,
        height_ratios=heights,
    )
    places = list(grid.flat)
    for axes in places[len(picture.panels) :]:
        axes.remove()
    panels = places[: len(picture.panels)]
    for axes, panel in zip(panels, picture.panels, strict=True):
        axes.set_title(drawn(panel.title, 70))
        (draw_bars if panel.rows else draw_lines)(axes, panel, numbers)
    write(made, head, panels)
    return made


def _numbers(picture: Picture) -> dict[str, int]:
    """Return the numbers of the series: the same label has the same colour in every panel."""
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
    # A group takes the room of its bars, and never less than a line of text.
    return _BARS_AROUND + len(panel.rows) * max(0.22, _BAR_HEIGHT * (most + 0.6))
