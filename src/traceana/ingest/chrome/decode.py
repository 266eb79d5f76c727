"""The decoder: JSON text of whole events to columns, for :class:`EventStream`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from traceana.ingest.chrome.events import STATS, Event
from traceana.ingest.kineto.event_decoder import Counted, EventDecoder
from traceana.ingest.kineto.times import to_nanoseconds

_Schema = dict[str, pl.DataType | type[pl.DataType]]
_TEXT: Final = pl.Categorical()
_PLACE: Final[_Schema] = {"pid": _TEXT, "tid": _TEXT, "name": _TEXT, "start": pl.Int64}
COMPLETE: Final[_Schema] = {**_PLACE, "duration": pl.Int64, **dict.fromkeys(STATS, _TEXT)}
"""Columns of complete events; times are nanoseconds on the file's clock."""
HALVES: Final[_Schema] = {**_PLACE, "ends": pl.Boolean}
"""Columns of begin and end events, in the order of the file."""

_LEFT_OUT: Final = {
    "M": "metadata",
    "": "metadata",
    "i": "instant",
    "I": "instant",
    "R": "instant",
    "C": "counter",
    "s": "flow",
    "t": "flow",
    "f": "flow",
}


@dataclass(slots=True)
class Columns(Counted):
    """The events of one stretch of the file."""

    complete: list[pl.DataFrame] = field(default_factory=list)
    halves: list[pl.DataFrame] = field(default_factory=list)
    labels: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """(process_name or thread_name, pid, tid) -> the name."""

    def take(self, other: Columns) -> None:
        """Append another stretch."""
        self.add(other)
        self.complete += other.complete
        self.halves += other.halves
        self.labels |= other.labels


def _columns(events: list[Event]) -> Columns:
    columns = Columns(events=len(events))
    by_phase: dict[str, list[Event]] = {}
    for event in events:
        by_phase.setdefault(event.ph, []).append(event)
    halves = [event for event in events if event.ph in ("B", "E")]
    if complete := by_phase.pop("X", None):
        columns.complete.append(_complete(complete))
    if halves:
        columns.halves.append(
            pl.DataFrame(
                {**_places(halves), "ends": [event.ph == "E" for event in halves]}, schema=HALVES
            )
        )
    for event in by_phase.get("M", ()):
        if isinstance(event.args, dict) and isinstance(name := event.args.get("name"), str):
            columns.labels[str(event.name), _text(event.pid) or "", _text(event.tid) or ""] = name
    for phase, left in by_phase.items():
        if phase not in ("B", "E"):
            known = _LEFT_OUT.get(phase)
            columns.count(known or "unknown_category", "" if known else phase, len(left))
    return columns


def _places(events: list[Event]) -> dict[str, Any]:
    return {
        "pid": [_text(event.pid) for event in events],
        "tid": [_text(event.tid) for event in events],
        "name": [_text(event.name) for event in events],
        "start": to_nanoseconds([event.ts for event in events]),
    }


def _complete(events: list[Event]) -> pl.DataFrame:
    args = [event.args if isinstance(event.args, dict) else {} for event in events]
    return pl.DataFrame(
        {
            **_places(events),
            # Where XPlane has a short name for display, the whole one is among the arguments.
            "name": [
                _text(arg.get("long_name")) or _text(event.name)
                for event, arg in zip(events, args, strict=True)
            ],
            "duration": to_nanoseconds([event.dur for event in events]),
            **{stat: [_text(arg.get(stat)) for arg in args] for stat in STATS},
        },
        schema=COMPLETE,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)


DECODER: Final = EventDecoder(Event, _columns)
