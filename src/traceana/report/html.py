"""Pages as HTML for a notebook; text from the trace is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from traceana.report import numbers
from traceana.report.cells import BAR, Cells, cells_of
from traceana.report.page import Block, Facts, Findings, Heading, Notes, Page, Table
from traceana.report.text import plain

_STYLE = (
    "<style>.traceana table{border-collapse:collapse}"
    ".traceana td,.traceana th{text-align:left;padding:1px 8px;vertical-align:top}"
    ".traceana .n{text-align:right;font-variant-numeric:tabular-nums}"
    ".traceana .dim{opacity:.65}.traceana .bar{color:#2a7f9e;font-family:monospace}</style>"
)


def render(page: Page) -> str:
    """Return ``page`` as an HTML fragment."""
    parts = [part for block in page.blocks for part in _block(block)]
    return f'{_STYLE}<div class="traceana">{"".join(parts)}</div>'


def _block(block: Block) -> list[str]:
    match block:
        case Heading(text, remark):
            aside = f' <span class="dim">{_safe(remark)}</span>' if remark else ""
            return [f"<p><b>{_safe(text)}</b>{aside}</p>"]
        case Facts(rows):
            cells = (_row("td", [(label, "dim"), (value, "")]) for label, value in rows)
            return [f"<table>{''.join(cells)}</table>"]
        case Notes(rows):
            texts = [
                f"{_safe(label)}: {_safe(text)}" if label else _safe(text) for label, text in rows
            ]
            return [f'<p class="dim">{"<br>".join(texts)}</p>'] if texts else []
        case Findings():
            return _findings(block)
        case Table():
            return _table(block)


def _findings(block: Findings) -> list[str]:
    parts = []
    for item in block.items:
        details = () if block.brief else item.details
        lines = "".join(f"<br>{_safe(label)}: {_safe(text)}" for label, text in details)
        evidence = "" if item.evidence is None else "".join(_table(item.evidence))
        head = f"<b>{_safe(item.title)}</b> {_safe(item.effect)}"
        parts.append(f"<li>{head}: {_safe(item.summary)}{lines}{evidence}</li>")
    return [f'<ol start="{block.first}">{"".join(parts)}</ol>'] if parts else []


def _table(table: Table) -> list[str]:
    columns = cells_of(table)
    parts: list[str] = []
    if columns and columns[0].cells:
        rows = [_row("th", [(_title(column), _class(column)) for column in columns])]
        for cells in zip(*(column.cells for column in columns), strict=True):
            pairs = zip(cells, columns, strict=True)
            rows.append(_row("td", [(cell, _class(column)) for cell, column in pairs]))
        if table.totals and table.layout == "ruled":
            totals = [(column.total, _class(column)) for column in columns]
            totals[0] = (totals[0][0] or "total", totals[0][1])
            rows.append(_row("th", totals))
        parts.append(f"<table>{''.join(rows)}</table>")
    if table.hidden is not None:
        parts.append(f'<p class="dim">… {numbers.counted(table.hidden.rows, "more row")}</p>')
    if not table.folded or not parts:
        return parts
    return [f"<details><summary>{_safe(table.folded)}</summary>{''.join(parts)}</details>"]


def _row(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    inner = (
        f'<{tag} class="{kind}">{_safe(text)}</{tag}>' if kind else f"<{tag}>{_safe(text)}</{tag}>"
        for text, kind in cells
    )
    return f"<tr>{''.join(inner)}</tr>"


def _class(column: Cells) -> str:
    return "bar" if column.name == BAR else "n" if column.right else ""


def _title(column: Cells) -> str:
    title = f"{column.group}: {column.title}" if column.group else column.title
    return f"{title} ({column.unit})" if column.unit else title


def _safe(text: str) -> str:
    return escape(plain(text))
