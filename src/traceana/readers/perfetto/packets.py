"""The packets of a Perfetto trace, in the order of the file: what they hold, and when it was.

Packets are written by sequences (``trusted_packet_sequence_id``). A number in a packet stands for a
text that an earlier packet of its sequence defined, until the sequence clears what it defined.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from traceana.readers.messages import Messages, message_classes
from traceana.readers.source import ByteSource
from traceana.readers.xplane.wire import LENGTH, Buffer, WireError, fields

_MESSAGES: Final[Messages] = {
    "TracePacket": {
        "clocks": (6, "ClockSnapshot"),
        "timestamp": (8, "uint64"),
        "sequence": (10, "uint32"),
        "event": (11, "TrackEvent"),
        "interned": (12, "InternedData"),
        "flags": (13, "uint32"),
        "cleared": (41, "bool"),
        "dropped": (42, "uint32"),
        "compressed": (50, "bytes"),
        "gpu_counters": (52, "GpuCounterEvent"),
        "stage": (53, "GpuRenderStageEvent"),
        "clock": (58, "uint32"),
        "defaults": (59, "TracePacketDefaults"),
        "track": (60, "TrackDescriptor"),
        "first": (87, "bool"),
        "zstd_compressed": (133, "bytes"),
        # What the system was doing, which is only counted.
        "ftrace_events": (1, "bytes"),
        "process_tree": (2, "bytes"),
        "chrome_events": (5, "bytes"),
        "sys_stats": (7, "bytes"),
        "process_stats": (9, "bytes"),
        "profile_packet": (37, "bytes"),
        "battery": (38, "bytes"),
        "android_log": (39, "bytes"),
        "power_rails": (40, "bytes"),
        "heap_graph": (56, "bytes"),
        "graphics_frame_event": (57, "bytes"),
        "vulkan_memory_event": (62, "bytes"),
        "gpu_log": (63, "bytes"),
        "vulkan_api_event": (65, "bytes"),
        "perf_sample": (66, "bytes"),
        "gpu_mem_total_event": (71, "bytes"),
        "frame_timeline_event": (76, "bytes"),
        "statsd_atom": (84, "bytes"),
        "network_packet": (88, "bytes"),
        "etw_events": (95, "bytes"),
        "surfaceflinger_layers_snapshot": (93, "bytes"),
    },
    "TrackEvent": {
        "category_iids": (3, ["uint64"]),
        "annotations": (4, ["bytes"]),
        "legacy": (6, "LegacyEvent"),
        "type": (9, "uint64"),
        "name_iid": (10, "uint64"),
        "track": (11, "uint64"),
        "categories": (22, ["bytes"]),
        "name": (23, "bytes"),
        "flows_old": (36, ["uint64"]),
        "ending_flows_old": (42, ["uint64"]),
        "flows": (47, ["fixed64"]),
        "ending_flows": (48, ["fixed64"]),
        "launched": (3000, "GpuCorrelation"),
    },
    "LegacyEvent": {"phase": (2, "int32"), "duration_us": (3, "int64")},
    "GpuCorrelation": {"stages": (1, ["uint64"])},
    "DebugAnnotation": {
        "name_iid": (1, "uint64"),
        "bool": (2, "bool"),
        "uint": (3, "uint64"),
        "int": (4, "int64"),
        "double": (5, "double"),
        "string": (6, "bytes"),
        "pointer": (7, "uint64"),
        "nested": (8, "NestedValue"),
        "json": (9, "bytes"),
        "name": (10, "bytes"),
        "entries": (11, ["DebugAnnotation"]),
        "values": (12, ["DebugAnnotation"]),
        "string_iid": (17, "uint64"),
    },
    "NestedValue": {
        "type": (1, "uint64"),
        "keys": (2, ["bytes"]),
        "entries": (3, ["NestedValue"]),
        "values": (4, ["NestedValue"]),
        "int": (5, "int64"),
        "double": (6, "double"),
        "bool": (7, "bool"),
        "string": (8, "bytes"),
    },
    "InternedData": {
        "categories": (1, ["Interned"]),
        "names": (2, ["Interned"]),
        "annotations": (3, ["Interned"]),
        "stages": (24, ["InternedStage"]),
        "strings": (29, ["Interned"]),
        "kernels": (1000, ["InternedKernel"]),
        "arguments": (1001, ["Interned"]),
    },
    "Interned": {"iid": (1, "uint64"), "text": (2, "bytes")},
    "InternedStage": {"iid": (1, "uint64"), "text": (2, "bytes"), "category": (4, "uint64")},
    "InternedKernel": {"iid": (1, "uint64"), "text": (2, "bytes"), "demangled": (3, "bytes")},
    "TrackDescriptor": {
        "uuid": (1, "uint64"),
        "name": (2, "bytes"),
        "process": (3, "ProcessDescriptor"),
        "thread": (4, "ThreadDescriptor"),
        "parent": (5, "uint64"),
    },
    "ProcessDescriptor": {"pid": (1, "int32")},
    "ThreadDescriptor": {"pid": (1, "int32"), "tid": (2, "int64")},
    "TracePacketDefaults": {"event": (11, "TrackEventDefaults"), "clock": (58, "uint32")},
    "TrackEventDefaults": {"track": (11, "uint64")},
    "ClockSnapshot": {"clocks": (1, ["Clock"])},
    "Clock": {
        "id": (1, "uint32"),
        "timestamp": (2, "uint64"),
        "incremental": (3, "bool"),
        "unit_ns": (4, "uint64"),
    },
    "GpuCounterEvent": {"counters": (2, ["GpuCounter"])},
    "GpuCounter": {"id": (1, "uint32")},
    "GpuRenderStageEvent": {
        "id": (1, "uint64"),
        "duration": (2, "uint64"),
        "queue_old": (3, "int32"),
        "stage_old": (4, "int32"),
        "context": (5, "uint64"),
        "extra": (6, ["bytes"]),
        "specifications": (7, "Specifications"),
        "gpu": (11, "int32"),
        "queue": (13, "uint64"),
        "stage": (14, "uint64"),
        "name": (17, "bytes"),
        "waits": (18, ["uint64"]),
        "kernel": (19, "uint64"),
        "name_iid": (20, "uint64"),
        "launch": (21, "bytes"),
    },
    "ExtraData": {"name": (1, "bytes"), "value": (2, "bytes")},
    "Specifications": {"stages": (3, ["Description"])},
    "Description": {"name": (1, "bytes")},
    "Launch": {
        "grid": (1, "Dim3"),
        "block": (2, "Dim3"),
        "arguments": (3, ["LaunchArgument"]),
    },
    "Dim3": {"x": (1, "uint32"), "y": (2, "uint32"), "z": (3, "uint32")},
    "LaunchArgument": {
        "name_iid": (1, "uint64"),
        "name": (2, "bytes"),
        "int": (3, "int64"),
        "uint": (4, "uint64"),
    },
}
"""Fields that are read. Numbers are those of ``protos/perfetto/trace``; texts are bytes, since they
may not be UTF-8. Annotations are bytes too: most are equal to earlier ones, and decoded once."""
_COUNTED: Final = frozenset(
    name for name, (_, kind) in _MESSAGES["TracePacket"].items() if kind == "bytes"
) - {"compressed", "zstd_compressed"}
_PACKET: Final = 1
_CLEARED: Final = 1
"""SEQ_INCREMENTAL_STATE_CLEARED: numbers of texts begin again."""
_MOST_INFLATED: Final = 64 << 20
"""Bytes of one compressed packet; Perfetto packs less than a megabyte into one."""
_LARGEST: Final = 64 << 20
"""Bytes of one packet: PyTorch writes all names of a trace into one."""
_MOST_DECODED: Final = 1 << 16
"""Decoded annotations of one sequence that are kept."""
_DEEPEST: Final = 2
_MOST_ANCESTORS: Final = 64
"""Tracks above a track that are looked at: in a damaged file a track may be above itself."""

REALTIME: Final = 1
_BOOTTIME: Final = 6
_OF_SEQUENCES: Final = range(64, 128)
"""Clocks that each sequence defines for itself."""


Decoded = TypeVar("Decoded")


class Packet(NamedTuple):
    """One packet: its message, its sequence, and its time (ns), None without a known one."""

    message: Any
    sequence: PacketSequence
    time: int | None


class Argument(NamedTuple):
    """An argument of an event: its name, its value, and both as JSON."""

    name: str
    value: Any
    json: str

    @classmethod
    def of(cls, name: str, value: Any) -> Argument:
        """Return the argument of a name and a value of JSON."""
        encode = msgspec.json.encode
        return cls(name, value, f"{encode(name).decode()}:{encode(value).decode()}")


class PacketSequence:
    """What the packets of one sequence refer to."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.clear()

    def clear(self) -> None:
        """Forget the texts and defaults."""
        self.texts: dict[str, dict[int, str]] = {kind: {} for kind in _MESSAGES["InternedData"]}
        """By kind and number."""
        self.compute_stages: set[int] = set()
        """Numbers of the render stages that the specification says to compute."""
        self.track = 0
        self.clock = _BOOTTIME
        self._decoded: dict[tuple[Any, bytes], Any] = {}

    def define(self, interned: Any) -> None:
        """Take the texts that a packet defines."""
        self._decoded.clear()
        for field, definitions in interned.ListFields():
            texts = self.texts[field.name]
            for definition in definitions:
                texts[definition.iid] = text(definition.text)
        for kernel in interned.kernels:
            if kernel.demangled:
                self.texts["kernels"][kernel.iid] = text(kernel.demangled)
        self.compute_stages |= {
            stage.iid for stage in interned.stages if stage.category == _COMPUTE
        }

    def decoded(self, content: bytes, decode: Callable[[bytes], Decoded]) -> Decoded:
        """Return what ``decode`` makes of ``content``, of equal content the same.

        It may depend on the texts of the sequence.
        """
        value: Decoded | None = self._decoded.get((decode, content))
        if value is None:
            if len(self._decoded) > _MOST_DECODED:
                self._decoded.clear()
            value = self._decoded[decode, content] = decode(content)
        return value

    def annotation(self, content: bytes) -> Argument:
        """Return a debug annotation of a track event. Raises ``DecodeError``."""
        annotation = message_class("DebugAnnotation").FromString(content)
        return Argument.of(self._name(annotation), self._value(annotation))

    def launch(self, content: bytes) -> list[Argument]:
        """Return the launch of a render stage as Kineto's arguments. Raises ``DecodeError``."""
        launch = message_class("Launch").FromString(content)
        values: dict[str, Any] = {}
        for argument in launch.arguments:
            name = self.texts["arguments"].get(argument.name_iid, text(argument.name))
            values[name] = argument.uint if argument.HasField("uint") else argument.int
        args = {
            name: [size.x, size.y, size.z]
            for name, size in (("grid", launch.grid), ("block", launch.block))
            if launch.HasField(name)
        }
        if "registers_per_thread" in values:
            args["registers per thread"] = values["registers_per_thread"]
        # The sum would look the same with one part alone.
        if "shared_mem_static" in values and "shared_mem_dynamic" in values:
            args["shared memory"] = values["shared_mem_static"] + values["shared_mem_dynamic"]
        return [Argument.of(name, value) for name, value in args.items()]

    def _name(self, annotation: Any) -> str:
        if annotation.name_iid:
            return self.texts["annotations"].get(annotation.name_iid, "")
        return text(annotation.name)

    def _value(self, annotation: Any) -> Any:
        for field, value in annotation.ListFields():
            match field.name:
                case "name" | "name_iid":
                    continue
                case "string":
                    return text(value)
                case "string_iid":
                    return self.texts["strings"].get(value)
                case "values":
                    return [self._value(entry) for entry in value]
                case "entries":
                    return {self._name(entry): self._value(entry) for entry in value}
                case "nested":
                    return _nested(value)
                case "json":
                    return _json(value)
                case _:
                    return value
        # PyTorch writes an empty list as an annotation without a value.
        return []


