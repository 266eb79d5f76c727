"""The page that every command returns: blocks for readers, and the exact data behind them.

A renderer knows these blocks and no command; a command makes blocks and knows no renderer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from traceana.report.columns import Kind

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Heading:
    """A title of what follows, and a remark beside it. The first of a page is the page's."""

    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and values, a row each. A row without a label belongs to the one above it."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its ``name`` in the frame, its title and what its values are.

    Columns of one ``scale`` share a unit; without a scale a column has a unit of its own.
    Neighbours of one ``group`` have that as a common title.
    """

    name: str
    title: str
    kind: Kind
    scale: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Hidden:
    """The rows that a table leaves out: their number and time.

    ``command`` names the command that shows them, where it is not the page's own.
    """

    rows: int
    time_ns: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of ``frame`` in ``columns``, and the ``totals`` of some of them.

    Where there is too little width, columns go in the order of ``dropped``, and groups of columns
    stand below each other. Bars are drawn of the column ``bars`` and stand behind it; in
    ``dropped`` they are called ``bar``. A ``compact`` table has one header line and no rules; in
    ``records`` each row is a block of lines. ``folded`` tables are further reading.
    """

    frame: pl.DataFrame
    columns: tuple[Column, ...]
    totals: Mapping[str, int] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    bars: str | None = None
    layout: Literal["ruled", "compact", "records"] = "ruled"
    hidden: Hidden | None = None
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: its title, what it is worth, a sentence, and further lines with labels."""

    title: str
    worth: str
    summary: str
    details: tuple[tuple[str, str], ...] = ()
    evidence: Table | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Numbered findings; ``brief`` ones have at most two lines each."""

    items: tuple[Finding, ...]
    brief: bool = False
    first: int = 1


@dataclass(frozen=True, slots=True)
class Notes:
    """Footnotes: a label and a text each, the label empty where the text needs none."""

    rows: tuple[tuple[str, str], ...]
    warning: bool = False


Block: TypeAlias = Heading | Facts | Table | Findings | Notes


@dataclass(frozen=True, slots=True)
class Rows:
    """A table of the exact data; ``details`` are the JSON's alone, one mapping a row.

    A value of ``details`` that is a frame becomes a list of its rows.
    """

    frame: pl.DataFrame
    details: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Data:
    """What the machine formats hold: CSV, TSV and Parquet ``rows``, JSON everything.

    ``source`` begins the JSON's ``meta``; ``whole`` replaces it all where the JSON is one object.
    """

    rows: Rows
    source: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    rows_total: int = 0
    notes: tuple[str, ...] = ()
    sections: Mapping[str, Rows] = field(default_factory=dict)
    whole: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The blocks of one command's output in their order, and the data behind them."""

    command: str
    blocks: tuple[Block, ...]
    data: Data
