"""Writes the tables of columns in docs/json.md from their declarations.

    python -m tools.columns

A comment ``<!-- columns: MODULE:NAME … -->`` stands above each table; what follows it, up to the
next blank line, is made anew: a row for each column of the named declarations, each column once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from traceana.commands import declared_columns
from traceana.table import Column

PAGE = Path(__file__).resolve().parent.parent / "docs" / "json.md"
TABLE = re.compile(r"(<!-- columns: (?P<names>[^>]+) -->\n)(?:\|.*\n)*")


def markdown(columns: Iterable[Column]) -> str:
    """Return the table of ``columns``: key, unit and meaning."""
    lines = ["| key | unit | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{column.name}` | {column.unit or ''} | {column.meaning} |" for column in columns]
    return "\n".join(line.replace("|  |", "| |") for line in lines) + "\n"


def page(text: str) -> str:
    """Return the page ``text`` with its tables made anew."""
    return TABLE.sub(lambda match: match[1] + markdown(declared_columns(match["names"])), text)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
