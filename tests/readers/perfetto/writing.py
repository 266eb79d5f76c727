"""Writes Perfetto traces with the classes of Perfetto's own wheel, as PyTorch's source does it.

The sources are ``torch/profiler/_cuspy/trace.py`` and ``cuspy_pftrace.cpp`` below
``torch/csrc/profiler/cuspy``.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from tests.readers.kineto.writing import Event
from tests.readers.rocprof.perfetto import message

BASE: Final = 1_700_000_000 * 10**9
"""Unix time of the file's time 0 (ns)."""
CLEARED: Final = perfetto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDS_TEXTS: Final = perfetto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
BEGIN, END = perfetto.TrackEvent.TYPE_SLICE_BEGIN, perfetto.TrackEvent.TYPE_SLICE_END
INSTANT, COUNTER = perfetto.TrackEvent.TYPE_INSTANT, perfetto.TrackEvent.TYPE_COUNTER
DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
STAGES: Final = {
    "kernel": (1, "Kernel", 2),
    "gpu_memcpy": (2, "Memcpy", 0),
    "gpu_memset": (3, "Memset", 0),
    "gpu_user_annotation": (4, "Annotation", 0),
    "graph_event_node": (5, "EventRecord", 0),
    "graph_host_node": (6, "HostNode", 0),
}
"""Number, name and RenderStageCategory of PyTorch's render stages."""
_FIRST_STREAM: Final = 100
_UNSIGNED: Final = 0x7FFFFFFF
_KERNELS, _ARGUMENTS, _CORRELATION = 1000, 1001, 3000
"""Extension fields, which the wheel's classes lack."""
_NOT_EXTRA: Final = (
    *("grid", "block", "registers per thread", "shared memory"),
    # PyTorch writes neither direction nor memories of a copy.
    *("copy kind", "src kind", "dst kind"),
)


def nanoseconds(microseconds: float) -> int:
    """Return a time of a JSON file in ns."""
    return round(microseconds * 1000)


class Writer:
    """A trace of one sequence; ``interned``: whether texts are numbers from the first packet on."""

    def __init__(self) -> None:
        self.trace = perfetto.Trace()
        self._tracks: dict[tuple[Any, Any], int] = {}

    def packet(
        self, time: int | None = None, *, flags: int = NEEDS_TEXTS, sequence: int = 1
    ) -> Any:
        """Return a new packet."""
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = sequence
        packet.sequence_flags = flags
        if time is not None:
            packet.timestamp = time
        return packet

    def clocks(self, base: int = BASE) -> None:
        """Add the snapshot that relates the trace's clock to Unix time."""
        clocks = self.packet(base).clock_snapshot.clocks
        clocks.add(clock_id=6, timestamp=base)
        clocks.add(clock_id=1, timestamp=base)

    def track(self, pid: int, tid: int) -> int:
        """Return the track of a thread, which is described at its first use."""
        if (pid, tid) in self._tracks:
            return self._tracks[pid, tid]
        parent = self._tracks.get((pid, None))
        if parent is None:
            parent = self._tracks[pid, None] = len(self._tracks) + 1
            described = self.trace.packet.add().track_descriptor
            described.uuid = parent
            described.process.pid = pid & _UNSIGNED
            described.process.process_name = "python"
        uuid = self._tracks[pid, tid] = len(self._tracks) + 1
        described = self.trace.packet.add().track_descriptor
        described.uuid, described.parent_uuid = uuid, parent
        described.thread.pid, described.thread.tid = pid & _UNSIGNED, tid & _UNSIGNED
        described.thread.thread_name = f"thread {tid}"
        return uuid

    def event(self, type_: int, track: int, time: int) -> Any:
        """Return a new track event."""
        event = self.packet(time).track_event
        event.type, event.track_uuid = type_, track
        return event

    def slices(self, events: Iterable[Event], texts: Texts) -> None:
        """Add slices as PyTorch does: all begins, then all ends, in one order."""
        placed = [(event, self.track(event["pid"], event["tid"])) for event in events]
        for event, track in placed:
            begin = self.event(BEGIN, track, BASE + nanoseconds(event["ts"]))
            texts.describe(begin, event)
        for event, track in placed:
            self.event(END, track, BASE + nanoseconds(event["ts"]) + nanoseconds(event["dur"]))

    def write(self, path: Path) -> Path:
        """Write the trace, as gzip where the name ends so."""
        content = self.trace.SerializeToString()
        path.write_bytes(gzip.compress(content, 1) if path.name.endswith(".gz") else content)
        return path


class Texts:
    """The numbers of texts, in one packet of definitions at the beginning."""

    def __init__(self, packet: Any) -> None:
        packet.sequence_flags = CLEARED
        self.interned = packet.interned_data
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, kind: str, text: str) -> int:
        """Return the number of a text of ``event_names``, ``event_categories`` …"""
        if (kind, text) not in self._numbers:
            self._numbers[kind, text] = len(self._numbers) + 1
            getattr(self.interned, kind).add(iid=len(self._numbers), name=text)
        return self._numbers[kind, text]

    def extension(self, field: int, number: int, *fields: tuple[int, int | bytes | str]) -> None:
        """Define a text of a field that the wheel's classes lack."""
        self.interned.MergeFromString(message((field, message((1, number), *fields))))

    def describe(self, begin: Any, event: Event) -> None:
        """Give a track event the name, category and arguments of an event of JSON."""
        begin.name_iid = self.number("event_names", event["name"])
        # PyTorch writes no category for these.
        if event.get("cat") and event["cat"] not in ("overhead", "cuda_sync"):
            begin.category_iids.append(self.number("event_categories", event["cat"]))
        for name, value in event.get("args", {}).items():
            annotate(begin.debug_annotations.add(name=name), value)


