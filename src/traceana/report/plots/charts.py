"""A chart of a page drawn with matplotlib, from the data that the page's scripts get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, Final, Literal

from traceana.report.html.pictures import PALETTE
from traceana.report.plots.draw import GREY, LONGEST_NAME, MARKERS, drawn, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = Mapping[str, Any]

# Inches: a pixel of a page, what surrounds the axes, and a line of the legend.
_PIXEL: Final = 0.0095
_AROUND: Final = 0.75
LEGEND_LINE: Final = 0.2
LEGEND_COLUMNS: Final = 4
_BELOW_AXES: Final = 0.45
_AXIS_TITLE: Final = 0.2

# Square points.
_POINT: Final = 28
_SMALLEST: Final = 14
_LARGEST: Final = 300

_MOST_TICKS: Final = 40
_UPRIGHT: Final = 8
"""More texts on a horizontal axis than these are turned."""
_LONGEST_TICK: Final = 40


def chart_height(data: Data) -> float:
    """Return the inches that a chart takes with its axes and legend."""
    lines = ceil(len(_legend(data)) / LEGEND_COLUMNS)
    return float(data["height"]) * _PIXEL + _AROUND + lines * LEGEND_LINE


def draw_chart(axes: Axes, data: Data) -> None:
    """Draw the marks, axes and legend of a chart."""
    places = {axis: _places(data, axis) for axis in ("x", "y")}
    axes.margins(0.05, 0.08)
    axes.use_sticky_edges = False
    colours = _colours(data)
    for marks in data["marks"]:
        _DRAW[marks["shape"]](axes, _placed(marks, places), colours)
    for axis in ("x", "y"):
        _axis(axes, axis, data[axis], places[axis])
    legend = _legend(data)
    if legend:
        _write_legend(axes, legend, colours, bool(data["x"]["title"]))


def _places(data: Data, axis: str) -> dict[str, int]:
    """Return the position of each text on an axis; empty if it has numbers."""
    values = [value for marks in data["marks"] for value in marks[axis]]
    return {text: at for at, text in enumerate(dict.fromkeys(values)) if isinstance(text, str)}


def _placed(marks: Data, places: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Return ``marks`` with texts on axes as positions."""
    found = dict(marks)
    for axis, known in places.items():
        if known:
            found[axis] = [known[value] for value in marks[axis]]
        found[f"{axis} is text"] = bool(known)
    return found


def _colours(data: Data) -> dict[str, tuple[str, str]]:
    """Return the colour and the marker of each name in the legend."""
    found: dict[str, tuple[str, str]] = {}
    for marks in data["marks"]:
        if "colour" not in marks or marks["shape"] == "rule":
            continue
        fixed = marks.get("colours", {})
        for name in [*fixed, *marks["colour"]]:
            at = len(found)
            colour = fixed.get(name, PALETTE[at % len(PALETTE)])
            found.setdefault(name, (colour, MARKERS[at % len(MARKERS)]))
    return found


def _legend(data: Data) -> dict[str, str]:
    """Return the shape of each name that the legend lists."""
    found: dict[str, str] = {}
    for marks in data["marks"]:
        names = dict.fromkeys([*marks.get("colours", ()), *marks.get("colour", ())])
        on_axis = any(marks.get("colour") == marks[axis] for axis in ("x", "y"))
        if marks["shape"] == "rule" or on_axis:
            continue
        if marks["shape"] in ("point", "cell") or len(names) > 1:
            found.update(dict.fromkeys(names, marks["shape"]))
    return found


def _groups(marks: Data) -> Iterator[tuple[str, list[int]]]:
    """Yield each colour's name and its rows that have both values."""
    names = marks.get("colour") or [""] * len(marks["x"])
    rows: dict[str, list[int]] = {name: [] for name in names}
    for at, name in enumerate(names):
        if marks["x"][at] is not None and marks["y"][at] is not None:
            rows[name].append(at)
    yield from rows.items()


