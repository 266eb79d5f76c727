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
    lost_fields: dict[str, int] = field(default_factory=dict)
    """Field -> events of which it alone could not be parsed; the events are kept."""

    def count(self, reason: str, detail: str, events: int) -> None:
        """Add ``events`` that no table takes."""
        if events:
            key = (reason, detail)
            self.left_out[key] = self.left_out.get(key, 0) + events

    def lose(self, name: str, events: int) -> None:
        """Add ``events`` that are kept without their field ``name``."""
        if events:
            self.lost_fields[name] = self.lost_fields.get(name, 0) + events

    def add(self, other: Counted) -> None:
        """Add what was counted of another stretch."""
        self.events += other.events
        self.repaired += other.repaired
        for (reason, detail), events in other.left_out.items():
            self.count(reason, detail, events)
        for name, events in other.lost_fields.items():
            self.lose(name, events)


Event = TypeVar("Event")
Columns = TypeVar("Columns", bound=Counted)


class EventDecoder(Generic[Event, Columns]):
    """Decodes events of the type ``event``, of which ``columns`` makes columns."""

    def __init__(self, event: type[Event], columns: Callable[[list[Event]], Columns]) -> None:
        self._one = msgspec.json.Decoder(event)
        self._many = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self._columns = columns
        self._fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def decode(self, text: bytes) -> Columns:
        """Decode whole events separated by commas; raises :class:`UndecodableError`."""
        try:
            events = self._many.decode(b"".join((b"[", text, b"]")))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UndecodableError from error
        return self._columns(events)

    def decode_singly(self, texts: Sequence[bytes]) -> Columns:
        """Decode events one by one: mends what can be mended and counts what cannot.

        Of an event with a field of a type that no column takes, that field alone is lost.
        """
        events: list[Event] = []
        lost: list[str] = []
        repaired = malformed = 0
        for text in texts:
            if (event := self._decoded(text)) is not None:
                events.append(event)
                continue
            mended = repair(text)
            fields = self._readable_fields(mended)
            if fields is None or (event := self._decoded(fields[0])) is None:
                malformed += 1
                continue
            events.append(event)
            repaired += mended != text
            lost += fields[1]
        columns = self._columns(events)
        columns.events += malformed
        columns.repaired += repaired
        columns.count("malformed", "", malformed)
        for name in lost:
            columns.lose(name, 1)
        return columns

    def _decoded(self, text: bytes) -> Event | None:
        try:
            return self._one.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _readable_fields(self, text: bytes) -> tuple[bytes, list[str]] | None:
        """Return ``text`` without the fields that cannot be decoded, and their names.

        None where it is no JSON object. The phase is never left out: without it an event is
        nothing.
        """
        try:
            fields = self._fields.decode(text)
            arguments = self._arguments(fields.get("args"))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        kept_arguments = {
            name: raw
            for name, raw in arguments.items()
            if self._decoded(msgspec.json.encode({"ph": "X", "args": {name: raw}})) is not None
        }
        lost = [name for name in arguments if name not in kept_arguments]
        if lost:
            fields["args"] = msgspec.Raw(msgspec.json.encode(kept_arguments))
        kept = {
            name: raw
            for name, raw in fields.items()
            if name == "ph" or self._decoded(msgspec.json.encode({"ph": "X", name: raw}))
        }
        return msgspec.json.encode(kept), [*lost, *(name for name in fields if name not in kept)]

    def _arguments(self, raw: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
        """Return the arguments of an event, none where they are no object."""
        if raw is None or not bytes(raw).lstrip().startswith(b"{"):
            return {}
        return self._fields.decode(raw)
