"""Reads Perfetto traces of rocprofv3 (``--output-format pftrace``) into the canonical tables.

Each activity is a slice whose beginning has all that is read in its debug annotations, times too:
those of the slice itself are rounded where kernels of a queue overlap. Names are interned: a number
stands for a text that an earlier packet of the same sequence defined.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.errors import NotATraceError
from traceana.readers.messages import Messages, message_classes
from traceana.readers.rocprof.assembly import assembled
from traceana.readers.rocprof.columns import PERFETTO, TEXTS, Kind, typed_rows
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Ledger, Trace, TraceMeta

_MESSAGES: Final[Messages] = {
    "TracePacket": {
        "sequence": (10, "uint32"),
        "event": (11, "TrackEvent"),
        "interned": (12, "InternedData"),
        "flags": (13, "uint32"),
        "compressed": (50, "bytes"),
        "track": (60, "TrackDescriptor"),
    },
    "TrackEvent": {
        "category_iids": (3, ["uint64"]),
        "annotations": (4, ["DebugAnnotation"]),
        "type": (9, "uint64"),
        "name_iid": (10, "uint64"),
        "track_uuid": (11, "uint64"),
        "categories": (22, ["bytes"]),
        "name": (23, "bytes"),
    },
    "DebugAnnotation": {
        "name_iid": (1, "uint64"),
        "unsigned": (3, "uint64"),
        "signed": (4, "int64"),
        "string": (6, "bytes"),
        "name": (10, "bytes"),
        "string_iid": (17, "uint64"),
    },
    "InternedData": {
        "categories": (1, ["Interned"]),
        "names": (2, ["Interned"]),
        "annotations": (3, ["Interned"]),
        "strings": (29, ["Interned"]),
    },
    "Interned": {"iid": (1, "uint64"), "text": (2, "bytes")},
    "TrackDescriptor": {
        "uuid": (1, "uint64"),
        "name": (2, "bytes"),
        "process": (3, "ProcessDescriptor"),
        "thread": (4, "ProcessDescriptor"),
    },
    "ProcessDescriptor": {"pid": (1, "int64")},
}
"""Names and numbers are those of ``perfetto_trace.proto``."""
_PACKET: Final = 0x0A
_BEGIN, _INSTANT, _COUNTER = 1, 3, 4
"""TrackEvent.Type"""
_CLEARED: Final = 1
"""SEQ_INCREMENTAL_STATE_CLEARED: numbers of texts begin again."""
_LARGEST: Final = 1 << 63
_MOST_INFLATED: Final = 64 << 20
_DEEPEST: Final = 2
_CATEGORIES: Final = {
    "kernel_dispatch": Kind.KERNELS,
    "memory_copy": Kind.COPIES,
    **dict.fromkeys(
        ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api"), Kind.CALLS
    ),
}
_STREAM: Final = re.compile(r"STREAM \[(\d+)\]")
_CELLS: Final = {annotation: cell for cell, annotation in PERFETTO.items()}


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a Perfetto trace that rocprofv3 wrote.

    Raises ``NotATraceError`` for traces of others, ``NotFoundError``.
    """
    source = ByteSource(path, progress)
    packets = _Packets()
    packets.take(b"".join(source.blocks()))
    rows = typed_rows(packets.rows())
    if not any(rows[kind].height for kind in (Kind.KERNELS, Kind.COPIES, Kind.CALLS)):
        raise NotATraceError(
            f"{path} is a Perfetto trace without activities of rocprofv3: pass the trace of its "
            "profiler, or rocprofv3's --output-format csv or rocpd"
        )
    ledger = Ledger()
    ledger.add("counter", packets.counters, table="-")
    ledger.add("instant", packets.instants, table="-")
    ledger.add("malformed", packets.malformed, table="-", detail="packets")
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    truncated = source.truncated or packets.truncated
    ledger.add("truncated", int(truncated), table="-", kept=True)
    meta = TraceMeta(
        source=str(path),
        format="rocprof",
        producer="AMD rocprofv3",
        truncated=truncated,
        bytes_read=source.bytes_read,
        bytes_total=source.bytes_total,
        events=packets.counters + packets.instants + packets.malformed,
        properties={"printed": "Perfetto"},
    )
    return assembled(meta, rows, ledger)


@cache
def _packet() -> Any:
    return message_classes("perfetto", _MESSAGES)["TracePacket"]


class _Texts:
    """The texts that the packets of one sequence have defined, by number."""

    def __init__(self) -> None:
        self.categories: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.annotations: dict[int, str] = {}
        self.strings: dict[int, str] = {}

    def add(self, interned: Any) -> None:
        for kind in ("categories", "names", "annotations", "strings"):
            texts = getattr(self, kind)
            for definition in getattr(interned, kind):
                texts[definition.iid] = _text(definition.text)


