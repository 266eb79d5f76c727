"""The tables of the report."""

from __future__ import annotations

from typing import Any, Final

from rich.table import Table
from rich.text import Text

from traceana.analyze.condensed import Line
from traceana.analyze.overview import Overview
from traceana.report import human, words
from traceana.report.columns import Kind, Shown, show
from traceana.report.grid import grid
from traceana.report.text import plain

BAR: Final = 20
MOST_COPIES: Final = 4
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"

Row = dict[str, Any]


def bar(share: float, width: int) -> str:
    """Return a bar of ``share`` of ``width`` characters, to an eighth of one."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def classes(overview: Overview) -> list[Any]:
    """Return time by category with bars, the parts of a category below it."""
    lines = overview.by_class
    steps = any(line.step_ns != line.time_ns for line in lines if line.step_ns is not None)
    unit = human.time_unit(line.time_ns for line in lines)
    step_unit = human.time_unit(line.step_ns for line in lines)
    largest = max(line.share for line in lines) or 1.0
    table = _table(None)
    table.add_column("class", no_wrap=True, overflow="ellipsis", max_width=36)
    table.add_column("calls", justify="right")
    if steps:
        table.add_column(f"a step ({step_unit[1]})", justify="right")
    table.add_column(f"time ({unit[1]})", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", no_wrap=True, min_width=BAR)
    for line in lines:
        cells: list[Text | str] = [_class_name(line), human.count(line.calls)]
        if steps:
            cells.append("" if line.step_ns is None else human.in_unit(line.step_ns, step_unit))
        cells += [human.in_unit(line.time_ns, unit), human.share(line.share)]
        style = "blue" if line.depth else "cyan"
        table.add_row(*cells, Text(bar(line.share / largest, BAR), style=style))
    unclassified = f"of no known class: {human.share(overview.unclassified)}"
    return [table, Text(unclassified, style="dim")]


def _class_name(line: Line) -> Text:
    if line.depth:
        folded = f"{line.folded} others"
        name = folded if line.folded else words.part(line.part or "other")
        return Text(f"  {name}", style="dim")
    if line.category is None:
        return Text(f"{line.folded} other classes")
    untold = line.part is None or line.part == "unknown"
    part = "" if untold else f": {words.part(line.part or '')}"
    return Text(f"{words.category(line.category)}{part}")


def top_layers(overview: Overview, width: int) -> list[Any]:
    """Return the layers with the most time; one line that says why where there are none."""
    top = overview.top_layers
    if not (overview.layers.frame["role"] == "layer").any():
        return [Text(plain(note), style="dim") for note in top.notes]
    rows = top.frame.to_dicts()
    shown = [
        Shown("layer", Kind.PATH, [_layer_name(row) for row in rows]),
        *show(top.frame, {}, ("forward_ns", "backward_ns", "time_ns", "share")),
        Shown("convolved by", Kind.LONG, [_algorithms(row) for row in rows]),
    ]
    lines: list[Any] = list(grid(shown if any(shown[-1].cells) else shown[:-1], width))
    if top.hidden:
        rest = human.duration(top.hidden_totals["time_ns"])
        lines.append(Text(f"… {human.counted(top.hidden, 'row')} more with {rest}", style="dim"))
    return lines


def _layer_name(row: Row) -> str:
    return plain(row["layer"] or f"({row['role']})")


def _algorithms(row: Row) -> str:
    told = [part for part in (row["algorithm"] or "").split(", ") if part not in ("", "unknown")]
    return ", ".join(words.part(part) for part in told)


def copies(overview: Overview) -> list[Any]:
    """Return one line a direction and host memory."""
    rows = overview.transfers.frame.head(MOST_COPIES).to_dicts()
    if not rows:
        return []
    table = _table(None)
    for _ in range(2):
        table.add_column("")
    for _ in range(5):
        table.add_column("", justify="right")
    table.show_header = False
    for row in rows:
        table.add_row(
            words.part(row["direction"]),
            row["host_memory"] or "",
            human.counted(row["count"], "copy", "copies"),
            "" if row["bytes"] is None else human.size(row["bytes"]),
            "" if row["mean_bytes"] is None else f"{human.size(row['mean_bytes'])} each",
            human.duration(row["time_ns"]),
            "" if row["bytes_per_s"] is None else human.rate(row["bytes_per_s"]),
        )
    return [table]


def _table(width: int | None) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", width=width)
