"""The tables of the report."""

from __future__ import annotations

from typing import Any, Final

from rich.table import Table
from rich.text import Text

from traceana.analyze.overview import Overview
from traceana.report import human, words
from traceana.report.text import plain, shortened

LEAST_SHARE: Final = 0.005
MOST_CLASSES: Final = 18
MOST_LAYERS: Final = 6
MOST_COPIES: Final = 4
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"

Row = dict[str, Any]


def bar(share: float, width: int) -> str:
    """Return a bar of ``share`` of ``width`` characters, to an eighth of one."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def classes(overview: Overview, width: int) -> list[Any]:
    """Return time by category with bars, the parts of a category below it."""
    groups = overview.by_category
    steps = bool(overview.steps.frame.height)
    unit = human.time_unit([group["time_ns"] for group in groups])
    step_unit = human.time_unit([group["step_ns"] for group in groups])
    table = _table(width)
    table.add_column("class", no_wrap=True, min_width=26)
    table.add_column("calls", justify="right")
    if steps:
        table.add_column(f"a step ({step_unit[1]})", justify="right")
    table.add_column(f"time ({unit[1]})", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", ratio=1, no_wrap=True)
    bar_width = max(10, width - (66 if steps else 54))
    largest = max((group["share"] or 0.0 for group in groups), default=1.0) or 1.0

    def add(label: Text, row: Row, style: str) -> None:
        cells: list[Text | str] = [label, human.count(row["calls"])]
        if steps:
            cells.append(human.in_unit(row["step_ns"], step_unit))
        share = row["share"] or 0.0
        cells += [human.in_unit(row["time_ns"], unit), human.share(share)]
        table.add_row(*cells, Text(bar(share / largest, bar_width), style=style))

    for group in groups:
        parts = group["parts"]
        label = Text(words.category(group["category"]))
        if len(parts) == 1 and parts[0]["part"] is not None:
            label.append(f": {words.part(parts[0]['part'])}")
        add(label, group, "cyan")
        if len(parts) > 1:
            for part in parts:
                name = "other" if part["part"] is None else words.part(part["part"])
                add(Text(f"  {name}", style="dim"), part, "blue")
    return [table]


def top_layers(overview: Overview, width: int) -> list[Any]:
    """Return the layers with the most time; one line that says why where there are none."""
    frame = overview.layers.frame
    if not (frame["role"] == "layer").any():
        return [Text(plain(note), style="dim") for note in overview.layers.notes]
    ranked = frame.sort("time_ns", descending=True)
    rows = ranked.head(MOST_LAYERS).to_dicts()
    unit = human.time_unit([row["time_ns"] for row in rows])
    table = _table(width)
    table.add_column("layer", no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("forward", "backward", "time"):
        table.add_column(f"{title} ({unit[1]})", justify="right")
    table.add_column("share", justify="right")
    table.add_column("convolved by", no_wrap=True, overflow="ellipsis", max_width=30)
    for row in rows:
        table.add_row(
            _layer_name(row),
            *(human.in_unit(row[key], unit) for key in ("forward_ns", "backward_ns", "time_ns")),
            human.share(row["share"] or 0.0),
            ", ".join(words.part(part) for part in (row["algorithm"] or "").split(", ") if part),
        )
    rest = ranked.slice(MOST_LAYERS)
    lines: list[Any] = [table]
    if rest.height:
        time = human.duration(int(rest["time_ns"].sum()))
        lines.append(Text(f"… {human.counted(rest.height, 'row')} more with {time}", style="dim"))
    return lines


def _layer_name(row: Row) -> Text:
    if row["role"] != "layer":
        return Text(f"({row['role']})", style="dim")
    name = Text(shortened(plain(row["layer"] or "?"), 40))
    return name.append(f" {plain(row['type'])}", style="dim") if row["type"] else name


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
            human.counted(row["count"], "time"),
            "" if row["bytes"] is None else human.size(row["bytes"]),
            "" if row["mean_bytes"] is None else f"{human.size(row['mean_bytes'])} each",
            human.duration(row["time_ns"]),
            "" if row["bytes_per_s"] is None else human.rate(row["bytes_per_s"]),
        )
    return [table]


def _table(width: int | None) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", width=width)
