"""The titles of printed tables: the column, unit and meaning of each, a row of ``titles.tsv``.

``table`` is the kind of table; ``titles`` are the ways to print the title, those of a summary in
lower case and of rocprof in lower-case letters and digits alone. A title without a column is known
and not read. ``unit`` is ``time`` or ``size`` where the table prints it, ``axes`` for three numbers
in one column, and of counters what a printed 1 is worth.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Title(NamedTuple):
    """A title's column and unit; the column is empty for titles that are not read."""

    column: str
    unit: str


@cache
def titles(table: str) -> dict[str, Title]:
    """Return the titles of a kind of table, as it prints them."""
    text = (files("traceana.readers.printed") / "titles.tsv").read_text("utf-8")
    return {
        title: Title(row["column"], row["unit"])
        for row in csv.DictReader(text.splitlines(), delimiter="\t")
        if row["table"] == table
        for title in row["titles"].split("|")
    }
