"""Reads Perfetto traces of rocprofv3 (``--output-format pftrace``) into the canonical tables.

Each activity is a slice whose beginning has all that is read in its debug annotations, times too:
those of the slice itself are rounded where kernels of a queue overlap. Names are interned: a number
stands for a text that an earlier packet of the same sequence defined.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.errors import NotATraceError
from traceana.readers.messages import Messages, message_classes
from traceana.readers.rocprof.assembly import Rows, assembled, numbered, of_work, properties
from traceana.readers.rocprof.csv_tables import Kind
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Ledger, Tables, Trace, TraceMeta

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
_CELLS: Final = {
    # annotation: cell
    "begin_ns": "start",
    "end_ns": "end",
    "corr_id": "correlation",
    "tid": "thread",
    "agent": "agent",
    "src_agent": "source",
    "dst_agent": "destination",
    "copy_bytes": "bytes",
    "group_segment_size": "shared_memory",
}
_TEXT_CELLS: Final = ("name", "function", "direction", "domain", "agent", "source", "destination")


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a Perfetto trace that rocprofv3 wrote.

    Raises ``NotATraceError`` for traces of others, ``NotFoundError``.
    """
    source = ByteSource(path, progress)
    found = _Found()
    found.take(b"".join(source.blocks()))
    rows = found.rows()
    if not any(rows[kind].height for kind in (Kind.KERNELS, Kind.COPIES, Kind.CALLS)):
        raise NotATraceError(
            f"{path} is a Perfetto trace without activities of rocprofv3: pass the trace of its "
            "profiler, or rocprofv3's --output-format csv or rocpd"
        )
    ledger = Ledger()
    ledger.add("counter", found.counts["counter"], table="-")
    ledger.add("instant", found.counts["instant"], table="-")
    ledger.add("malformed", found.malformed, table="-", detail="packets")
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    truncated = source.truncated or found.truncated
    ledger.add("truncated", int(truncated), table="-", kept=True)
    tables, events = assembled(rows, ledger)
    tables["devices"] = of_work([], tables["activities"]["device"])
    meta = TraceMeta(
        source=str(path),
        format="rocprof",
        producer="AMD rocprofv3",
        truncated=truncated,
        bytes_read=source.bytes_read,
        bytes_total=source.bytes_total,
        events=events + found.counts.total() + found.malformed,
        properties={"printed": "Perfetto"} | properties(rows),
    )
    return Trace(meta, Tables(tables))


@cache
def _packet() -> Any:
    return message_classes("perfetto", _MESSAGES)["TracePacket"]


class _Texts:
    """The texts that the packets of one sequence have defined, by kind and number."""

    def __init__(self) -> None:
        self.categories: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.annotations: dict[int, str] = {}
        self.strings: dict[int, str] = {}

    def add(self, interned: Any) -> None:
        for kind in ("categories", "names", "annotations", "strings"):
            known = getattr(self, kind)
            for one in getattr(interned, kind):
                known[one.iid] = _text(one.text)


class _Found:
    """The slices of the packets so far."""

    def __init__(self) -> None:
        self.slices: dict[str, list[dict[str, Any]]] = {}
        self.counts: Counter[str] = Counter()
        self.malformed = 0
        self.truncated = False
        self._tracks: dict[int, str] = {}
        self._processes: set[int] = set()
        self._texts: dict[int, _Texts] = {}

    def take(self, content: bytes, depth: int = 0) -> None:
        """Take the packets of ``content``, which may hold others compressed."""
        from google.protobuf.message import DecodeError

        decode = _packet().FromString
        for packet in self._packets(content):
            try:
                one = decode(packet)
            except DecodeError:
                self.malformed += 1
                continue
            if one.compressed and depth < _DEEPEST:
                self._inflated(one.compressed, depth)
            self._one(one)

    def _packets(self, content: bytes) -> Iterator[bytes]:
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

    def _inflated(self, compressed: bytes, depth: int) -> None:
        try:
            inflater = zlib.decompressobj()
            content = inflater.decompress(compressed, _MOST_INFLATED)
            whole = inflater.eof
        except zlib.error:
            content, whole = b"", False
        self.malformed += not whole
        self.take(content, depth + 1)

    def _one(self, packet: Any) -> None:
        texts = self._texts.setdefault(packet.sequence, _Texts())
        if packet.flags & _CLEARED:
            texts = self._texts[packet.sequence] = _Texts()
        if packet.HasField("interned"):
            texts.add(packet.interned)
        if packet.HasField("track"):
            track = packet.track
            self._tracks[track.uuid] = _text(track.name)
            self._processes |= {one.pid for one in (track.process, track.thread) if one.pid > 0}
        if packet.HasField("event"):
            self._event(packet.event, texts)

    def _event(self, event: Any, texts: _Texts) -> None:
        if event.type == _COUNTER:
            self.counts["counter"] += 1
        elif event.type == _INSTANT:
            self.counts["instant"] += 1
        if event.type != _BEGIN:
            return
        category = next(
            (known for iid in event.category_iids if (known := texts.categories.get(iid))),
            next(map(_text, event.categories), ""),
        ).removeprefix("rocm_")
        name = texts.names.get(event.name_iid) if event.name_iid else _text(event.name)
        row: dict[str, Any] = {"name": name or None, "_track": event.track_uuid}
        for one in event.annotations:
            what = texts.annotations.get(one.name_iid) if one.name_iid else _text(one.name)
            if (cell := _CELLS.get(what or "")) is not None:
                row[cell] = _value(one, texts)
        self.slices.setdefault(category, []).append(row)

    def rows(self) -> Rows:
        """Return the rows by kind, with the names of cells."""
        parts: dict[Kind, list[pl.DataFrame]] = {kind: [] for kind in Kind}
        process = next(iter(self._processes)) if len(self._processes) == 1 else None
        for category, slices in self.slices.items():
            kind = _CATEGORIES.get(category, Kind.OTHER)
            named = {Kind.CALLS: "function", Kind.COPIES: "direction"}.get(kind, "name")
            columns = {
                cell: [_typed(cell, row.get(cell)) for row in slices] for cell in _CELLS.values()
            }
            columns[named] = [row["name"] for row in slices]
            columns["stream"] = [self._stream(row["_track"]) for row in slices]
            types = {name: pl.String if name in _TEXT_CELLS else pl.Int64 for name in columns}
            frame = pl.DataFrame(columns, schema=types)
            domain = category.removesuffix("_api").upper()
            parts[kind].append(
                frame.with_columns(
                    pl.lit(process, pl.Int64).alias("process"), pl.lit(domain).alias("domain")
                )
            )
        return {kind: numbered(frames) for kind, frames in parts.items()}

    def _stream(self, track: int) -> int | None:
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
    """Return ``value`` in the type of the column ``cell``, None where it has another."""
    if cell in _TEXT_CELLS:
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
