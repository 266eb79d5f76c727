"""Pages as text for a terminal; long text is cut to the available width, numbers are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from io import StringIO
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from traceana.plain_text import plain
from traceana.report import numbers
from traceana.report.cells import BAR, Cells, cells_of
from traceana.report.page import (
    Facts,
    Findings,
    Heading,
    Hidden,
    Illustration,
    Notes,
    Page,
    Single,
    Table,
    in_order,
)
from traceana.report.text import (
    brief_line,
    cut_distinct,
    cut_end,
    cut_kernels,
    cut_line,
    cut_middle,
    cut_path,
    differing_width,
    terminal_width,
)
from traceana.table import Kind

GAP: Final = 2
BETWEEN: Final = " · "
"""Separator of the facts of one line."""
WIDEST_TEXT: Final = 28
NARROWEST_LONG: Final = 16
COMFORTABLE_LONG: Final = 34
COMFORTABLE: Final = {Kind.KERNEL: 30, Kind.PATH: 28, Kind.PARTS: 21}
"""Widths that long text needs before columns are dropped; 21 fit any single algorithm."""
_KEPT: Final = (Kind.CATEGORY, Kind.PART, Kind.PARTS, Kind.FLAG, Kind.RATIO)
"""Kinds of columns that are not dropped for the sake of longer names."""
WIDE_KERNEL: Final = 40
"""Names of kernels need up to this width to show how they differ."""
_NO_BREAK: Final = "\ufdd0"
"""A space at which rich does not break a line, as it does at U+00A0; no text has this character."""
_OF_UNIT: Final = re.compile(
    r"(?<=\d) (?=(?:%|(?:[mµn]?s|[kMGTPE]i?B|B|[kMGTP]?FLOP)(?:/s)?)(?!\w))"
)
"""The space between a number and its unit."""

_CUT: Final[dict[Kind, Callable[[str, int], str]]] = {
    Kind.TEXT: cut_end,
    Kind.LONG: cut_end,
    Kind.KERNEL: cut_middle,
    Kind.PATH: cut_path,
    Kind.LINE: cut_line,
    Kind.CODE: cut_end,
    Kind.PARTS: cut_end,
}
_LABEL: Final = 13
_INDENT: Final = 3
"""Columns before the sentence of a brief finding, which stands below its title."""


class Terminal(msgspec.Struct, frozen=True):
    """The width in characters, and whether colours are shown."""

    width: int = 100
    colour: bool = False


PLAIN: Final = Terminal()


def render(page: Page, terminal: Terminal = PLAIN) -> str:
    """Return ``page`` as text, no wider than ``terminal``."""
    parts: list[Any] = []
    before: Single | None = None
    for block in in_order(page.blocks):
        lines = _lines(block, terminal.width)
        if lines and before is not None and not _follows(block, before):
            parts.append(Text(""))
        parts += lines
        before = block if lines else before
    return _drawn(parts, terminal)


def _follows(block: Single, before: Single) -> bool:
    """Return whether ``block`` follows ``before`` without an empty line."""
    if isinstance(before, Heading):
        return True
    return isinstance(block, Notes) and isinstance(before, Table | Notes)


def _lines(block: Single, width: int) -> list[Any]:
    match block:
        case Heading(text, remark):
            return _heading(text, remark, width)
        case Facts(rows):
            return [_facts(rows, width)] if rows else []
        case Notes(rows, warning):
            return [_note(label, text, warning) for label, text in rows]
        case Findings():
            return _findings(block, width)
        case Table():
            return _table(block, width)
        case Illustration():
            return []  # their values are in a table of the page


def _heading(text: str, remark: str, width: int) -> list[Text]:
    """Return the title with its remark beside it, or below it where both are too long."""
    title, beside = Text(brief_line(text), style="bold"), brief_line(remark)
    if not beside:
        return [title]
    if cell_len(title.plain) + GAP + cell_len(beside) > width:
        return [title, Text(beside, style="dim")]
    return [title.append(" " * GAP + beside, style="not bold dim")]


def _facts(rows: Sequence[tuple[str, str]], width: int) -> Grid:
    grid = Grid.grid(padding=(0, GAP, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    room = width - max(cell_len(brief_line(label)) for label, _ in rows) - 2 * GAP
    for label, value in rows:
        grid.add_row(Text(brief_line(label)), _prose(_between_facts(brief_line(value), room)))
    return grid


def _prose(text: str, style: str = "") -> Text:
    """Return ``text`` for lines that do not end between a number and its unit."""
    return Text(_OF_UNIT.sub(_NO_BREAK, text), style=style)


def _between_facts(value: str, room: int) -> str:
    """Return ``value`` in lines that end between its facts, as far as these fit ``room``."""
    lines = [""]
    for fact in value.split(BETWEEN):
        longer = f"{lines[-1]}{BETWEEN}{fact}" if lines[-1] else fact
        if cell_len(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(fact)
    return "\n".join(line for line in lines if line)


def _note(label: str, text: str, warning: bool) -> Text:
    line = f"{brief_line(label)}: {brief_line(text)}" if label else brief_line(text)
    return _prose(line, "yellow" if warning else "dim")


def _findings(block: Findings, width: int) -> list[Any]:
    if block.brief:
        return _brief(block, width)
    parts: list[Any] = []
    for number, item in enumerate(block.items, start=block.first):
        head = Text(f"{number}. {brief_line(item.title)}", style="bold")
        head.append(f"  {brief_line(item.effect)}", style="not bold cyan")
        body = Grid.grid(padding=(0, GAP, 0, 0))
        body.add_column(width=_LABEL)
        body.add_column(overflow="fold")
        for label, text in (("finding", item.summary), *item.details):
            body.add_row(Text(f"   {brief_line(label)}", style="dim"), _prose(brief_line(text)))
        parts += [Text(""), head, body] if parts else [head, body]
        if item.evidence is not None:
            parts += [Text(""), *_table(item.evidence, width)]
    return parts


def _brief(block: Findings, width: int) -> list[Text]:
    """Return the lines of each finding: title and effect, its sentence, and its parts.

    Sentences have the clauses that fit one line; a first clause that is longer is wrapped.
    """
    titles = [plain(finding.title) for finding in block.items]
    # Below a title that takes more than half of the line, the effect has lines of its own.
    widest = max((cell_len(title) for title in titles if 2 * cell_len(title) <= width), default=0)
    lines: list[Text] = []
    for number, (title, item) in enumerate(zip(titles, block.items, strict=True), block.first):
        head = f"{number}. {title}"
        column = cell_len(f"{number}. ") + widest + GAP
        effects = _between_facts(plain(item.effect), width - column).split("\n")
        beside = cell_len(head) + GAP <= column
        if beside and all(cell_len(effect) <= width - column for effect in effects):
            line = Text(head, style="bold", no_wrap=True)
            line.append(" " * (column - cell_len(head)))
            lines.append(line.append(effects[0], style="not bold cyan"))
            below = [" " * column + effect for effect in effects[1:]]
        else:
            lines += [Text(line, style="bold", no_wrap=True) for line in _wrapped(head, width)]
            room = width - _INDENT
            facts = _between_facts(plain(item.effect), room).split("\n")
            below = [" " * _INDENT + line for fact in facts for line in _wrapped(fact, room)]
        lines += [Text(line, style="cyan", no_wrap=True) for line in below]
        lines += [
            Text(" " * _INDENT + line, no_wrap=True)
            for line in _clauses(brief_line(item.summary), width - _INDENT)
        ]
        widest_effect = max((cell_len(plain(part.effect)) for part in item.parts), default=0)
        for part in item.parts:
            effect = f"{plain(part.effect):<{widest_effect + GAP}}" if part.effect else ""
            start = " " * (_INDENT * part.depth) + effect
            first, *others = _clauses(brief_line(part.summary), width - cell_len(start))
            lines.append(Text(start, style="cyan", no_wrap=True).append(first, style="not cyan"))
            lines += [Text(" " * cell_len(start) + line, no_wrap=True) for line in others]
    return lines


def _clauses(text: str, width: int) -> list[str]:
    """Return the clauses of ``text`` that fit a line of ``width``, the first whole in any case."""
    first, *others = text.split("; ")
    for clause in others:
        if cell_len(longer := f"{first}; {clause}") > width:
            break
        first = longer
    return _wrapped(first, width)


def _wrapped(text: str, width: int) -> list[str]:
    """Return ``text`` in lines of ``width``; no line ends between a number and its unit.

    A word that is longer than a line is broken.
    """
    width = max(width, 1)
    lines = [""]
    for word in _OF_UNIT.sub(_NO_BREAK, text).split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(longer) <= width:
            lines[-1] = longer
            continue
        pieces = chop_cells(word, width) or [""]
        lines = [*lines, *pieces] if lines[-1] else [*lines[:-1], *pieces]
    return lines


def _table(table: Table, width: int) -> list[Any]:
    columns = cells_of(table)
    parts: list[Any] = []
    if columns and table.layout == "records":
        parts += _records(columns, width)
    elif columns and columns[0].cells:
        ruled = table.layout == "ruled"
        if not ruled:
            columns = [
                replace(column, title=f"{column.title} {column.unit}".rstrip(), unit="")
                for column in columns
            ]
        else:
            columns = [replace(column, title=_two_lines_of(column)) for column in columns]
            if table.totals and not columns[0].total:
                columns[0] = replace(columns[0], total="total")
        shown = _side_by_side(columns, width, table.dropped)
        for number, part in enumerate(shown):
            lines = _grid(part, width, ruled=ruled, footer=ruled and bool(table.totals))
            parts += [Text(""), *lines] if number else lines
        kept = {column.name for part in shown for column in part}
        missing = [
            " ".join(f"{column.group} {column.title}".split())
            for column in table.columns
            if column.name not in kept
        ]
        if missing:
            text = f"… {numbers.counted(len(missing), 'column')} hidden (--columns all)"
            listed = f"{text[:-1]}: {', '.join(missing)})"
            parts.append(Text(listed if cell_len(listed) <= width else text, style="dim"))
    if table.hidden is not None:
        parts.append(Text(_hidden(table.hidden), style="dim"))
    return parts


def _hidden(hidden: Hidden) -> str:
    rest = f"… {numbers.counted(hidden.rows, 'more row')}"
    if hidden.time_ns is not None:
        rest += f", {numbers.duration(hidden.time_ns)}"
    return f"{rest} ({f'traceana {hidden.command}' if hidden.command else '--limit 0: all'})"


def _records(columns: Sequence[Cells], width: int) -> list[Any]:
    parts: list[Any] = []
    for row in zip(*(column.cells for column in columns), strict=True):
        cells = [
            (column.title, f"{cell} {column.unit}".rstrip())
            for column, cell in zip(columns, row, strict=True)
            if cell
        ]
        parts += [Text(""), _facts(cells, width)] if parts else [_facts(cells, width)]
    return parts


def _side_by_side(columns: list[Cells], width: int, dropped: Sequence[str]) -> list[list[Cells]]:
    """Return the columns by table, without the first of ``dropped`` until they fit ``width``.

    Groups of columns are put in tables below each other, each with the columns of no group. As many
    columns are dropped as reduce the number of tables.
    """
    layouts = [_in_tables(columns, width)]
    kept = columns
    for name in dropped:
        if len(layouts[-1]) == 1 and _fits(layouts[-1][0], width):
            break
        kept = [column for column in kept if _dropped_as(column) != name]
        layouts.append(_in_tables(kept, width))
    fitting = [tables for tables in layouts if all(_fits(table, width) for table in tables)]
    chosen = min(fitting or layouts[-1:], key=len)
    return [_roomier(chosen[0], width, dropped)] if len(chosen) == 1 else chosen


def _roomier(columns: list[Cells], width: int, dropped: Sequence[str]) -> list[Cells]:
    """Return ``columns`` without figures, if names of kernels then show how they differ."""
    kept = columns
    for name in ("", *dropped):
        gone = [column for column in kept if _dropped_as(column) == name]
        if any(
            column.kind in _KEPT and column.cells.count(column.cells[0]) < len(column.cells)
            for column in gone
        ):
            break
        kept = [column for column in kept if column not in gone]
        if _fits(kept, width, wide=True):
            return kept
    return columns


def _dropped_as(column: Cells) -> str:
    return column.name.rpartition(" ")[2]


def _in_tables(columns: list[Cells], width: int) -> list[list[Cells]]:
    keys = [column for column in columns if not column.group]
    groups = list(dict.fromkeys(column.group for column in columns if column.group))
    tables: list[list[Cells]] = []
    for group in groups:
        members = [column for column in columns if column.group == group]
        if tables and _fits([*tables[-1], *members], width):
            tables[-1] += members
        else:
            tables.append([*keys, *members])
    return tables or [keys]


def _fits(columns: Sequence[Cells], width: int, *, wide: bool = False) -> bool:
    """Return whether ``columns`` fit, with long ones cut to a comfortable width at most.

    ``wide``: names of kernels have the width in which they show how they differ.
    """
    needed = [
        min(_natural(column), _comfortable(column, wide=wide)) if column.long else _natural(column)
        for column in columns
    ]
    return sum(needed) + GAP * (len(columns) - 1) <= width


def _comfortable(column: Cells, *, wide: bool = False) -> int:
    if wide and column.kind is Kind.KERNEL:
        return _comfortable_kernels(tuple(column.cells))
    return COMFORTABLE.get(column.kind, COMFORTABLE_LONG)


@lru_cache(maxsize=8)
def _comfortable_kernels(names: tuple[str, ...]) -> int:
    return differing_width(names, COMFORTABLE[Kind.KERNEL], WIDE_KERNEL)


def _cut_distinct(column: Cells, width: int, *, key: bool) -> Cells:
    """Return ``column`` with distinct cells cut to ``width``, if they distinguish rows."""
    if column.kind is Kind.KERNEL:
        return replace(column, cells=cut_kernels(column.cells, width))
    rows = key or column.name == "shapes"
    if column.kind in (Kind.PATH, Kind.LINE) or (rows and column.kind is Kind.LONG):
        return replace(column, cells=cut_distinct(column.cells, width, _CUT[column.kind]))
    return column


def _grid(columns: Sequence[Cells], width: int, *, ruled: bool, footer: bool) -> list[Text]:
    widths = _with_titles(columns, _widths(columns, width), width)
    columns = [
        _cut_distinct(column, wide, key=at == 0)
        for at, (column, wide) in enumerate(zip(columns, widths, strict=True))
    ]
    lines = [_groups(columns, widths)] if any(column.group for column in columns) else []
    lines += _header(columns, widths)
    units = [column.unit for column in columns]
    if any(units):
        lines.append(_line(columns, units, widths, "dim"))
    rule = Text("─" * (sum(widths) + GAP * (len(widths) - 1)), style="dim", no_wrap=True)
    rows = zip(*(column.cells for column in columns), strict=True)
    lines += [rule] if ruled else []
    lines += [_line(columns, cells, widths) for cells in rows]
    if footer:
        lines += [rule, _line(columns, [column.total for column in columns], widths, "bold")]
    return lines


def _with_titles(columns: Sequence[Cells], widths: list[int], width: int) -> list[int]:
    """Return ``widths``, wider where the title of a group needs it and the terminal has room."""
    widened = list(widths)
    spare = width - sum(widths) - GAP * (len(widths) - 1)
    for group in dict.fromkeys(column.group for column in columns if column.group):
        members = [at for at, column in enumerate(columns) if column.group == group]
        taken = sum(widened[at] for at in members) + GAP * (len(members) - 1)
        more = max(min(cell_len(plain(group)) - taken, spare), 0)
        widened[members[0]] += more
        spare -= more
    return widened


def _groups(columns: Sequence[Cells], widths: Sequence[int]) -> Text:
    """Return a line with the title of each group and a rule over its columns."""
    line = Text(style="bold", no_wrap=True)
    at = 0
    while at < len(columns):
        group = columns[at].group
        end = at
        while end < len(columns) and columns[end].group == group:
            end += 1
        wide = sum(widths[at:end]) + GAP * (end - at - 1)
        title = cut_end(plain(group), wide)
        rule = "─" * (wide - cell_len(title) - 1) if title else " " * wide
        line.append(" " * GAP if at else "")
        line.append(f"{title} {rule}" if title and rule else title or rule)
        at = end
    line.rstrip()
    return line


def _header(columns: Sequence[Cells], widths: Sequence[int]) -> list[Text]:
    """Return the titles in one or two lines, aligned to the bottom."""
    titles = [column.title.split("\n") for column in columns]
    height = max(map(len, titles))
    lines = zip(*(["", *title][-height:] for title in titles), strict=True)
    return [
        _line(
            columns,
            [cut_end(cell, wide) for cell, wide in zip(line, widths, strict=True)],
            widths,
            "bold",
        )
        for line in lines
    ]


def _natural(column: Cells) -> int:
    title = column.title.split("\n")
    return max(map(terminal_width, (*title, column.unit, column.total, *column.cells)))


def _two_lines_of(column: Cells) -> str:
    """Return the title, in two lines if it is wider than the cells below it."""
    words = plain(column.title).split()
    wide = max(map(terminal_width, (column.unit, column.total, *column.cells)))
    if len(words) < 2 or len(" ".join(words)) <= wide:
        return " ".join(words)
    layouts = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(1, len(words))]
    return "\n".join(min(layouts, key=lambda lines: max(map(len, lines))))


def _widths(columns: Sequence[Cells], width: int) -> list[int]:
    natural = [_natural(column) for column in columns]
    widths = [
        min(wide, max(WIDEST_TEXT, *map(cell_len, column.title.split("\n"))))
        if column.kind is Kind.TEXT
        else wide
        for column, wide in zip(columns, natural, strict=True)
    ]
    long = [number for number, column in enumerate(columns) if column.long]
    used_width = sum(widths) - sum(widths[number] for number in long) + GAP * (len(columns) - 1)
    left = width - used_width
    # The narrowest column comes first, so that the others get the width that it does not need. The
    # width beyond the comfortable width of each column is shared among columns that need more.
    comfortable = {number: min(widths[number], _comfortable(columns[number])) for number in long}
    spare = max(left - sum(comfortable.values()), 0)
    if spare:
        for done, number in enumerate(
            sorted(long, key=lambda number: widths[number] - comfortable[number])
        ):
            more = min(widths[number] - comfortable[number], spare // (len(long) - done))
            spare -= more
            widths[number] = comfortable[number] + more
        return widths
    for done, number in enumerate(sorted(long, key=lambda number: widths[number])):
        widths[number] = min(widths[number], max(NARROWEST_LONG, left // (len(long) - done)))
        left -= widths[number]
    return widths


def _line(
    columns: Sequence[Cells], cells: Sequence[str], widths: Sequence[int], style: str = ""
) -> Text:
    line = Text(style=style, no_wrap=True)
    for number, (column, cell, width) in enumerate(zip(columns, cells, widths, strict=True)):
        text = _CUT[column.kind](cell, width) if column.kind in _CUT else cell
        space = " " * (width - cell_len(text))
        line.append(" " * GAP if number else "")
        line.append(
            space + text if column.right else text + space, "cyan" if column.name == BAR else ""
        )
    line.rstrip()
    return line


def _drawn(parts: Iterable[Any], terminal: Terminal) -> str:
    """Return rich renderables as text, with ANSI colours if ``terminal`` shows them."""
    buffer = StringIO()
    console = Console(
        # In a notebook it would display every line instead of writing it.
        force_jupyter=False,
        file=buffer,
        width=terminal.width,
        force_terminal=terminal.colour,
        color_system="standard" if terminal.colour else None,
        no_color=not terminal.colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        # A line that does not wrap may exceed the terminal's width; it is not cut.
        whole = isinstance(part, Text) and bool(part.no_wrap)
        console.print(part, soft_wrap=whole)
    lines = buffer.getvalue().replace(_NO_BREAK, " ").split("\n")
    return "\n".join(line.rstrip() for line in lines)
