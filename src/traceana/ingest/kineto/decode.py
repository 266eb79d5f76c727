"""Kineto's events: the JSON fields that are read, and their decoding into frames, with msgspec.

Every generation of the format is covered by one struct: torch 1.7 wrote ``external id`` and ``Input
dims`` where later ones write ``External id`` and ``Input Dims``. Numbers may come as text (``"tid":
"stream 7"``, AMD's ``"bytes": "800"``): their fields here accept both, and each column is converted
to integers at once. Times stay raw text: a float64 of microseconds since the epoch has a step of
0.25 µs.

A decoder makes :class:`Columns` of JSON text: int64 nanoseconds on the file's clock, categories in
the file's spelling, rows in the order of the file.

Decodes Kineto's JSON events into column chunks, with msgspec. Each chunk's Python objects are freed
as soon as its columns exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec
import polars as pl
from msgspec import Raw, Struct
from msgspec import field as named

from traceana.ingest.chrome.event_decoder import Counted, EventDecoder, integers, to_nanoseconds

Number: TypeAlias = int | str | float | None
"""An integer as the trace spells it."""
ABSENT: Final = Raw(b"")


class Args(Struct, gc=False, frozen=True):
    """The ``args`` of an event of any category."""

    correlation: Number = None
    device: Number = None
    context: Number = None
    stream: Number = None
    bytes: Number = None
    size: Number = None  # AMD's memory calls
    # Three numbers of a kernel; Triton's launches on the host have a "grid" of any kind.
    grid: object = None
    block: object = None
    registers: Number = named(default=None, name="registers per thread")
    shared_memory: Number = named(default=None, name="shared memory")
    graph_node: Number = named(default=None, name="graph node id")
    event_stream: Number = named(default=None, name="wait_on_stream")
    event_correlation: Number = named(default=None, name="wait_on_cuda_event_record_corr_id")
    external: Number = named(default=None, name="External id")
    external_old: Number = named(default=None, name="external id")
    sequence: Number = named(default=None, name="Sequence number")
    forward_thread: Number = named(default=None, name="Fwd thread id")
    shapes: Raw = named(default=ABSENT, name="Input Dims")
    shapes_old: Raw = named(default=ABSENT, name="Input dims")
    types: Raw = named(default=ABSENT, name="Input type")
    strides: Raw = named(default=ABSENT, name="Input Strides")
    inputs: Raw = named(default=ABSENT, name="Concrete Inputs")
    module: str | None = named(default=None, name="Module Hierarchy")
    # What torch.cuda.graph's annotations add to the kernels of a CUDA graph: the module's path.
    annotation: object = None
    annotation_text: object = named(default=None, name="str")
    # Collectives; other events have a "dtype" of any kind, and annotations write numbers as text.
    message_elements: object = named(default=None, name="In msg nelems")
    message_type: object = named(default=None, name="dtype")
    collective: object = named(default=None, name="Collective name")
    group_size: object = named(default=None, name="Group size")
    output_elements: object = named(default=None, name="Out msg nelems")
    group_name: object = named(default=None, name="Process Group Name")
    group_description: object = named(default=None, name="Process Group Description")
    group_ranks: object = named(default=None, name="Process Group Ranks")
    collective_sequence: object = named(default=None, name="Seq")
    destination_rank: Number = named(default=None, name="Dst Rank")
    source_rank: Number = named(default=None, name="Src Rank")
    device_type: Number = named(default=None, name="Device Type")
    device_id: Number = named(default=None, name="Device Id")
    address: Number = named(default=None, name="Addr")
    memory_bytes: Number = named(default=None, name="Bytes")
    allocated: Number = named(default=None, name="Total Allocated")
    reserved: Number = named(default=None, name="Total Reserved")


NO_ARGS: Final = Args()


class Event(Struct, gc=False):
    """One element of ``traceEvents``."""

    ph: str
    name: str = ""
    cat: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    id: Number = None
    args: Args = NO_ARGS


_TEXT = pl.Categorical
_COMMON: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "category": _TEXT,
    "name": _TEXT,
    "pid": pl.Int64,
    "tid": pl.Int64,
    "start": pl.Int64,
    "duration": pl.Int64,
}

_GROUP: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "group_name": _TEXT,
    "group_description": _TEXT,
    "group_ranks": _TEXT,
    "group_size": pl.Int64,
    "collective_sequence": pl.Int64,
    "peer": pl.Int64,
}

FRAMES: Final[dict[str, dict[str, pl.DataType | type[pl.DataType]]]] = {
    "device": {
        **_COMMON,
        "device": pl.Int64,
        "context": pl.Int64,
        "stream": pl.Int64,
        "correlation": pl.Int64,
        "external": pl.Int64,
        "grid_x": pl.Int64,
        "grid_y": pl.Int64,
        "grid_z": pl.Int64,
        "block_x": pl.Int64,
        "block_y": pl.Int64,
        "block_z": pl.Int64,
        "registers": pl.Int64,
        "shared_memory": pl.Int64,
        "bytes": pl.Int64,
        "graph_node": pl.Int64,
        "event_stream": pl.Int64,
        "event_correlation": pl.Int64,
        "collective": _TEXT,
        **_GROUP,
        "output_bytes": pl.Int64,
        "annotation": _TEXT,
    },
    "call": {
        **_COMMON,
        "correlation": pl.Int64,
        "external": pl.Int64,
        "bytes": pl.Int64,  # AMD prints a copy's size on the call alone
    },
    "op": {
        **_COMMON,
        "external": pl.Int64,
        "sequence": pl.Int64,
        "forward_thread": pl.Int64,
        "input_shapes": pl.String,
        "input_types": pl.String,
        "input_strides": pl.String,
        "inputs": pl.String,
        "module": _TEXT,
    },
    # c10d's operator around the launch of a collective's kernel; also a row of "op".
    "launch": {"external": pl.Int64, **_GROUP},
    # Only c10d's annotations have shapes.
    "range": {**_COMMON, "input_shapes": pl.String, "input_types": pl.String},
    # Collectives of c10d's host backends, which Kineto writes as annotations.
    "host_collective": {
        **_COMMON,
        "external": pl.Int64,
        "input_shapes": pl.String,
        "input_types": pl.String,
        "inputs": pl.String,
    },
    "flow": {
        "category": _TEXT,
        "id": pl.Int64,
        "ends": pl.Boolean,  # false: the flow starts here
        "pid": pl.Int64,
        "tid": pl.Int64,
        "time": pl.Int64,
    },
    "memory": {
        "pid": pl.Int64,
        "tid": pl.Int64,
        "time": pl.Int64,
        "device_type": pl.Int64,
        "device": pl.Int64,
        "address": pl.Int64,
        "bytes": pl.Int64,
        "allocated": pl.Int64,
        "reserved": pl.Int64,
    },
}


class Columns(Counted):
    """The events of one stretch of the file, by frame."""

    frames: dict[str, list[pl.DataFrame]] = msgspec.field(
        default_factory=lambda: {name: [] for name in FRAMES}
    )

    def take(self, other: Columns) -> None:
        """Append another stretch."""
        self.add(other)
        for name, frames in other.frames.items():
            self.frames[name] += frames

    def frame(self, name: str) -> pl.DataFrame:
        """Return the rows of one frame so far."""
        frames: Sequence[pl.DataFrame] = self.frames[name]
        return pl.concat(frames) if frames else pl.DataFrame(schema=FRAMES[name])


_Columns = dict[str, pl.Series]

# Lower-case category of complete events -> frame.
COMPLETE: Final = {
    "kernel": "device",
    "gpu_memcpy": "device",
    "memcpy": "device",
    "gpu_memset": "device",
    "memset": "device",
    "cuda_sync": "device",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "xpu_runtime": "call",
    "xpu_driver": "call",
    "privateuse1_runtime": "call",
    "privateuse1_driver": "call",
    "mtia_runtime": "call",
    "glow_runtime": "call",
    "runtime": "call",
    "driver": "call",
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "range",
    "gpu_user_annotation": "range",
    "python_function": "range",
    "overhead": "range",
}

LAUNCH_FLOWS: Final = frozenset({"ac2g", "async", "async_cpu_to_gpu", "async_gpu"})
BACKENDS: Final = ("gloo:", "mpi:", "ucc:")
"""c10d's backends that run collectives on host threads. NCCL's collectives are kernels;
``nccl:all_reduce`` on the host is their launch."""

NCCL: Final = "nccl:"
LAUNCH: Final = "record_param_comms"
"""c10d's operator around the launch of a collective's kernel."""
MEMORY: Final = "[memory]"
"""The name of the allocator's events."""

