"""The decoder: JSON text of whole events to columns, for :class:`EventStream`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl
from msgspec import Raw, Struct

from traceana.ingest.kineto.event_decoder import Counted, EventDecoder
from traceana.ingest.kineto.times import to_nanoseconds

_TEXT: Final = pl.Categorical()
HALVES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "name": _TEXT,
    "category": _TEXT,
    "phase": _TEXT,  # "B", "b" or "(": how the file spells the begin
    "pid": _TEXT,
    "tid": _TEXT,
    "start": pl.Int64,
    "ends": pl.Boolean,
}
"""Columns of begins and ends, in the order of the file; times are ns on the file's clock."""

_BEGIN_OF: Final = {"B": "B", "E": "B", "b": "b", "e": "b", "(": "(", ")": "("}
"""Operators and events; tasks, which it repeats operators as; frames."""
_LEFT_OUT: Final = {"M": "metadata", "C": "counter", "i": "instant", "I": "instant"}


class _Event(Struct, gc=False):
    ph: str = ""
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Raw = Raw(b"")
    args: Any = None


@dataclass(slots=True)
class Columns(Counted):
    """The events of one stretch of the file."""

    halves: list[pl.DataFrame] = field(default_factory=list)
    processes: dict[str, str] = field(default_factory=dict)
    """pid -> what it stands for: a device, or a kind of events."""

    def take(self, other: Columns) -> None:
        """Append another stretch."""
        self.add(other)
        self.halves += other.halves
        self.processes |= other.processes


def _columns(events: list[_Event]) -> Columns:
    columns = Columns(events=len(events))
    halves = [event for event in events if event.ph in _BEGIN_OF]
    if halves:
        columns.halves.append(_halves(halves))
    for event in events:
        if event.ph in _BEGIN_OF:
            continue
        known = _LEFT_OUT.get(event.ph)
        columns.count(known or "unknown_category", "" if known else event.ph, 1)
        if event.name == "process_name" and isinstance(event.args, dict):
            columns.processes[str(event.pid)] = str(event.args.get("name"))
    return columns


def _halves(events: list[_Event]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": [_text(event.name) for event in events],
            "category": [_text(event.cat) for event in events],
            "phase": [_BEGIN_OF[event.ph] for event in events],
            "pid": [_text(event.pid) for event in events],
            "tid": [_text(event.tid) for event in events],
            "start": to_nanoseconds([event.ts for event in events]),
            "ends": [event.ph != _BEGIN_OF[event.ph] for event in events],
        },
        schema=HALVES,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


DECODER: Final = EventDecoder(_Event, _columns)
