"""Writes Perfetto traces as rocprofv3 writes them: interned names, debug annotations, tracks."""

from __future__ import annotations

import zlib
from pathlib import Path

from tests.readers.rocprof import writing
from tests.readers.rocprof.writing import Kernel

Value = int | bytes | str
BEGIN, END, COUNTER = 1, 2, 4
CLEARED, NEEDS_TEXTS = 1, 2


def varint(value: int) -> bytes:
    """Return ``value`` as a varint."""
    value &= (1 << 64) - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def message(*fields: tuple[int, Value]) -> bytes:
    """Return a message of numbered fields."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            content = value.encode() if isinstance(value, str) else value
            parts.append(varint(number << 3 | 2) + varint(len(content)) + content)
    return b"".join(parts)


class Perfetto:
    """The packets of one trace; texts are interned at their first use."""

    def __init__(self, process: int = 800, *, interned: bool = True) -> None:
        self.packets: list[bytes] = []
        self._interned = interned
        self._iids: dict[tuple[int, str], int] = {}
        descriptor = message((1, 1), (3, message((1, process))))
        self._packet((60, descriptor), flags=CLEARED)

    def _packet(self, *fields: tuple[int, Value], flags: int = NEEDS_TEXTS) -> None:
        self.packets.append(message((8, 1234), (3, 1000), (10, 1), (13, flags), *fields))

    def track(self, uuid: int, name: str) -> None:
        """Add a track."""
        self._packet((60, message((1, uuid), (2, name))))

    def slice(
        self, category: str, name: str, track: int, start: int, end: int,
        annotations: dict[str, int | str],
    ) -> None:  # fmt: skip
        """Add the packets of the beginning and the end of a slice."""
        new: list[tuple[int, Value]] = []

        def text(kind: int, value: str) -> int:
            known = self._iids.get((kind, value))
            if known is None:
                known = self._iids[kind, value] = len(self._iids) + 1
                new.append((kind, message((1, known), (2, value))))
            return known

        fields: list[tuple[int, Value]] = [(9, BEGIN), (11, track)]
        if self._interned:
            fields += [(3, text(1, category)), (10, text(2, name))]
        else:
            fields += [(22, category), (23, name)]
        whole = {"begin_ns": start, "end_ns": end, "delta_ns": end - start, **annotations}
        for key, value in whole.items():
            named = (1, text(3, key)) if self._interned else (10, key)
            if isinstance(value, int):
                fields.append((4, message(named, (3, value))))
            elif self._interned:
                fields.append((4, message(named, (17, text(29, value)))))
            else:
                fields.append((4, message(named, (6, value))))
        event = message(*fields)
        interned = [(12, message(*new))] if new else []
        self._packet(*interned, (11, event))
        self._packet((11, message((9, END), (11, track))))

    def counter(self, track: int, value: int) -> None:
        """Add a sample of a counter."""
        self._packet((11, message((9, COUNTER), (11, track), (30, value))))

    def content(self, *, compressed: bool = False) -> bytes:
        """Return the file, its packets within a compressed one where asked."""
        whole = message(*((1, packet) for packet in self.packets))
        if not compressed:
            return whole
        head = message((1, self.packets[0]))
        return head + message((1, message((10, 1), (50, zlib.compress(whole)))))


def run(kernels: tuple[Kernel, ...] = writing.KERNELS, *, interned: bool = True) -> Perfetto:
    """Return the run that :mod:`tests.readers.rocprof.writing` writes as CSV."""
    trace = Perfetto(interned=interned)
    trace.track(10, "THREAD 0 (801)")
    trace.track(20, "COMPUTE AGENT [1] STREAM [2] (GPU)")
    trace.track(30, "COPY to AGENT [1] STREAM [3] (GPU)")
    for name, number, start, end in writing.HIP_CALLS:
        trace.slice("hip_api", name, 10, start, end, {"tid": 801, "kind": 4, "corr_id": number})
    for name, number, start, end in writing.MARKERS:
        trace.slice("marker_api", name, 10, start, end, {"tid": 801, "corr_id": number})
    for number, (direction, source, target, start, end) in enumerate(writing.COPIES):
        agents = {"src_agent": f"Agent-{source}", "dst_agent": f"Agent-{target}"}
        more: dict[str, int | str] = {"copy_bytes": 4096, "corr_id": 20 + number, "tid": 801}
        trace.slice("memory_copy", f"MEMORY_COPY_{direction}", 30, start, end, {**agents, **more})
    for one in kernels:
        trace.slice(
            "kernel_dispatch", one.name, 20, one.start, one.end,
            {"agent": f"Agent-{one.agent}", "corr_id": one.correlation, "queue": 1, "tid": 801,
             "group_segment_size": one.lds, "workgroup_size": 512, "grid_size": 4000},
        )  # fmt: skip
    trace.counter(40, 7)
    return trace


def pftrace(path: Path, trace: Perfetto) -> Path:
    """Write a trace."""
    path.write_bytes(trace.content())
    return path