# c10::ScalarType's names, and torch's.
ELEMENT_BYTES: Final = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64", "complex64"), 8),
    "complex128": 16,
    "Bool": 1,
    "Byte": 1,
    "Char": 1,
    "Float8_e4m3fn": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2": 1,
    "Float8_e5m2fnuz": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}


def columns_of(events: list[Event]) -> Columns:
    """Return the columns of ``events``."""
    # Event kinds of one frame share a list, so that a frame keeps the order of the file.
    frames: dict[str, list[Event]] = {}
    route: dict[tuple[str, str | None], list[Event]] = {}
    for event in events:
        key = event.ph, event.cat
        bucket = route.get(key)
        if bucket is None:
            frame = _frame_of(event.ph, (event.cat or "").lower())
            bucket = route[key] = [] if frame is None else frames.setdefault(frame, [])
        bucket.append(event)
    if ("X", "user_annotation") in route:
        frames["range"], collectives = _split_annotations(frames["range"])
        if collectives:
            frames["host_collective"] = collectives
    if launches := [event for event in frames.get("op", ()) if event.name == LAUNCH]:
        frames["launch"] = launches
    columns = Columns(events=len(events))
    instants = frames.pop("instant", [])
    for name, bucket in frames.items():
        columns.frames[name].append(pl.DataFrame(_SERIES[name](bucket), schema=FRAMES[name]))
    for name, extents in _extents([event.args for event in frames.get("device", ())]).items():
        columns.lose(name, sum(not isinstance(extent, list | None) for extent in extents))
    for (phase, category), bucket in route.items():
        frame = _frame_of(phase, (category or "").lower())
        if frame is None:
            leave_out(columns, phase, (category or "").lower(), len(bucket))
        elif frame == "instant":
            _instants(columns, instants)
            instants = []  # counted once, where the first category of them stands
    return columns


