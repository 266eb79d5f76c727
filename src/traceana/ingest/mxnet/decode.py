"""The decoder: JSON text of whole events to columns, for :class:`EventStream`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import polars as pl
from msgspec import Raw, Struct

from traceana.ingest.kineto.repair import repair
from traceana.ingest.kineto.split import UndecodableError
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


_ONE: Final = msgspec.json.Decoder(_Event)
_MANY: Final = msgspec.json.Decoder(list[_Event])


@dataclass(slots=True)
class Columns:
    """The events of one stretch of the file."""

    events: int = 0
    halves: list[pl.DataFrame] = field(default_factory=list)
    processes: dict[str, str] = field(default_factory=dict)
    """pid -> what it stands for: a device, or a kind of events."""
    left_out: dict[tuple[str, str], int] = field(default_factory=dict)
    """(reason, detail) -> events that no table takes."""
    repaired: int = 0

    def count(self, reason: str, detail: str, events: int) -> None:
        """Add ``events`` that no table takes."""
        if events:
            key = (reason, detail)
            self.left_out[key] = self.left_out.get(key, 0) + events

    def take(self, other: Columns) -> None:
        """Append another stretch."""
        self.events += other.events
        self.repaired += other.repaired
        self.halves += other.halves
        self.processes |= other.processes
        for (reason, detail), events in other.left_out.items():
            self.count(reason, detail, events)


def decode(text: bytes) -> Columns:
    """Decode whole events separated by commas; raises :class:`UndecodableError`."""
    try:
        return _columns(_MANY.decode(b"".join((b"[", text, b"]"))))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableError from error


def decode_singly(texts: Sequence[bytes]) -> Columns:
    """Decode events one by one: mends what can be mended and counts what cannot."""
    events: list[_Event] = []
    repaired = malformed = 0
    for text in texts:
        for attempt in (text, repair(text)):
            try:
                events.append(_ONE.decode(attempt))
                repaired += attempt is not text
                break
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        else:
            malformed += 1
    columns = _columns(events)
    columns.events += malformed
    columns.repaired = repaired
    columns.count("malformed", "", malformed)
    return columns


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
