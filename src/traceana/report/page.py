"""The page that every command returns: blocks of rounded text, and the exact data.

Renderers depend on these blocks and on no command; commands make blocks and depend on no renderer.
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
    """A title of the following blocks, and a remark beside it. The first is the page's title."""

    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and values, one per row. A row without a label continues the row above it."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its ``name`` in the frame, its title and the kind of its values.

    Columns of one ``scale`` share a unit. Without a scale, a column has a unit of its own.
    Neighbouring columns of one ``group`` have it as a common title.
    """

    name: str
    title: str
    kind: Kind
    scale: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden rows of a table: their number and time.

    ``command`` is the command that shows them, if it is not the page's own.
    """

    rows: int
    time_ns: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of ``frame`` in ``columns``, and the ``totals`` of some of them.

    If the width is too small, columns are dropped in the order of ``dropped``, and groups of
    columns are put below each other. ``bars`` is a column that is followed by bars, which have the
    name ``bar`` in ``dropped``. A ``compact`` table has one header line and no rules. In
    ``records`` each row is a block of lines. ``folded`` is the summary of a table that Markdown and
    HTML collapse.
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
    """A finding: its title, its effect, a sentence, and further lines with labels."""

    title: str
    effect: str
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
    """Footnotes: a label, which may be empty, and a text each."""

    rows: tuple[tuple[str, str], ...]
    warning: bool = False


Block: TypeAlias = Heading | Facts | Table | Findings | Notes


@dataclass(frozen=True, slots=True)
class Rows:
    """A table of the exact data; ``details`` are for the JSON only, one mapping per row.

    A frame in ``details`` becomes a list of its rows.
    """

    frame: pl.DataFrame
    details: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Data:
    """The data of the machine formats: ``rows`` in CSV, TSV and Parquet, all fields in JSON.

    ``source`` is the first part of the JSON's ``meta``. ``whole``, if given, replaces the JSON.
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
    """The blocks of one command's output in order, and their data."""

    command: str
    blocks: tuple[Block, ...]
    data: Data
