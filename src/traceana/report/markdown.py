"""Pages as Markdown, for pull requests and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from traceana.plain_text import plain
from traceana.report import numbers
from traceana.report.cells import BAR, Cells, cells_of
from traceana.report.page import (
    Facts,
    Findings,
    Heading,
    Illustration,
    Notes,
    Page,
    Single,
    Table,
    in_order,
)

_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>#|~&!@])")
_LINK: Final = re.compile(r"(:(?=//)|\bwww(?=\.)|\\@(?=\w)|\\[#!](?=\d))", re.IGNORECASE)
"""Beginnings of links in escaped text: of URLs, addresses, mentions and numbers of issues.

GitHub and GitLab make them of the rendered text, whatever is escaped.
"""
_NO_LINK: Final = "\u200b"
"""A space of no width."""


def render(page: Page) -> str:
    """Return ``page`` as Markdown: tables with pipes, facts and notes as lists."""
    first = next((block for block in page.blocks if isinstance(block, Heading)), None)
    parts = (_block(block, first=block is first) for block in in_order(page.blocks))
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _block(block: Single, *, first: bool) -> list[str]:
    match block:
        case Heading(text, remark):
            return [
                f"{'#' if first else '##'} {_escaped(text)}",
                *(["", _escaped(remark)] * bool(remark)),
            ]
        case Facts(rows) | Notes(rows):
            return [f"- {_labelled(label, text)}" for label, text in rows]
        case Findings():
            return _findings(block)
        case Table():
            return _table(block)
        case Illustration():
            return []  # their values are in a table of the page


def _labelled(label: str, text: str) -> str:
    return f"**{_escaped(label)}**: {_escaped(text)}" if label else _escaped(text)


def _findings(block: Findings) -> list[str]:
    lines: list[str] = []
    for number, item in enumerate(block.items, start=block.first):
        title = f"{_escaped(item.title)}, {_escaped(item.effect)}"
        if block.brief:
            lines.append(f"{number}. **{title}**: {_escaped(item.summary)}")
            for part in item.parts:
                text = _labelled(part.effect, part.summary)
                lines.append(f"{'   ' * part.depth}- {text}")
            continue
        lines += [""] if lines else []
        lines += [f"## {number}. {title}", ""]
        labelled = (("finding", item.summary), *item.details)
        lines += [f"- {_labelled(label, text)}" for label, text in labelled]
        if item.evidence is not None:
            lines += ["", *_table(item.evidence)]
    return lines


def _table(table: Table) -> list[str]:
    columns = [column for column in cells_of(table) if column.name != BAR]
    lines = []
    if columns and columns[0].cells:
        lines = [
            _line(_escaped(_title(column)) for column in columns),
            _line("---:" if column.right else "---" for column in columns),
        ]
        rows = zip(*(column.cells for column in columns), strict=True)
        lines += [_line(map(_escaped, cells)) for cells in rows]
        if table.totals and table.layout != "compact":
            totals = [f"**{column.total}**" if column.total else "" for column in columns]
            lines.append(_line([totals[0] or "**total**", *totals[1:]]))
    if table.hidden is not None:
        lines += [""] if lines else []
        lines.append(f"… {numbers.counted(table.hidden.rows, 'more row')}")
    if not table.folded or not lines:
        return lines
    return [f"<details><summary>{_escaped(table.folded)}</summary>", "", *lines, "", "</details>"]


def _title(column: Cells) -> str:
    title = f"{column.group}: {column.title}" if column.group else column.title
    return f"{title} ({column.unit})" if column.unit else title


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Return ``text`` with Markdown's markup characters escaped, and without links."""
    return _LINK.sub(rf"\1{_NO_LINK}", _MARKUP.sub(r"\\\1", plain(text)))
