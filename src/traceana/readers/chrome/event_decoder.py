"""Decodes the events of a Chrome trace from JSON text, and converts their numbers to columns.

A stretch of events is decoded at once, or event by event where that fails. Events that cannot be
decoded are counted for the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec
import polars as pl

from traceana.files import UNDECODABLE
from traceana.readers.source import BLOCK

_MICROSECONDS: Final = pl.Decimal(38, 3)
"""A decimal whose unscaled integer is the time in nanoseconds."""
_TRAILING_DIGITS: Final = re.compile(r"(?:^|\D)(-?\d{1,19})$")


class Counted(msgspec.Struct):
    """Counts of the events in one stretch of a file."""

    events: int = 0
    left_out: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """(reason, detail) -> events without a row in any table."""
    left_out_ns: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """(reason, detail) -> their time, where it is read."""
    repaired: int = 0
    """Events whose JSON was invalid and has been repaired."""
    lost_fields: dict[str, int] = msgspec.field(default_factory=dict)
    """Field -> events kept without it, because it could not be parsed."""

    def count(self, reason: str, detail: str, events: int) -> None:
        """Add ``events`` without a row in any table; none keep the place of later ones."""
        key = (reason, detail)
        self.left_out[key] = self.left_out.get(key, 0) + events

    def lose(self, name: str, events: int) -> None:
        """Add ``events`` that are kept without their field ``name``."""
        if events:
            self.lost_fields[name] = self.lost_fields.get(name, 0) + events

    def add(self, other: Counted) -> None:
        """Add the counts of another stretch."""
        self.events += other.events
        self.repaired += other.repaired
        for (reason, detail), events in other.left_out.items():
            self.count(reason, detail, events)
        for key, time_ns in other.left_out_ns.items():
            self.left_out_ns[key] = self.left_out_ns.get(key, 0) + time_ns
        for name, events in other.lost_fields.items():
            self.lose(name, events)


Event = TypeVar("Event")
Columns = TypeVar("Columns", bound=Counted)


class UndecodableError(Exception):
    """The text is not a sequence of whole, valid events."""


class EventDecoder(Generic[Event, Columns]):
    """Decodes events of the type ``event``; ``columns`` converts them to columns."""

    threads = 0
    """Threads in which :meth:`decode` is worth calling; 0 where it holds Python's lock."""
    block = BLOCK
    """Bytes of the blocks in which the file is read. Objects of larger ones leave the caches."""

    def __init__(self, event: type[Event], columns: Callable[[list[Event]], Columns]) -> None:
        self._one = msgspec.json.Decoder(event)
        self._many = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self._columns = columns
        self._fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def decode(self, text: bytes, stop: int | None = None) -> Columns:
        """Return the columns of ``text[:stop]``, whole events separated by commas.

        Raises ``UndecodableError``.
        """
        text = text[:stop]
        try:
            events = self._many.decode(b"".join((b"[", text, b"]")))
            _check_text(text)
            return self._converted(events, text)
        except UNDECODABLE as error:
            raise UndecodableError from error

    def decode_singly(self, texts: Sequence[bytes]) -> Columns:
        """Return the columns of events decoded one by one.

        Invalid JSON is repaired where possible; other invalid events are counted. An event with a
        field of an unexpected type is kept without that field.
        """
        from traceana.readers.chrome.document import repair

        events: list[Event] = []
        decoded: list[bytes] = []
        lost: list[str] = []
        repaired = malformed = 0
        for text in texts:
            if (event := self._decoded(text)) is not None:
                events.append(event)
                decoded.append(text)
                continue
            repaired_text = repair(text)
            fields = self._readable_fields(repaired_text)
            if fields is None or (event := self._decoded(fields[0])) is None:
                malformed += 1
                continue
            events.append(event)
            decoded.append(fields[0])
            repaired += repaired_text != text
            lost += fields[1]
        columns = self._converted(events, b",".join(decoded))
        columns.events += malformed
        columns.repaired += repaired
        if malformed:
            columns.count("malformed", "", malformed)
        for name in lost:
            columns.lose(name, 1)
        return columns

    def _converted(self, events: list[Event], text: bytes) -> Columns:  # noqa: ARG002
        """Return the columns of ``events``; ``text`` is theirs, separated by commas."""
        return self._columns(events)

    def _decoded(self, text: bytes) -> Event | None:
        try:
            event = self._one.decode(text)
            _check_text(text)
        except UNDECODABLE:
            return None
        return event

    def _readable_fields(self, text: bytes) -> tuple[bytes, list[str]] | None:
        """Return ``text`` without the fields that cannot be decoded, and their names.

        None where it is not a JSON object. The phase is always kept: without it the event
        cannot be classified.
        """
        try:
            fields = self._fields.decode(text)
            arguments = self._arguments(fields.get("args"))
        except UNDECODABLE:
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
        """Return the arguments of an event; empty where they are not an object."""
        if raw is None or not bytes(raw).lstrip().startswith(b"{"):
            return {}
        return self._fields.decode(raw)


def _check_text(text: bytes) -> None:
    """Raise ``UnicodeDecodeError`` if ``text`` is not UTF-8.

    The decoder checks nothing in fields that it passes over or keeps as they are.
    """
    if not text.isascii():
        text.decode()


def to_nanoseconds(texts: Sequence[msgspec.Raw]) -> pl.Series:
    """Return JSON numbers in microseconds as int64 nanoseconds; see :func:`parse`."""
    if not texts:
        return pl.Series(dtype=pl.Int64)
    numbers = pl.Series([b"\n".join(texts).decode("ascii", "replace")]).str.split("\n").explode()
    if len(numbers) > len(texts):  # an object or a list on several lines is not a number
        numbers = pl.Series(
            [
                None if b"\n" in (text := bytes(raw)) else text.decode("ascii", "replace")
                for raw in texts
            ],
            dtype=pl.String,
        )
    return parse(numbers)


def parse(text: pl.Series) -> pl.Series:
    """Return decimal texts in microseconds as int64 nanoseconds.

    Up to three decimals are converted exactly; a longer fraction is rounded to the nearest
    nanosecond. Any other value (``NaN``, ``"N/A"``, ``null``, an absent
    value) becomes null.
    """
    numbers = text.cast(_MICROSECONDS, strict=False)
    if numbers.null_count():
        # Quoted numbers and blanks are rare: removing them costs as much as the conversion.
        numbers = text.str.strip_chars(" \"'").cast(_MICROSECONDS, strict=False)
    return numbers.to_physical().cast(pl.Int64, strict=False)


_INTEGERS: Final = frozenset((int, type(None)))


def integers(values: Sequence[object]) -> pl.Series:
    """Return ``values`` as int64.

    ``"stream 7"`` and ``"7"`` become 7, ``"0x1f"`` 31, 7.0 becomes 7; unsigned 64-bit numbers keep
    their bits, so distinct ids stay distinct. Any other value becomes null.
    """
    # Of a list in a list polars makes a column of gigabytes.
    if _INTEGERS.issuperset(map(type, values)):
        with suppress(TypeError, OverflowError, pl.exceptions.PolarsError):
            return pl.Series(values, dtype=pl.Int64, strict=True)
    return pl.Series([_integer(value) for value in values], dtype=pl.Int64)


def _integer(value: object) -> int | None:
    if isinstance(value, str) and value.startswith("0x"):
        try:
            value = int(value, 16)
        except ValueError:
            return None
    elif isinstance(value, str):
        match = _TRAILING_DIGITS.search(value)
        value = int(match.group(1)) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    if 2**63 <= value < 2**64:
        value -= 2**64
    return value if -(2**63) <= value < 2**63 else None