def _of(values: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    return [values[at] for at in rows]


def _points(axes: Axes, marks: Data, colours: Mapping[str, tuple[str, str]]) -> None:
    sizes = marks.get("size")
    largest = max((size or 0 for size in sizes), default=0) if sizes else 0
    for name, rows in _groups(marks):
        colour, marker = colours.get(name, (PALETTE[0], MARKERS[0]))
        area: Any = _POINT
        if sizes and largest:
            shares = ((sizes[at] or 0) / largest for at in rows)
            area = [_SMALLEST + (_LARGEST - _SMALLEST) * share for share in shares]
        axes.scatter(
            _of(marks["x"], rows),
            _of(marks["y"], rows),
            s=area,
            color=colour,
            marker=marker,
            alpha=0.8,
            linewidths=0.5,
            edgecolors="white",
            zorder=3,
        )


def _lines(axes: Axes, marks: Data, colours: Mapping[str, tuple[str, str]]) -> None:
    steps: Any = "steps-post" if marks["shape"] == "step" else "default"
    for name, rows in _groups(marks):
        colour, _ = colours.get(name, (PALETTE[0], ""))
        x, y = _of(marks["x"], rows), _of(marks["y"], rows)
        axes.plot(x, y, color=colour, linewidth=1.4, drawstyle=steps)


def _rules(axes: Axes, marks: Data, _: Mapping[str, tuple[str, str]]) -> None:
    for _name, rows in _groups(marks):
        x, y = _of(marks["x"], rows), _of(marks["y"], rows)
        axes.plot(x, y, color=GREY, linewidth=1.0, linestyle="--", zorder=1.5)


def _bars(axes: Axes, marks: Data, colours: Mapping[str, tuple[str, str]]) -> None:
    across = marks["y is text"]
    ended: dict[Any, float] = {}
    for name, rows in _groups(marks):
        colour, _ = colours.get(name, (PALETTE[0], ""))
        at, values = (
            _of(marks["y" if across else "x"], rows),
            _of(marks["x" if across else "y"], rows),
        )
        if "y_end" in marks:
            ends = _of(marks["y_end"], rows)
            sizes = [end - start for start, end in zip(values, ends, strict=True)]
            axes.bar(at, sizes, bottom=values, color=colour, width=0.75)
        elif across:
            before = [0.0 if marks.get("grouped") else ended.get(place, 0.0) for place in at]
            axes.barh(at, values, left=before, color=colour, height=0.75)
            ended |= {
                place: end + size for place, end, size in zip(at, before, values, strict=True)
            }
        else:
            axes.bar(at, values, color=colour, width=0.75)


def _cells(axes: Axes, marks: Data, colours: Mapping[str, tuple[str, str]]) -> None:
    for name, rows in _groups(marks):
        left = [at - 0.5 for at in _of(marks["x"], rows)]
        axes.barh(_of(marks["y"], rows), 1, left=left, height=0.9, color=colours[name][0])


def _texts(axes: Axes, marks: Data, _: Mapping[str, tuple[str, str]]) -> None:
    for x, y, text in zip(marks["x"], marks["y"], marks["text"], strict=True):
        axes.annotate(
            drawn(text, LONGEST_NAME),
            (x, y),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=7.5,
            color=GREY,
        )


_DRAW: Final = {
    **{"point": _points, "line": _lines, "step": _lines},
    **{"bar": _bars, "cell": _cells, "rule": _rules, "text": _texts},
}


def _axis(axes: Axes, which: Literal["x", "y"], given: Data, places: Mapping[str, int]) -> None:
    """Set title, scale and ticks of an axis."""
    from matplotlib.ticker import (
        EngFormatter,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullLocator,
        PercentFormatter,
    )

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text(drawn(given["title"], 80))
    if places:
        _name_ticks(axes, which, places)
        return
    plain_numbers = FuncFormatter(lambda value, _: number(value))
    if given["log"]:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        low, high = axis.get_view_interval()
        few = low > 0 and high / low < 300
        axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=20))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(EngFormatter(sep="") if given["prefixes"] else plain_numbers)
        return
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1, 0) if given["percent"] else plain_numbers)
    if given["zero"]:
        low, _ = axis.get_data_interval()
        if isfinite(low) and low >= 0:
            (axes.set_xlim if which == "x" else axes.set_ylim)(0)


def _name_ticks(axes: Axes, which: Literal["x", "y"], places: Mapping[str, int]) -> None:
    every = ceil(len(places) / _MOST_TICKS)
    texts = [drawn(text, _LONGEST_TICK) for text in places]
    shown = list(range(0, len(texts), every))
    if which == "x":
        axes.set_xticks(shown, _of(texts, shown))
        if len(shown) > _UPRIGHT and max(map(len, texts)) > 4:
            axes.set_xticks(
                shown, _of(texts, shown), rotation=35, ha="right", rotation_mode="anchor"
            )
        axes.set_xlim(-0.6, len(texts) - 0.4)
    else:
        axes.set_yticks(shown, _of(texts, shown))
        axes.set_ylim(len(texts) - 0.5, -0.5)
    axes.grid(visible=False, axis=which)
    axes.tick_params(axis=which, length=0)


def _write_legend(
    axes: Axes, legend: Mapping[str, str], colours: Mapping[str, tuple[str, str]], titled: bool
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: dict[str, Any] = {}
    for name, shape in legend.items():
        colour, marker = colours[name]
        if shape in ("bar", "cell"):
            handles[name] = Patch(color=colour)
        elif shape == "point":
            handles[name] = Line2D([], [], color=colour, marker=marker, linestyle="", markersize=6)
        else:
            handles[name] = Line2D([], [], color=colour, linewidth=1.6)
    legend_below(axes, handles, LEGEND_COLUMNS, titled=titled)


def legend_below(axes: Axes, handles: Mapping[str, Any], columns: int, *, titled: bool) -> None:
    """Write the legend below the axes, whose horizontal axis is ``titled`` or not."""
    from matplotlib.transforms import ScaledTranslation

    below = _BELOW_AXES if titled else _BELOW_AXES - _AXIS_TITLE
    shift = ScaledTranslation(0, -below, axes.figure.dpi_scale_trans)
    axes.legend(
        list(handles.values()),
        [drawn(name, LONGEST_NAME) for name in handles],
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + shift,
        ncols=columns,
        frameon=False,
        borderaxespad=0,
        borderpad=0.1,
        fontsize=8,
        columnspacing=1.4,
        handlelength=1.4,
    )
