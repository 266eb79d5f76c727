"""One reader of an XPlane file: ``python -m benchmarks.contender_xplane READER FILE``.

As ``contender.py``, it runs in any environment that has the reader's packages.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.contender import Work, run_reader

# message -> (field, number, type, repeated); of a type with a capital letter it is a message
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "XSpace": (("planes", 1, "XPlane", True),),
    "XPlane": (
        ("id", 1, "int64", False),
        ("name", 2, "string", False),
        ("lines", 3, "XLine", True),
        ("event_metadata", 4, "EventEntry", True),
        ("stat_metadata", 5, "StatEntry", True),
        ("stats", 6, "XStat", True),
    ),
    "EventEntry": (("key", 1, "int64", False), ("value", 2, "XEventMetadata", False)),
    "StatEntry": (("key", 1, "int64", False), ("value", 2, "XStatMetadata", False)),
    "XLine": (
        ("id", 1, "int64", False),
        ("name", 2, "string", False),
        ("timestamp_ns", 3, "int64", False),
        ("events", 4, "XEvent", True),
    ),
    "XEvent": (
        ("metadata_id", 1, "int64", False),
        ("offset_ps", 2, "int64", False),
        ("duration_ps", 3, "int64", False),
        ("stats", 4, "XStat", True),
    ),
    "XStat": (
        ("metadata_id", 1, "int64", False),
        ("double_value", 2, "double", False),
        ("uint64_value", 3, "uint64", False),
        ("int64_value", 4, "int64", False),
        ("str_value", 5, "string", False),
        ("bytes_value", 6, "bytes", False),
        ("ref_value", 7, "uint64", False),
    ),
    "XEventMetadata": (("id", 1, "int64", False), ("name", 2, "string", False)),
    "XStatMetadata": (("id", 1, "int64", False), ("name", 2, "string", False)),
}
_VALUES = ("double", "uint64", "int64", "str", "bytes", "ref")


def traceana_decode(path: str) -> tuple[Work, list[str]]:
    """Decode all events and their stats into columns, without tables."""
    buffers = import_module("traceana.readers.xplane.wire")
    sources = import_module("traceana.readers.source")
    spaces = import_module("traceana.readers.xplane.space")
    events = import_module("traceana.readers.xplane.events")

    def work() -> int:
        source = sources.ByteSource(Path(path))
        buffer = buffers.Buffer.of(source.blocks(), source.bytes_total)
        count, columns = 0, []
        for plane in spaces.read_space(buffer).planes:
            wanted = set(plane.stat_names.values())
            found = events.LineEvents(buffer, plane, plane.lines, wanted)
            columns += list(found)
            count += int(found.events)
        return count

    return work, ["traceana"]


def traceana_read(path: str) -> tuple[Work, list[str]]:
    """Read into the canonical tables."""
    read = import_module("traceana.readers.xplane.reader").read
    silent = import_module("traceana.readers.source").silent
    return lambda: int(read(Path(path), silent).meta.events), ["traceana"]


def protobuf_loop(path: str) -> tuple[Work, list[str]]:
    """Parse with generated classes (upb) and loop over events and stats, one tuple an event."""
    space = _message_class()

    def work() -> int:
        gc.disable()
        parsed = space.FromString(Path(path).read_bytes())
        rows = []
        for plane in parsed.planes:
            for line in plane.lines:
                for event in line.events:
                    stats = {
                        stat.metadata_id: getattr(stat, stat.WhichOneof("value"))
                        for stat in event.stats
                    }
                    start = line.timestamp_ns * 1000 + event.offset_ps
                    rows.append((event.metadata_id, start, event.duration_ps, stats))
        return len(rows)

    return work, ["protobuf"]


def protobuf_parse(path: str) -> tuple[Work, list[str]]:
    """Parse with generated classes, without reading a field."""
    space = _message_class()

    def work() -> int:
        parsed = space.FromString(Path(path).read_bytes())
        return sum(len(line.events) for plane in parsed.planes for line in plane.lines)

    return work, ["protobuf"]


def xprof_kernel_stats(path: str) -> tuple[Work, list[str]]:
    """Convert to xprof's table of kernels; it caches beside the file, so it gets a link."""
    convert = import_module("xprof.convert.raw_to_tool_data").xspace_to_tool_data

    def work() -> int:
        with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
            link = Path(folder, "host.xplane.pb")
            os.link(path, link)
            data, _ = convert([str(link)], "kernel_stats", {})
        return len(data)

    return work, ["xprof"]


def ignore(at: int) -> None:
    """Ignore progress."""


def _message_class() -> Any:
    descriptors = import_module("google.protobuf.descriptor_pb2")
    kinds = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
    for name, declared in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in declared:
            field = message.field.add(name=field_name, number=number)
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind[0].isupper():
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".x.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if name == "XStat" and field_name.removesuffix("_value") in _VALUES:
                field.oneof_index = 0
        if name == "XStat":
            message.oneof_decl.add(name="value")
    pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    factory = import_module("google.protobuf.message_factory")
    return factory.GetMessageClass(pool.FindMessageTypeByName("x.XSpace"))


WAYS: dict[str, Callable[[str], tuple[Work, list[str]]]] = {
    way.__name__: way
    for way in (
        traceana_decode,
        traceana_read,
        protobuf_loop,
        protobuf_parse,
        xprof_kernel_stats,
    )
}

if __name__ == "__main__":
    run_reader(WAYS)