_COMPUTE: Final = 2
"""InternedGpuRenderStageSpecification.RenderStageCategory"""
_DICT, _ARRAY = 1, 2
"""NestedValue.NestedType"""


def _nested(value: Any) -> Any:
    if value.type == _DICT:
        return dict(zip(map(text, value.keys), map(_nested, value.entries), strict=False))
    if value.type == _ARRAY:
        return [_nested(element) for element in value.values]
    for field, leaf in value.ListFields():
        if field.name in ("int", "double", "bool"):
            return leaf
        if field.name == "string":
            return text(leaf)
    return None


def _json(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text(content)


def text(content: bytes) -> str:
    """Return ``content`` as text; bytes that are not UTF-8 become U+FFFD."""
    return content.decode("utf-8", "replace")


class Track(NamedTuple):
    """A track: its name, and the process and thread that it is of, null for others."""

    name: str
    process: int | None
    thread: int | None
    parent: int


class Packets:
    """The packets of a file, and what they describe: tracks, clocks.

    After :meth:`read`, ``malformed`` counts packets that cannot be decoded, ``counts`` packets
    without events of a program or a GPU by what they hold, and ``truncated`` is whether the file
    ends within a packet.
    """

    def __init__(self) -> None:
        self.malformed = self.dropped = self.zstd = 0
        self.truncated = False
        self.counts: Counter[str] = Counter()
        self.tracks: dict[int, Track] = {}
        self._sequences: dict[int, PacketSequence] = {}
        self._clocks = _Clocks()

    @property
    def base_ns(self) -> int | None:
        """The Unix time of the trace's time 0, None where no clock of that is recorded."""
        offset = self._clocks.offset(REALTIME)
        return None if offset is None else -offset

    def place(self, uuid: int) -> tuple[int | None, int | None]:
        """Return (process, thread) of a track, of its ancestors where it is of none."""
        process = thread = None
        for _ in range(_MOST_ANCESTORS):
            if (track := self.tracks.get(uuid)) is None:
                break
            process = track.process if process is None else process
            thread = track.thread if thread is None else thread
            uuid = track.parent
        return process, thread

    def read(self, source: ByteSource) -> Iterator[Packet]:
        """Yield the packets of ``source``, those of compressed packets in their place."""
        rest = b""
        for block in source.blocks():
            content = rest + block if rest else block
            at = yield from self._packets(content)
            if at is None or len(content) - at > _LARGEST:
                self.truncated = True
                return
            rest = content[at:]
        self.truncated |= bool(rest)

    def _packets(self, content: bytes, depth: int = 0) -> Generator[Packet, None, int | None]:
        """Yield the whole packets of ``content``; return where the rest begins.

        None where that is no packet: a length that is damaged is like that of a packet that the end
        of the file cuts, and what follows it has no boundaries.
        """
        from google.protobuf.message import DecodeError

        decode = message_class("TracePacket").FromString
        buffer = Buffer.of([content])
        at = 0
        try:
            for field in fields(buffer, 0, buffer.size):
                is_packet = field.number == _PACKET and field.wire == LENGTH
                if field.cut:
                    return at if is_packet or not field.number else None
                if not is_packet:
                    return None
                at = field.end
                if field.start == field.end:
                    continue
                try:
                    message = decode(content[field.start : field.end])
                except DecodeError:
                    self.malformed += 1
                    continue
                yield from self._taken(message, depth)
        except WireError:
            return None
        return at

    def _taken(self, message: Any, depth: int) -> Iterator[Packet]:
        """Yield ``message``, or the packets that it compresses."""
        is_event = message.HasField("event") or message.HasField("stage")
        if not is_event and message.compressed and depth < _DEEPEST:
            yield from self._inflated(message.compressed, depth)
            return
        sequence = self._sequences.get(message.sequence)
        if sequence is None:
            sequence = self._sequences[message.sequence] = PacketSequence(message.sequence)
        elif message.dropped and not message.first:
            self.dropped += 1
        if message.flags & _CLEARED or message.cleared:
            sequence.clear()
        if message.HasField("defaults"):
            defaults = message.defaults
            sequence.clock = defaults.clock or sequence.clock
            sequence.track = defaults.event.track or sequence.track
        if message.HasField("interned"):
            sequence.define(message.interned)
        if is_event:
            pass
        elif message.HasField("clocks"):
            self._clocks.take(message.clocks.clocks, sequence.number)
        elif message.HasField("track"):
            self._describe(message.track)
        else:
            self.zstd += message.HasField("zstd_compressed")
            names = (field.name for field, _ in message.ListFields())
            self.counts.update(name for name in names if name in _COUNTED)
        time = None
        if message.HasField("timestamp"):
            clock = message.clock or sequence.clock
            time = self._clocks.time(message.timestamp, clock, sequence.number)
        yield Packet(message, sequence, time)

    def _describe(self, track: Any) -> None:
        owner = track.thread if track.HasField("thread") else track.process
        self.tracks[track.uuid] = Track(
            text(track.name),
            owner.pid if owner.HasField("pid") else None,
            track.thread.tid if track.thread.HasField("tid") else None,
            track.parent,
        )

    def _inflated(self, compressed: bytes, depth: int) -> Iterator[Packet]:
        try:
            inflater = zlib.decompressobj()
            content = inflater.decompress(compressed, _MOST_INFLATED)
            is_whole = inflater.eof
        except zlib.error:
            content, is_whole = b"", False
        end = yield from self._packets(content, depth + 1)
        self.malformed += not is_whole or end != len(content)


class _Clocks:
    """The clocks of packets, as one: that of the first packet or snapshot with a time.

    A snapshot has the times of several clocks at one moment.
    """

    def __init__(self) -> None:
        self._clocks: dict[tuple[int, int], _Clock] = {}
        """By (sequence, clock); the sequence is 0 for clocks of the system."""

    def offset(self, clock: int) -> int | None:
        """Return what is to be added to a time of a clock of the system (ns)."""
        state = self._clocks.get((0, clock))
        return None if state is None else state.offset

    def take(self, clocks: Any, sequence: int) -> None:
        """Take a snapshot."""
        keyed = [(_key(clock.id, sequence), clock) for clock in clocks]
        related = [(key, clock) for key, clock in keyed if key in self._clocks]
        if not keyed or (self._clocks and not related):
            return
        key, clock = min(related or keyed, key=lambda entry: (entry[0][1] != _BOOTTIME, entry[0]))
        offset = self._clocks[key].offset if related else 0
        now = clock.timestamp * (clock.unit_ns or 1) + offset
        for key, clock in keyed:
            unit = clock.unit_ns or 1
            self._clocks[key] = _Clock(
                now - clock.timestamp * unit, unit, clock.timestamp if clock.incremental else None
            )

    def time(self, timestamp: int, clock: int, sequence: int) -> int | None:
        """Return a packet's time (ns), None on a clock that no snapshot has related to others."""
        key = _key(clock, sequence)
        state = self._clocks.get(key)
        if state is None:
            if self._clocks:
                return None
            state = self._clocks[key] = _Clock(0, 1, None)
        if state.last is not None:
            state.last = timestamp = state.last + timestamp
        time = timestamp * state.unit + state.offset
        return time if abs(time) < _FARTHEST else None


_FARTHEST: Final = 1 << 63


class _Clock(msgspec.Struct):
    """A clock: ns to add to its times, ns of a unit, and its last time where times are steps."""

    offset: int
    unit: int
    last: int | None


def _key(clock: int, sequence: int) -> tuple[int, int]:
    return sequence if clock in _OF_SEQUENCES else 0, clock


@cache
def _classes() -> dict[str, Any]:
    return message_classes("perfetto", _MESSAGES)


def message_class(name: str) -> Any:
    """Return the class of a message that a packet holds as bytes."""
    return _classes()[name]