class _Packets:
    """The slices of the packets so far, and the packets that are not slices."""

    def __init__(self) -> None:
        self.counters = self.instants = self.malformed = 0
        self.truncated = False
        self._slices: dict[str, list[dict[str, Any]]] = {}
        """Cells by category of the slice."""
        self._tracks: dict[int, str] = {}
        self._processes: set[int] = set()
        self._texts: dict[int, _Texts] = {}
        """By sequence of packets."""

    def take(self, content: bytes, depth: int = 0) -> None:
        """Take the packets of ``content``, which may hold others compressed."""
        from google.protobuf.message import DecodeError

        decode = _packet().FromString
        for message in self._messages(content):
            try:
                packet = decode(message)
            except DecodeError:
                self.malformed += 1
                continue
            if packet.compressed and depth < _DEEPEST:
                self._take_compressed(packet.compressed, depth)
            texts = self._texts.setdefault(packet.sequence, _Texts())
            if packet.flags & _CLEARED:
                texts = self._texts[packet.sequence] = _Texts()
            if packet.HasField("interned"):
                texts.add(packet.interned)
            if packet.HasField("track"):
                track = packet.track
                self._tracks[track.uuid] = _text(track.name)
                pids = (track.process.pid, track.thread.pid)
                self._processes |= {pid for pid in pids if pid > 0}
            if packet.HasField("event"):
                self._take_event(packet.event, texts)

    def _messages(self, content: bytes) -> Iterator[bytes]:
        """Yield the messages of packets, and note where the last one is cut."""
        at, end = 0, len(content)
        while at < end:
            tag = content[at]
            size, begin = _varint(content, at + 1)
            if tag != _PACKET or size is None or begin + size > end:
                # A length that is damaged ends beyond the file, as that of a cut packet does.
                self.truncated = True
                return
            at = begin + size
            yield content[begin:at]

    def _take_compressed(self, compressed: bytes, depth: int) -> None:
        try:
            inflater = zlib.decompressobj()
            content = inflater.decompress(compressed, _MOST_INFLATED)
            is_whole = inflater.eof
        except zlib.error:
            content, is_whole = b"", False
        self.malformed += not is_whole
        self.take(content, depth + 1)

    def _take_event(self, event: Any, texts: _Texts) -> None:
        self.counters += event.type == _COUNTER
        self.instants += event.type == _INSTANT
        if event.type != _BEGIN:
            return
        interned = filter(None, (texts.categories.get(iid) for iid in event.category_iids))
        inline = next(map(_text, event.categories), "")
        category = next(interned, inline).removeprefix("rocm_")
        name = texts.names.get(event.name_iid) if event.name_iid else _text(event.name)
        cells: dict[str, Any] = {"name": name or None, "_track": event.track_uuid}
        for annotation in event.annotations:
            title = texts.annotations.get(annotation.name_iid)
            if not annotation.name_iid:
                title = _text(annotation.name)
            if (cell := _CELLS.get(title or "")) is not None:
                cells[cell] = _value(annotation, texts)
        self._slices.setdefault(category, []).append(cells)

    def rows(self) -> Iterator[tuple[Kind, pl.DataFrame]]:
        """Yield the rows of each category, with the names of cells."""
        process = next(iter(self._processes)) if len(self._processes) == 1 else None
        for category, slices in self._slices.items():
            kind = _CATEGORIES.get(category, Kind.OTHER)
            name = {Kind.CALLS: "function", Kind.COPIES: "direction"}.get(kind, "name")
            columns = {
                cell: [_typed(cell, cells.get(cell)) for cells in slices] for cell in PERFETTO
            }
            columns[name] = [cells["name"] for cells in slices]
            columns["stream"] = [self._stream(cells["_track"]) for cells in slices]
            types = {cell: pl.String if cell in TEXTS else pl.Int64 for cell in columns}
            domain = category.removesuffix("_api").upper()
            yield (
                kind,
                pl.DataFrame(columns, schema=types).with_columns(
                    pl.lit(process, pl.Int64).alias("process"), pl.lit(domain).alias("domain")
                ),
            )

    def _stream(self, track: int) -> int | None:
        """Return the HIP stream in the name of ``track``."""
        match = _STREAM.search(self._tracks.get(track, ""))
        return int(match[1]) if match and len(match[1]) < 18 else None


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _value(annotation: Any, texts: _Texts) -> int | str | None:
    if annotation.HasField("unsigned"):
        return int(annotation.unsigned)
    if annotation.HasField("signed"):
        return int(annotation.signed)
    if annotation.string_iid:
        return texts.strings.get(annotation.string_iid)
    return _text(annotation.string) if annotation.HasField("string") else None


def _typed(cell: str, value: int | str | None) -> int | str | None:
    """Return ``value`` if it has the type of ``cell``, texts of any value; else None."""
    if cell in TEXTS:
        return None if value is None else str(value)
    return value if isinstance(value, int) and -_LARGEST <= value < _LARGEST else None


def _varint(content: bytes, at: int) -> tuple[int | None, int]:
    """Return the varint at ``at`` and the byte after it; None where there is none."""
    value = 0
    for shift, byte in enumerate(content[at : at + 10]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    return None, at
