"""The compiled scanner of events, ``compiled/json_events.c``, where the installation has it.

A :class:`Scanner` is made of a struct that declares the keys, and of the columns that each frame
has. It accepts events as profilers write them and refuses other text, which
:class:`~traceana.readers.chrome.event_decoder.EventDecoder` decodes, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

import msgspec
import numpy as np
import polars as pl

from traceana.readers.compiled import COMPILED

if COMPILED:
    from traceana.readers.compiled import _scanner

LEFT_OUT: Final = -1
"""The frame of events without a row."""
_NO_NUMBER: Final = -(2**63)
"""Stands for an absent number; the scanner refuses text with this number."""
_NULL: Final = pl.Series([None], dtype=pl.Int64)
_NO_FIELD: Final = -1
_ARGS: Final = "args"

Column: TypeAlias = tuple[str, ...]
"""(kind, field) or (kind, field, field where the first is null or absent).

Kinds: ``i`` integer, also at the end of a text; ``n`` integer only; ``t`` time; ``s`` text, null
for a number; ``r`` raw JSON, also of the event's ``args``; ``x``, ``y``, ``z`` of a list.
"""


class Rule(NamedTuple):
    """Events of ``phase`` and a lower-case ``category``, None for all others, go to ``frame``.

    Those whose ``id`` is smaller than ``least`` are counted and have no row; 0: none.
    """

    phase: str
    category: str | None
    frame: str | None
    least: int = 0


class Route(NamedTuple):
    """A number of events of one phase and category; ``frame`` is None where they are left out."""

    phase: str
    category: str | None
    frame: str | None
    events: int


class Scanned(NamedTuple):
    """The events of a text: how many, by phase and category in the order of appearance, and the
    rows of each frame that has any. ``texts`` are the distinct texts of all columns."""

    events: int
    routes: list[Route]
    frames: dict[str, pl.DataFrame]
    texts: list[str | None]


class Scanner:
    """Scans events that ``event`` declares, a struct whose ``args`` is a struct, into frames."""

    def __init__(
        self, event: Any, frames: Mapping[str, Mapping[str, Column]], rules: list[Rule]
    ) -> None:
        # The keys of an event and of its ``args`` with their kinds, and their numbers.
        fields: list[_scanner.Field] = []
        numbers: dict[str, int] = {}
        for in_args, struct in ((False, event), (True, get_type_hints(event)[_ARGS])):
            # Raw text in an event is a time.
            kinds = {object: "a", str: "s", str | None: "o", msgspec.Raw: "r" if in_args else "t"}
            types = get_type_hints(struct)
            for field in msgspec.structs.fields(struct):
                numbers[field.name] = len(fields)
                kind = "a" if field.name == _ARGS else kinds.get(types[field.name], "i")
                fields.append((in_args, field.encode_name, kind))
        self._frames = frames
        self._names = [*frames]
        numbers[""] = _NO_FIELD
        columns = [
            [
                (kind, numbers[first], numbers[older[0] if older else ""])
                for kind, first, *older in frame.values()
            ]
            for frame in frames.values()
        ]
        places = {name: place for place, name in enumerate(frames)}
        numbered_rules = [
            (rule.phase, rule.category, places.get(rule.frame or "", LEFT_OUT), rule.least)
            for rule in rules
        ]
        # The seed differs between processes: nobody can choose texts whose hashes collide.
        self._plan = _scanner.json_plan(fields, columns, numbered_rules, hash("traceana"))

    def accepts(self, text: bytes) -> bool:
        """Return whether :meth:`scan` does not refuse ``text``."""
        return _scanner.json_events(self._plan, text, len(text)) is not None

    def scan(self, text: bytes, stop: int) -> Scanned | None:
        """Return the events of ``text[:stop]``, None where the scanner refuses the text."""
        scanned = _scanner.json_events(self._plan, text, stop)
        if scanned is None:
            return None
        events, routes, frames, texts, raws = scanned
        labels = pl.Series(texts, dtype=pl.Categorical)
        strings = pl.Series(raws, dtype=pl.String)
        return Scanned(
            events,
            [
                # An event without a phase has an empty one.
                Route(
                    phase or "", category, None if frame == LEFT_OUT else self._names[frame], count
                )
                for phase, category, frame, count in routes
            ],
            {
                name: _frame(columns, rows, cells, labels, strings)
                for (name, columns), (rows, cells) in zip(self._frames.items(), frames, strict=True)
                if rows
            },
            texts,
        )


def _frame(
    columns: Mapping[str, Column],
    rows: int,
    cells: list[_scanner.Cells],
    labels: pl.Series,
    strings: pl.Series,
) -> pl.DataFrame:
    series: dict[str, pl.Series] = {}
    # Methods of Series and of their Python protocol: an expression costs more than the work.
    for (name, (kind, *_)), cell in zip(columns.items(), cells, strict=True):
        texts = {"s": labels, "r": strings}.get(kind)
        if cell is None:
            dtype = pl.Int64 if texts is None else texts.dtype
            series[name] = pl.Series([None], dtype=dtype).new_from_index(0, rows)
        elif texts is not None:
            series[name] = texts[np.frombuffer(cell[0], dtype=np.uint32)]
        else:
            numbers = pl.Series(np.frombuffer(cell[0], dtype=np.int64))
            series[name] = numbers.zip_with(numbers != _NO_NUMBER, _NULL) if cell[1] else numbers
    return pl.DataFrame(series)
