"""The page that every command returns: blocks of rounded text, and the exact data.

Renderers depend on these blocks and on no command; commands make blocks and depend on no renderer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal, TypeAlias

import msgspec
import polars as pl

from traceana.analyze.timeline import Window
from traceana.table import Column, Kind


class Heading(msgspec.Struct, frozen=True):
    """A title of the following blocks, and a remark beside it. The first is the page's title."""

    text: str
    remark: str = ""


class Facts(msgspec.Struct, frozen=True):
    """Labels and values, one per row. A row without a label continues the row above it.

    ``large`` are labels and figures that HTML shows above them, with the row ``lead`` as sentence.
    """

    rows: tuple[tuple[str, str], ...]
    large: tuple[tuple[str, str], ...] = ()
    lead: str = ""


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
    name ``bar`` in ``dropped``; the largest value of its hidden rows is ``largest_hidden``. A
    ``compact`` table has one header line and no rules. In ``records`` each row is a block of lines.
    ``folded`` is the summary of a table that Markdown and HTML collapse, ``order`` the order of the
    rows where no column has it, for HTML.
    """

    frame: pl.DataFrame
    columns: tuple[Column, ...]
    totals: Mapping[str, int] = msgspec.field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    bars: str | None = None
    layout: Literal["ruled", "compact", "records"] = "ruled"
    hidden: Hidden | None = None
    folded: str = ""
    order: str = ""
    largest_hidden: float = 0.0

    def bars_of(self, column: str) -> list[float]:
        """Return the length of each row's bar, 1 for the largest value of all rows."""
        values = [max(0.0, float(value or 0)) for value in self.frame[column]]
        longest = max(0.0, self.largest_hidden, *values) or 1.0
        return [value / longest for value in values]


class Part(msgspec.Struct, frozen=True):
    """A part of a finding: how deep it is among the parts, from 1, its effect and a sentence.

    ``section`` and ``rows`` are as of a :class:`Finding`.
    """

    depth: int
    effect: str
    summary: str
    section: str = ""
    rows: str = ""


class Finding(msgspec.Struct, frozen=True):
    """A finding: its title, its effect, a sentence, further lines with labels, and its parts.

    ``section`` is the name of the section with its evidence, on a page that has one, and ``rows``
    a text of the rows there. ``anchor`` is its own, which the ``section`` of another finding of the
    page may name.
    """

    title: str
    effect: str
    summary: str
    details: tuple[tuple[str, str], ...] = ()
    evidence: Table | None = None
    section: str = ""
    rows: str = ""
    anchor: str = ""
    parts: tuple[Part, ...] = ()


class Findings(msgspec.Struct, frozen=True):
    """Numbered findings; ``brief`` ones have no details, and the clauses of their sentences and
    parts that fit few lines."""

    items: tuple[Finding, ...]
    brief: bool = False
    first: int = 1


class Notes(msgspec.Struct, frozen=True):
    """Footnotes: a label, which may be empty, and a text each."""

    rows: tuple[tuple[str, str], ...]
    warning: bool = False


class Axis(msgspec.Struct, frozen=True):
    """An axis of a chart: its title, and the kind of its values as in a column.

    A linear axis starts at 0 unless ``from_zero`` is False. ``extent`` are the smallest and the
    largest value of all charts that share the axis: they have one unit and one length.
    """

    title: str
    kind: Kind
    log: bool = False
    from_zero: bool = True
    extent: tuple[float, float] | None = None


class Marks(msgspec.Struct, frozen=True):
    """Marks of a chart, one per row of ``frame``, at the columns ``x`` and ``y``.

    A bar reaches from ``y`` to ``y_end``, or from 0; so does a band. A line or rule connects the
    rows of one ``colour``; a rule without ``y`` is vertical. A text is the ``label`` itself. A
    cross above the chart is a failure, with its ``label``. A value is ``x`` at the end of its bar,
    in the unit of the axis, or the ``label`` where a bar is missing. ``colour`` is a column of
    names, which the legend lists except for rules; the areas of points are proportional to the
    column ``size``. At a mark, a reader can look up its ``label``, by default its names on the axes
    and its colour, its values on the axes and the columns ``shown``. Bars that are ``grouped``
    stand beside each other, a colour each, pale where ``faint`` is true. A cell fills its place
    between two axes of names.
    """

    frame: pl.DataFrame
    shape: Literal["point", "line", "step", "band", "bar", "cell", "rule", "text", "value", "cross"]
    x: str
    y: str = ""
    y_end: str = ""
    colour: str = ""
    label: str = ""
    size: str = ""
    shown: tuple[Column, ...] = ()
    grouped: bool = False
    faint: str = ""


class Illustration(msgspec.Struct, frozen=True):
    """A picture, which HTML, notebooks and plots show and the other formats leave out.

    Its values also stand in a table of the same page.
    """

    title: str


