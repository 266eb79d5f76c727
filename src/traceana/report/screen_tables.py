"""The tables of the report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.text import Text

from traceana.analyze.breakdown import Line
from traceana.analyze.layer_rows import DIRECTIONS
from traceana.report import human, words
from traceana.report.bars import PATTERN, bar
from traceana.report.columns import Shown, show
from traceana.report.grid import compact
from traceana.report.kinds import Kind
from traceana.report.overview import Overview
from traceana.report.text import plain
from traceana.result import Arranged

Row = dict[str, Any]


def classes(overview: Overview, width: int) -> list[Text]:
    """Return time by category with bars, the parts of a category below it."""
    lines = overview.by_class
    largest = max(line.share for line in lines) or 1.0
    columns = [
        Shown(f"{overview.place} time by class", Kind.LONG, [_class_name(line) for line in lines]),
        Shown("calls", Kind.COUNT, [human.count(line.calls) for line in lines]),
        _times("per step", [line.step_ns for line in lines]),
        _times("time", [line.time_ns for line in lines]),
        Shown("share", Kind.SHARE, [human.share(line.share) for line in lines]),
        Shown("", Kind.TEXT, [bar(line.share / largest) for line in lines]),
    ]
    if columns[2].cells in ([""] * len(lines), columns[3].cells):  # no steps, or the only one
        del columns[2]
    table = compact(columns, width, ("", "calls"))
    for line in table:
        line.highlight_regex(PATTERN, "cyan")
    return table


def _times(title: str, durations: list[int | None]) -> Shown:
    unit = human.time_unit(durations)
    cells = ["" if value is None else human.in_unit(value, unit) for value in durations]
    return Shown(title, Kind.TIME, cells, unit=unit[1] if any(cells) else "")


def _class_name(line: Line) -> str:
    if line.depth:
        return f"  {line.folded} others" if line.folded else f"  {words.part(line.part or 'other')}"
    if line.category is None:
        return f"{line.folded} other classes"
    untold = line.part is None or line.part == "unknown"
    whole, part = words.category(line.category), words.part(line.part or "")
    return whole if untold or part == whole else f"{whole}: {part}"


def top_layers(overview: Overview, width: int) -> list[Text]:
    """Return the layers with the most time; one line that says why where there are none."""
    top = overview.top_layers
    if not (overview.layers.frame["role"] == "layer").any():
        return [Text(plain(note), style="dim") for note in top.notes]
    rows = top.frame.to_dicts()
    path, *times = show(top.frame, {}, ("layer", *DIRECTIONS, "time_ns", "share"))
    shown = [
        replace(path, title="Layers, most time first"),
        *times,
        Shown("convolved by", Kind.LONG, [_algorithms(row) for row in rows]),
    ]
    return [*compact(shown if any(shown[-1].cells) else shown[:-1], width), *_hidden(top)]


def _algorithms(row: Row) -> str:
    told = [part for part in (row["algorithm"] or "").split(", ") if part not in ("", "unknown")]
    return ", ".join(words.part(part) for part in told)


def copies(overview: Overview, width: int) -> list[Text]:
    """Return one line a direction and kind of host memory; none where nothing was copied."""
    top = overview.top_transfers
    if top.frame.is_empty():
        return []
    columns = (
        "host_memory",
        "count",
        "bytes",
        "mean_bytes",
        "time_ns",
        "exposed_ns",
        "bytes_per_s",
    )
    shown = [
        Shown("Transfers", Kind.TEXT, [words.part(kind) for kind in top.frame["direction"]]),
        *show(top.frame, {}, columns),
    ]
    return [*compact(shown, width, ("mean", "bytes")), *_hidden(top)]


def _hidden(table: Arranged) -> list[Text]:
    if not table.hidden:
        return []
    rest = human.duration(table.hidden_totals["time_ns"])
    return [Text(f"… {human.counted(table.hidden, 'row')} more with {rest}", style="dim")]
