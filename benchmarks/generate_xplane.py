"""Makes a large XPlane file by repeating the events of a recorded one at later times."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.source import ROOT, SCRATCH, SHARED_TRACES

_PREFERRED: Final = SHARED_TRACES / "xplane" / "jax_conv_mi300.xplane.pb"
_PLANES: Final = 1
_LINES: Final = 3
_EVENTS: Final = 4
_OFFSET: Final = 2


def default_source() -> Path:
    """Return a GPU trace where one is available, else a fixture."""
    if _PREFERRED.exists():
        return _PREFERRED
    return ROOT / "fixtures" / "xplane" / "alexnet-cpu-keras.xplane.pb"


def fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yield (number, value, the field's bytes) of a message of varints and lengths."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = _varint(message, at)
        if tag & 7 == 1:
            at += 8
            yield tag >> 3, message[at - 8 : at], message[begin:at]
            continue
        value, at = _varint(message, at)
        if tag & 7 == 2:
            at += value
            yield tag >> 3, message[at - value : at], message[begin:at]
        else:
            yield tag >> 3, value, message[begin:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _encoded(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _message(number: int, content: bytes) -> bytes:
    return _encoded(number << 3 | 2) + _encoded(len(content)) + content


def _events(line: bytes) -> list[tuple[bytes, int, bytes]]:
    """Return each event as (fields before its offset, its offset, fields after it)."""
    found = []
    for number, event, _ in fields(line):
        if number == _EVENTS and isinstance(event, bytes):
            before, offset, behind = b"", 0, b""
            for field_number, value, field in fields(event):
                if field_number < _OFFSET:
                    before += field
                elif field_number == _OFFSET and isinstance(value, int):
                    offset = value
                else:
                    behind += field
            found.append((before, offset, behind))
    return found


def _repeated(line: bytes, times: int, later_ps: int) -> bytes:
    parts = [field for number, _, field in fields(line) if number < _EVENTS]
    tag, offset_tag = _encoded(_EVENTS << 3 | 2), _encoded(_OFFSET << 3)
    events = _events(line)
    for i in range(times):
        for before, offset, behind in events:
            content = before + offset_tag + _encoded(offset + i * later_ps) + behind
            parts += (tag, _encoded(len(content)), content)
    parts += [field for number, _, field in fields(line) if number > _EVENTS]
    return b"".join(parts)


def generate(source: Path, target: Path, size: int) -> int:
    """Write about ``size`` bytes to ``target``; return the number of events."""
    planes = [
        value
        for number, value, _ in fields(source.read_bytes())
        if number == _PLANES and isinstance(value, bytes)
    ]
    lines = [
        line
        for plane in planes
        for number, line, _ in fields(plane)
        if number == _LINES and isinstance(line, bytes)
    ]
    events = [_events(line) for line in lines]
    later = max(offset for each in events for _, offset, _ in each) + 10**9
    times = max(1, round(size / sum(map(len, lines))))
    with target.open("wb") as file:
        for plane in planes:
            parts = [
                _message(_LINES, _repeated(value, times, later))
                if number == _LINES and isinstance(value, bytes)
                else field
                for number, value, field in fields(plane)
            ]
            file.write(_message(_PLANES, b"".join(parts)))
    return times * sum(map(len, events))


def main() -> None:
    """Write the file and print its description as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate_xplane")
    parser.add_argument("--source", type=Path, default=default_source())
    parser.add_argument("--size", type=float, default=0.4, help="approximate GB")
    parser.add_argument("--scratch", type=Path, default=SCRATCH)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    target = options.scratch / f"{options.source.name.split('.')[0]}.{options.size:g}GB.xplane.pb"
    events = generate(options.source, target, int(options.size * 1e9))
    print(json.dumps({"path": str(target), "bytes": target.stat().st_size, "events": events}))


if __name__ == "__main__":
    main()
