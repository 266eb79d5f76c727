"""Decodes the events of a stretch at once, or one by one where that fails, and counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from traceana.ingest.kineto.repair import repair
from traceana.ingest.kineto.split import UndecodableError


@dataclass(slots=True)
class Counted:
    """What is counted of the events of one stretch of a file, whatever its format."""

    events: int = 0
    left_out: dict[tuple[str, str], int] = field(default_factory=dict)
    """(reason, detail) -> events that no table takes, for the ledger."""
    repaired: int = 0
    """Events that were no valid JSON as the file has them."""

    def count(self, reason: str, detail: str, events: int) -> None:
        """Add ``events`` that no table takes."""
        if events:
            key = (reason, detail)
            self.left_out[key] = self.left_out.get(key, 0) + events

    def add(self, other: Counted) -> None:
        """Add what was counted of another stretch."""
        self.events += other.events
        self.repaired += other.repaired
        for (reason, detail), events in other.left_out.items():
            self.count(reason, detail, events)


Event = TypeVar("Event")
Columns = TypeVar("Columns", bound=Counted)


class EventDecoder(Generic[Event, Columns]):
    """Decodes events of the type ``event``, of which ``columns`` makes columns."""

    def __init__(self, event: type[Event], columns: Callable[[list[Event]], Columns]) -> None:
        self._one = msgspec.json.Decoder(event)
        self._many = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self._columns = columns

    def decode(self, text: bytes) -> Columns:
        """Decode whole events separated by commas; raises :class:`UndecodableError`."""
        try:
            events = self._many.decode(b"".join((b"[", text, b"]")))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UndecodableError from error
        return self._columns(events)

    def decode_singly(self, texts: Sequence[bytes]) -> Columns:
        """Decode events one by one: mends what can be mended and counts what cannot."""
        events: list[Event] = []
        repaired = malformed = 0
        for text in texts:
            try:
                events.append(self._one.decode(text))
                continue
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
            try:
                events.append(self._one.decode(repair(text)))
                repaired += 1
            except (msgspec.DecodeError, UnicodeDecodeError):
                malformed += 1
        columns = self._columns(events)
        columns.events += malformed
        columns.repaired += repaired
        columns.count("malformed", "", malformed)
        return columns