class Chart(Illustration, frozen=True):
    """A chart with ``marks`` over two axes, and a ``summary`` of it in words.

    ``height`` is in pixels; the default fits the rows of names. ``colours`` has colours of names;
    others follow the palette.
    """

    summary: str
    x: Axis
    y: Axis
    marks: tuple[Marks, ...]
    height: int = 0
    colours: Mapping[str, str] = msgspec.field(default_factory=dict)


class Bars(Chart, frozen=True):
    """A chart of bars that a table of the page has, too: HTML shows that table alone."""


class Panels(Illustration, frozen=True):
    """Charts, ``columns`` side by side."""

    charts: tuple[Chart, ...]
    columns: int = 2


class Icicle(Illustration, frozen=True):
    """A tree whose widths are times: every node below its parent, which is as wide as its own time
    and its children together.

    Columns of ``frame``, parents before children: ``parent`` (row number, null for the root),
    ``label``, ``path``, ``category`` (its colour), ``time_ns`` (with its children) and the columns
    ``shown``. Times are sums over ``steps`` steps; a picture shows their mean. ``colours`` has the
    colours of categories other than classes of work.
    """

    summary: str
    frame: pl.DataFrame
    shown: tuple[Column, ...] = ()
    steps: int = 1
    colours: Mapping[str, str] = msgspec.field(default_factory=dict)


class Timeline(Illustration, frozen=True):
    """The events of one or more steps on tracks over time, one step at a time."""

    summary: str
    windows: tuple[Window, ...]

    @property
    def first(self) -> Timeline:
        """The timeline of the first window alone."""
        step = self.windows[0].step
        title = "Timeline of the capture" if step is None else f"Timeline of step {step}"
        return Timeline(title, self.summary, self.windows[:1])


class Strip(Timeline, frozen=True):
    """The main tracks of one step in brief, beside other blocks of a page. A file of pictures has
    the whole timeline."""


Single: TypeAlias = Heading | Facts | Table | Findings | Notes | Illustration


class Columns(msgspec.Struct, frozen=True):
    """Blocks of an HTML page side by side, where it is wide enough.

    Both sides are as wide, unless they are not ``even``: then each is as wide as its blocks.
    """

    left: tuple[Single, ...]
    right: tuple[Single, ...]
    even: bool = True


Block: TypeAlias = Single | Columns


class Rows(msgspec.Struct, frozen=True):
    """A table of the exact data; ``details`` are for the JSON only, one mapping per row.

    A frame in ``details`` becomes a list of its rows. ``columns`` are the declared ones.
    """

    frame: pl.DataFrame
    details: Sequence[Mapping[str, Any]] = ()
    columns: tuple[Column, ...] = ()


class Data(msgspec.Struct, frozen=True):
    """The data of the machine formats: ``rows`` in CSV, TSV and Parquet, all fields in JSON.

    ``source`` is the first part of the JSON's ``meta``. ``whole``, if given, replaces the JSON.
    ``summary`` has single figures of the page.
    """

    rows: Rows
    source: Mapping[str, Any] = msgspec.field(default_factory=dict)
    totals: Mapping[str, int] = msgspec.field(default_factory=dict)
    rows_total: int = 0
    notes: tuple[str, ...] = ()
    sections: Mapping[str, Rows] = msgspec.field(default_factory=dict)
    whole: Mapping[str, Any] | None = None
    summary: Mapping[str, Any] | None = None


class Section(msgspec.Struct, frozen=True):
    """A part of an HTML page: its anchor, its title and its blocks, which are hidden at first if it
    is ``folded``.

    Where a text of the page names its ``command``, that is a link to it; by default its name.
    """

    name: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False
    command: str = ""


class Page(msgspec.Struct, frozen=True):
    """The blocks of one command's output in order, and their data.

    ``sections`` follow the blocks in HTML; ``summary`` is the text of links to the blocks.
    """

    command: str
    blocks: tuple[Block, ...]
    data: Data
    sections: tuple[Section, ...] = ()
    summary: str = "Summary"


def pictures_of(page: Page) -> list[Illustration]:
    """Return the pictures of ``page`` and its sections in order."""
    every = [*page.blocks, *(block for section in page.sections for block in section.blocks)]
    return [block for block in in_order(every) if isinstance(block, Illustration)]


def in_order(blocks: Iterable[Block]) -> Iterator[Single]:
    """Yield ``blocks`` in the order of reading: left columns before right ones."""
    for block in blocks:
        if isinstance(block, Columns):
            yield from (*block.left, *block.right)
        else:
            yield block


def head_of(page: Page) -> tuple[Block, ...]:
    """Return the title and the facts that ``page`` begins with."""
    first = 1 if page.blocks and isinstance(page.blocks[0], Heading) else 0
    facts = takewhile(lambda block: isinstance(block, Facts), page.blocks[first:])
    return (*page.blocks[:first], *facts)
