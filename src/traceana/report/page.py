"""The page that every command returns: blocks of rounded text, and the exact data.

Renderers depend on these blocks and on no command; commands make blocks and depend on no renderer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from traceana.report.columns import Kind

if TYPE_CHECKING:
    import polars as pl


class Heading(msgspec.Struct, frozen=True):
    """A title of the following blocks, and a remark beside it. The first is the page's title."""

    text: str
    remark: str = ""


class Facts(msgspec.Struct, frozen=True):
    """Labels and values, one per row. A row without a label continues the row above it."""

    rows: tuple[tuple[str, str], ...]


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its ``name`` in the frame, its title and the kind of its values.

    Columns of one ``scale`` share a unit. Without a scale, a column has a unit of its own.
    Neighbouring columns of one ``group`` have it as a common title.
    """

    name: str
    title: str
    kind: Kind
    scale: str = ""
    group: str = ""


class Hidden(msgspec.Struct, frozen=True):
    """The hidden rows of a table: their number and time.

    ``command`` is the command that shows them, if it is not the page's own.
    """

    rows: int
    time_ns: int | None = None
    command: str = ""


class Table(msgspec.Struct, frozen=True):
    """Rows of ``frame`` in ``columns``, and the ``totals`` of some of them.

    If the width is too small, columns are dropped in the order of ``dropped``, and groups of
    columns are put below each other. ``bars`` is a column that is followed by bars, which have the
    name ``bar`` in ``dropped``. A ``compact`` table has one header line and no rules. In
    ``records`` each row is a block of lines. ``folded`` is the summary of a table that Markdown and
    HTML collapse.
    """

    frame: pl.DataFrame
    columns: tuple[Column, ...]
    totals: Mapping[str, int] = msgspec.field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    bars: str | None = None
    layout: Literal["ruled", "compact", "records"] = "ruled"
    hidden: Hidden | None = None
    folded: str = ""


class Finding(msgspec.Struct, frozen=True):
    """A finding: its title, its effect, a sentence, and further lines with labels."""

    title: str
    effect: str
    summary: str
    details: tuple[tuple[str, str], ...] = ()
    evidence: Table | None = None


class Findings(msgspec.Struct, frozen=True):
    """Numbered findings; ``brief`` ones have at most two lines each."""

    items: tuple[Finding, ...]
    brief: bool = False
    first: int = 1


class Notes(msgspec.Struct, frozen=True):
    """Footnotes: a label, which may be empty, and a text each."""

    rows: tuple[tuple[str, str], ...]
    warning: bool = False


Block: TypeAlias = Heading | Facts | Table | Findings | Notes


class Rows(msgspec.Struct, frozen=True):
    """A table of the exact data; ``details`` are for the JSON only, one mapping per row.

    A frame in ``details`` becomes a list of its rows.
    """

    frame: pl.DataFrame
    details: Sequence[Mapping[str, Any]] = ()


class Data(msgspec.Struct, frozen=True):
    """The data of the machine formats: ``rows`` in CSV, TSV and Parquet, all fields in JSON.

    ``source`` is the first part of the JSON's ``meta``. ``whole``, if given, replaces the JSON.
    """

    rows: Rows
    source: Mapping[str, Any] = msgspec.field(default_factory=dict)
    totals: Mapping[str, int] = msgspec.field(default_factory=dict)
    rows_total: int = 0
    notes: tuple[str, ...] = ()
    sections: Mapping[str, Rows] = msgspec.field(default_factory=dict)
    whole: Mapping[str, Any] | None = None


class Page(msgspec.Struct, frozen=True):
    """The blocks of one command's output in order, and their data."""

    command: str
    blocks: tuple[Block, ...]
    data: Data
