"""Small XPlane files written by the tests, field by field."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traceana.readers.source import silent
from traceana.readers.xplane.reader import read
from traceana.readers.xplane.space import read_space
from traceana.readers.xplane.wire import Buffer
from traceana.trace import Trace

Stat = int | float | str | bytes


def varint(value: int) -> bytes:
    """Encode an integer; negative ones as protobuf does, in ten bytes."""
    value &= (1 << 64) - 1
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def number(tag: int, value: int) -> bytes:
    """Encode a varint field."""
    return varint(tag << 3) + varint(value)


def message(tag: int, content: bytes | str) -> bytes:
    """Encode a field with a length."""
    data = content.encode() if isinstance(content, str) else content
    return varint(tag << 3 | 2) + varint(len(data)) + data


@dataclass
class PlaneWriter:
    """Builds one plane; names get their numbers as they come."""

    name: str
    lines: list[bytes] = field(default_factory=list)
    stats: list[bytes] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)
    stat_names: dict[str, int] = field(default_factory=dict)

    def stat(self, name: str, value: Stat, tag: int, *, reference: bool = False) -> bytes:
        """Encode a stat as field ``tag`` of its message."""
        content = number(1, self.stat_names.setdefault(name, len(self.stat_names) + 1))
        if reference:
            text = str(value)
            content += number(7, self.stat_names.setdefault(text, len(self.stat_names) + 1))
        elif isinstance(value, float):
            content += varint(2 << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            content += number(4 if value < 0 else 3, value)
        else:
            content += message(5 if isinstance(value, str) else 6, value)
        return message(tag, content)

    def event(
        self, name: str, offset_ps: int, duration_ps: int, *more: bytes, **stats: Stat
    ) -> bytes:
        """Encode an event; ``more`` are encoded fields."""
        content = number(1, self.events.setdefault(name, len(self.events) + 1))
        content += number(2, offset_ps) if offset_ps else b""
        content += number(3, duration_ps) if duration_ps else b""
        content += b"".join(self.stat(key, value, 4) for key, value in stats.items())
        return message(4, content + b"".join(more))

    def line(
        self, name: str, events: Sequence[bytes], *, number_: int = 1, timestamp_ns: int = 1000
    ) -> None:
        """Add a timeline."""
        head = number(1, number_) + message(2, name) + number(3, timestamp_ns)
        self.lines.append(head + b"".join(events))

    def plane_stat(self, name: str, value: Stat) -> None:
        """Add a stat of the plane itself."""
        self.stats.append(self.stat(name, value, 6))

    def encode(self) -> bytes:
        """Encode the plane as a field of the space."""
        content = message(2, self.name) + b"".join(message(3, line) for line in self.lines)
        for tag, names in ((4, self.events), (5, self.stat_names)):
            for text, key in names.items():
                value = number(1, key) + message(2, text)
                content += message(tag, number(1, key) + message(2, value))
        return message(1, content + b"".join(self.stats))


def gpu(*events: str, device: int = 0) -> PlaneWriter:
    """A GPU with one kernel a microsecond on stream 7 for each name."""
    plane = PlaneWriter(f"/device:GPU:{device}")
    plane.line(
        "Stream #7(Kernel)",
        [
            plane.event(name, i * 1_000_000, 500_000, correlation_id=i + 1)
            for i, name in enumerate(events)
        ],
    )
    return plane


def write(path: Path, *planes: PlaneWriter) -> Path:
    """Write a space and return its path."""
    path.write_bytes(b"".join(plane.encode() for plane in planes))
    return path


def trace_of(path: Path) -> Trace:
    """Read a file with the XPlane reader."""
    return read(path, silent)


def accounted(trace: Trace) -> int:
    """Return the rows of the event tables and what the ledger counts as not kept."""
    rows = sum(
        trace.tables[name].height for name in ("activities", "calls", "ops", "ranges", "memory")
    )
    return rows + int(trace.tables.ledger.filter(~trace.tables.ledger["kept"])["count"].sum())


def on_another_host(content: bytes, host: str, later_ns: int) -> bytes:
    """Return a recording as it would be of another host, whose profiler began ``later_ns`` later.

    Its lines count from then; when that was, in Unix time, is a stat of the file.
    """
    space = read_space(Buffer.of([content]))
    (began,) = [
        value for plane in space.planes if (value := plane.stats().get("profile_start_time"))
    ]
    (name,) = space.hostnames
    assert isinstance(began, int)
    for old, new in (
        (number(3, began), number(3, began + later_ns)),
        (message(4, name), message(4, host)),
    ):
        assert content.count(old) == 1
        content = content.replace(old, new)
    return content