def _frame_of(phase: str, category: str) -> str | None:
    """Return the frame for events of a phase and lower-case category, None for events left out."""
    if phase == "X":
        return COMPLETE.get(category)
    if phase in ("i", "I"):
        return "instant"
    return "flow" if phase in ("s", "f") and category not in LAUNCH_FLOWS else None


def _split_annotations(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Return (annotations, host collectives), each in the order of the file.

    c10d records a host collective, with its tensors' shapes, from the time at which a backend
    thread starts it to its completion on all ranks; Kineto writes it as a ``user_annotation``.
    """
    kept: list[Event] = []
    collectives: list[Event] = []
    for event in events:
        is_one = event.cat == "user_annotation" and event.name.startswith(BACKENDS)
        (collectives if is_one else kept).append(event)
    return kept, collectives


def leave_out(columns: Columns, phase: str, category: str, events: int) -> None:
    """Count ``events`` of a phase and lower-case category that have no row."""
    match phase:
        case "X" if category == "trace":
            columns.count("span", "", events)
        case "s" | "t" | "f":
            launch = category in LAUNCH_FLOWS
            columns.count("launch_flow" if launch else "flow", category, events)
        case "M":
            columns.count("metadata", "", events)
        case "C":
            columns.count("counter", "", events)
        case _:
            columns.count("unknown_category", f"{phase} {category}".strip(), events)


def _instants(columns: Columns, events: list[Event]) -> None:
    memory = [event for event in events if event.name == MEMORY]
    if memory:
        columns.frames["memory"].append(pl.DataFrame(_memory(memory), schema=FRAMES["memory"]))
    if events:
        # The order of the reasons is that of the file, however it is cut.
        columns.count("instant", "", len(events) - len(memory))


def _complete(events: list[Event]) -> _Columns:
    # One conversion for both columns: a polars call takes as long as some thousand numbers.
    times = to_nanoseconds([event.ts for event in events] + [event.dur for event in events])
    return {
        "category": pl.Series([event.cat for event in events], dtype=pl.Categorical),
        "name": pl.Series([event.name for event in events], dtype=pl.Categorical),
        "pid": integers([event.pid for event in events]),
        "tid": integers([event.tid for event in events]),
        "start": times[: len(events)],
        "duration": times[len(events) :],
    }


def _device(events: list[Event]) -> _Columns:
    args = [event.args for event in events]
    messages, outputs = (
        integers([value if isinstance(value, int | str) else None for value in values])
        for values in (
            [arg.message_elements for arg in args],
            [arg.output_elements for arg in args],
        )
    )
    return {
        **_complete(events),
        "device": integers([arg.device for arg in args]),
        "context": integers([arg.context for arg in args]),
        "stream": integers([arg.stream for arg in args]),
        "correlation": integers([arg.correlation for arg in args]),
        "external": _external(events),
        "registers": integers([arg.registers for arg in args]),
        "shared_memory": integers([arg.shared_memory for arg in args]),
        "bytes": integers(
            [
                arg.bytes if arg.message_elements is None else _bytes(arg, elements)
                for arg, elements in zip(args, messages, strict=True)
            ]
        ),
        "output_bytes": integers(
            [_bytes(arg, elements) for arg, elements in zip(args, outputs, strict=True)]
        ),
        "graph_node": integers([arg.graph_node for arg in args]),
        "event_stream": integers([arg.event_stream for arg in args]),
        "event_correlation": integers([arg.event_correlation for arg in args]),
        "collective": _labels([arg.collective for arg in args]),
        "annotation": _labels(
            [arg.annotation_text if arg.annotation is None else arg.annotation for arg in args]
        ),
        **_group(args),
        **{
            f"{what}_{axis}": integers(
                [
                    extent[i] if isinstance(extent, list) and i < len(extent) else None
                    for extent in extents
                ]
            )
            for what, extents in _extents(args).items()
            for i, axis in enumerate("xyz")
        },
    }


def _extents(args: list[Args]) -> dict[str, list[object]]:
    return {"grid": [arg.grid for arg in args], "block": [arg.block for arg in args]}


def _group(args: list[Args]) -> _Columns:
    sizes, numbers = ([arg.group_size for arg in args], [arg.collective_sequence for arg in args])
    return {
        "group_name": _labels([arg.group_name for arg in args]),
        "group_description": _labels([arg.group_description for arg in args]),
        "group_ranks": _labels([arg.group_ranks for arg in args]),
        "group_size": integers([size if isinstance(size, int | str) else None for size in sizes]),
        "collective_sequence": integers(
            [number if isinstance(number, int) else None for number in numbers]
        ),
        "peer": integers(
            [
                arg.source_rank if arg.destination_rank is None else arg.destination_rank
                for arg in args
            ]
        ),
    }


def _labels(values: Sequence[object]) -> pl.Series:
    return pl.Series(
        [value if isinstance(value, str) else None for value in values], dtype=pl.Categorical
    )


def _launch(events: list[Event]) -> _Columns:
    return {"external": _external(events), **_group([event.args for event in events])}


def _bytes(args: Args, elements: int | None) -> int | None:
    """Return the bytes of ``elements`` of a collective's type, None where not recorded."""
    kind = args.message_type
    if elements is None or not isinstance(kind, str) or kind not in ELEMENT_BYTES:
        return None
    return elements * ELEMENT_BYTES[kind]


def _call(events: list[Event]) -> _Columns:
    return {
        **_complete(events),
        "correlation": integers([event.args.correlation for event in events]),
        "external": _external(events),
        "bytes": integers(
            [event.args.size if event.args.bytes is None else event.args.bytes for event in events]
        ),
    }


def _op(events: list[Event]) -> _Columns:
    args = [event.args for event in events]
    return {
        **_complete(events),
        "external": _external(events),
        "sequence": integers([arg.sequence for arg in args]),
        "forward_thread": integers([arg.forward_thread for arg in args]),
        "input_shapes": _texts([arg.shapes or arg.shapes_old for arg in args]),
        "input_types": _texts([arg.types for arg in args]),
        "input_strides": _texts([arg.strides for arg in args]),
        "inputs": _texts([arg.inputs for arg in args]),
        "module": pl.Series([arg.module or None for arg in args], dtype=pl.Categorical),
    }


def _range(events: list[Event]) -> _Columns:
    shaped = [event.args if event.name.startswith(NCCL) else NO_ARGS for event in events]
    return {
        **_complete(events),
        "input_shapes": _texts([arg.shapes for arg in shaped]),
        "input_types": _texts([arg.types for arg in shaped]),
    }


def _host_collective(events: list[Event]) -> _Columns:
    args = [event.args for event in events]
    return {
        **_complete(events),
        "external": _external(events),
        "input_shapes": _texts([arg.shapes for arg in args]),
        "input_types": _texts([arg.types for arg in args]),
        "inputs": _texts([arg.inputs for arg in args]),
    }


def _external(events: list[Event]) -> pl.Series:
    return integers(
        [
            event.args.external_old if event.args.external is None else event.args.external
            for event in events
        ]
    )


def _texts(raws: Sequence[Raw]) -> pl.Series:
    return pl.Series([str(raw, "utf-8") if raw else None for raw in raws], dtype=pl.String)


def _flow(events: list[Event]) -> _Columns:
    return {
        "category": pl.Series([event.cat for event in events], dtype=pl.Categorical),
        "id": integers([event.id for event in events]),
        "ends": pl.Series([event.ph == "f" for event in events], dtype=pl.Boolean),
        "pid": integers([event.pid for event in events]),
        "tid": integers([event.tid for event in events]),
        "time": to_nanoseconds([event.ts for event in events]),
    }


def _memory(events: list[Event]) -> _Columns:
    args = [event.args for event in events]
    return {
        "pid": integers([event.pid for event in events]),
        "tid": integers([event.tid for event in events]),
        "time": to_nanoseconds([event.ts for event in events]),
        "device_type": integers([arg.device_type for arg in args]),
        "device": integers([arg.device_id for arg in args]),
        "address": integers([arg.address for arg in args]),
        "bytes": integers([arg.memory_bytes for arg in args]),
        "allocated": integers([arg.allocated for arg in args]),
        "reserved": integers([arg.reserved for arg in args]),
    }


_SERIES: Final[dict[str, Callable[[list[Event]], _Columns]]] = {
    "device": _device,
    "call": _call,
    "op": _op,
    "launch": _launch,
    "range": _range,
    "host_collective": _host_collective,
    "flow": _flow,
}
"""Frame -> function that makes its columns."""
DECODER: Final = EventDecoder(Event, columns_of)
