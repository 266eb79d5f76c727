"""What a renderer is given: the rows, and what a reader of them has to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from traceana.advise import Advice
    from traceana.report.compare.beside import Beside
    from traceana.report.diff.facts import Compared
    from traceana.report.overview import Overview
    from traceana.result import Arranged, Result
    from traceana.study.study import Study

JSON_SCHEMA_VERSION: Final = 1
"""Raised when a key of the JSON output changes its name, type or meaning; see docs/json.md."""


@dataclass(frozen=True, slots=True)
class Document:
    """One table to show.

    ``verb`` names it; ``source`` holds the facts of the input for the JSON's ``meta``; ``columns``
    are those for a table of text (all: empty), of which a narrow terminal goes without the
    ``optional`` ones, the first first; with ``records`` each
    row is a block of lines, one a column. ``bars`` names the column that bars are drawn of, in
    place of the column ``bar``. ``overview`` is there when the table is that of the
    report, ``facts`` when the JSON is one object of facts and no table, ``advice`` when the rows
    are findings (with ``records`` each is shown whole). ``sections`` are further tables by their
    names, for the JSON alone. ``compared`` is there when the text is to be the summary of a diff,
    the table being its layers; ``beside`` when it is of several runs, which text shows side by
    side; ``study`` when the table is that of a study.
    """

    verb: str
    table: Arranged
    source: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    records: bool = False
    bars: str | None = None
    overview: Overview | None = None
    facts: Mapping[str, Any] | None = None
    sections: Mapping[str, Result] = field(default_factory=dict)
    compared: Compared | None = None
    beside: Beside | None = None
    advice: Advice | None = None
    study: Study | None = None


@dataclass(frozen=True, slots=True)
class Paper:
    """What the text is written on: its width in characters, and whether it takes colours."""

    width: int = 100
    colour: bool = False