def annotate(annotation: Any, value: Any) -> None:
    """Set the value of an annotation as PyTorch does with a value of JSON."""
    match value:
        case bool():
            annotation.bool_value = value
        case int() if value >= 1 << 63:
            annotation.uint_value = value
        case int():
            annotation.int_value = value
        case float():
            annotation.double_value = value
        case str():
            annotation.string_value = value
        case dict():
            for name, element in value.items():
                annotate(annotation.dict_entries.add(name=name), element)
        case list():
            for element in value:
                annotate(annotation.array_values.add(), element)
        case _:
            annotation.string_value = "null"


def write_pytorch(
    path: Path, events: list[Event], waits: dict[int, list[int]] | None = None
) -> Path:
    """Write the events of Kineto's JSON as PyTorch's own profiler writes ``.pftrace``.

    ``waits``: the places among the device events that one of them waited for. Raises ``ValueError``
    on events that are neither slices nor device work.
    """
    work = [event for event in events if event["cat"] in STAGES]
    slices = [event for event in events if event["cat"] not in STAGES]
    if any(event["ph"] != "X" for event in events):
        raise ValueError("only complete events")
    writer = Writer()
    writer.clocks()
    texts = Texts(writer.packet(flags=CLEARED))
    calls = ("cuda_runtime", "cuda_driver")
    groups = (*calls, "overhead", "cuda_sync")
    writer.slices((event for event in slices if event["cat"] not in groups), texts)
    launched: dict[int, list[int]] = {}
    for number, event in enumerate(work, 1):
        launched.setdefault(event["args"].get("correlation", 0), []).append(number)
    for group in groups:
        first = len(writer.trace.packet)
        writer.slices((event for event in slices if event["cat"] == group), texts)
        for packet in writer.trace.packet[first:]:
            for entry in packet.track_event.debug_annotations:
                if (
                    entry.name == "correlation"
                    and entry.int_value in launched
                    and group != "cuda_sync"
                ):
                    stages = [(1, number) for number in launched[entry.int_value]]
                    link = message((_CORRELATION, message(*stages)))
                    packet.track_event.MergeFromString(link)
    render_stages(writer, texts, work, waits or {})
    return writer.write(path)


def render_stages(
    writer: Writer, texts: Texts, work: list[Event], waits: dict[int, list[int]]
) -> None:
    """Add device work as render stages, whose ends are cut where the next of the stream begins."""
    ends = [nanoseconds(event["ts"]) + nanoseconds(event["dur"]) for event in work]
    last: dict[tuple[int, int], int] = {}
    for place in sorted(range(len(work)), key=lambda place: nanoseconds(work[place]["ts"])):
        event = work[place]
        if event["cat"] == "gpu_user_annotation":
            continue
        lane = event["pid"], event["tid"]
        start = nanoseconds(event["ts"])
        if lane in last:
            ends[last[lane]] = max(
                nanoseconds(work[last[lane]]["ts"]), min(ends[last[lane]], start)
            )
        last[lane] = place
    lanes = sorted({(event["pid"], event["tid"]) for event in work})
    for number, name, category in STAGES.values():
        texts.interned.gpu_specifications.add(iid=number, name=name, category=category)
    for number, (_, stream) in enumerate(lanes, _FIRST_STREAM):
        texts.interned.gpu_specifications.add(iid=number, name=f"[{stream:02d}] stream {stream}")
    texts.interned.graphics_contexts.add(iid=1, pid=100)
    texts.extension(_ARGUMENTS, 1, (2, "registers_per_thread"))
    texts.extension(_ARGUMENTS, 2, (2, "shared_mem_dynamic"))
    kernels: dict[str, int] = {}
    for place, event in enumerate(work):
        args = dict(event.get("args", {}))
        start = nanoseconds(event["ts"])
        stage = writer.packet(BASE + start).gpu_render_stage_event
        stage.event_id, stage.duration = place + 1, ends[place] - start
        stage.gpu_id, stage.context = event["pid"], 1
        stage.hw_queue_iid = _FIRST_STREAM + lanes.index((event["pid"], event["tid"]))
        stage.stage_iid = STAGES[event["cat"]][0]
        if event["cat"] in ("kernel", "gpu_user_annotation"):
            stage.name_iid = texts.number("event_names", event["name"])
        stage.event_wait_ids.extend(waited + 1 for waited in waits.get(place, []))
        if grid := args.get("grid"):
            kernel = kernels.setdefault(event["name"], len(kernels) + 1)
            if kernel == len(kernels):
                texts.extension(_KERNELS, kernel, (3, event["name"]))
            stage.kernel_iid = kernel
            for size, (x, y, z) in (
                (stage.launch.grid_size, grid),
                (stage.launch.workgroup_size, args["block"]),
            ):
                size.x, size.y, size.z = x, y, z
            stage.launch.args.add(name_iid=1, uint_value=args["registers per thread"])
        for name in ("device", "context", "stream"):
            if name in args:
                stage.extra_data.add(name=f"{name} id", value=str(args.pop(name)))
        for name, value in args.items():
            if name not in _NOT_EXTRA:
                stage.extra_data.add(name=name, value=str(value))
        for name, value in (("arch", "sm_70"), ("process_id", "100"), ("process_name", "python")):
            stage.extra_data.add(name=name, value=value)
