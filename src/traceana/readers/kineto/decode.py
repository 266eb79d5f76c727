"""Kineto's events: the JSON fields that are read, and their decoding into frames, with msgspec.

Every generation of the format is covered by one struct: torch 1.7 wrote ``external id`` and ``Input
dims`` where later ones write ``External id`` and ``Input Dims``. Numbers may come as text (``"tid":
"stream 7"``, AMD's ``"bytes": "800"``): their fields here accept both, and each column is converted
to integers at once. Times stay raw text: a float64 of microseconds since the epoch has a step of
0.25 µs.

A decoder makes :class:`Columns` of JSON text: int64 nanoseconds on the file's clock, categories in
the file's spelling, rows in the order of the file. Each chunk's Python objects are freed
as soon as its columns exist.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

import msgspec
import polars as pl
from msgspec import Raw, Struct
from msgspec import field as named

from traceana.readers.chrome.event_decoder import Counted, EventDecoder, integers, to_nanoseconds
from traceana.readers.chrome.scanner import Column, Route, Scanned
from traceana.readers.integrity import LONGEST_TRACE_NS

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
    # PyTorch's own CUDA profiler (torch/profiler/_cuspy): directions and memories as text, and
    # CUPTI's number where it has no text.
    copy_kind: object = named(default=None, name="copy kind")
    source_memory: object = named(default=None, name="src kind")
    destination_memory: object = named(default=None, name="dst kind")
    set_memory: Number = named(default=None, name="memory kind")
    # The node's number is within its graph, and the stream is the lane on which it is drawn.
    graph: Number = named(default=None, name="graph id")
    cuda_stream: Number = named(default=None, name="original_stream")
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
    frames: object = named(default=None, name="Call stack")  # text
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

    ph: str = ""
    name: str = ""
    cat: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    id: Number = None
    args: Args = NO_ARGS


ARGUMENTS: Final = "args"
"""The field with all ``args`` of an event, as they are written."""
_LARGEST_MESSAGE: Final = 2**59
"""Elements of a collective; the bytes of larger ones may not fit in 64 bits."""


DEPENDENCY: Final = "dependency"
"""The frame of those between nodes of a CUDA graph, from the end of one to the start of the other,
which PyTorch's own CUDA profiler numbers from :data:`FIRST_DEPENDENCY` on."""
FIRST_DEPENDENCY: Final = 1 << 40


def _each(kind: str, *names: str) -> dict[str, Column]:
    return {name: (kind, name) for name in names}


# The first letter is the kind of the value: see :mod:`traceana.readers.chrome.scanner`.
_COMMON: Final[dict[str, Column]] = {
    "category": ("s", "cat"),
    "name": ("s", "name"),
    "pid": ("i", "pid"),
    "tid": ("i", "tid"),
    "start": ("t", "ts"),
    "duration": ("t", "dur"),
}
_EXTERNAL: Final[dict[str, Column]] = {"external": ("i", "external", "external_old")}
_GROUP: Final[dict[str, Column]] = {
    **_each("s", "group_name", "group_description", "group_ranks"),
    **_each("i", "group_size"),
    **_each("n", "collective_sequence"),
    "peer": ("i", "destination_rank", "source_rank"),
}
COLUMNS: Final[dict[str, dict[str, Column]]] = {
    "device": {
        **_COMMON,
        **_each("i", "device", "context", "stream", "correlation"),
        **_EXTERNAL,
        **{f"{what}_{axis}": (axis, what) for what in ("grid", "block") for axis in "xyz"},
        **_each("i", "registers", "shared_memory", "bytes", "graph_node"),
        **_each("i", "graph", "cuda_stream", "set_memory"),
        **_each("s", "copy_kind", "source_memory", "destination_memory"),
        "copy_kind_number": ("i", "copy_kind"),
        **_each("i", "event_stream", "event_correlation"),
        **_each("s", "collective", "message_type"),
        **_each("i", "message_elements", "output_elements"),
        "annotation": ("s", "annotation", "annotation_text"),
        **_GROUP,
    },
    "call": {
        **_COMMON,
        **_each("i", "correlation"),
        **_EXTERNAL,
        "bytes": ("i", "bytes", "size"),
    },
    "op": {
        **_COMMON,
        **_EXTERNAL,
        **_each("i", "sequence", "forward_thread"),
        "input_shapes": ("r", "shapes", "shapes_old"),
        "input_types": ("r", "types"),
        "input_strides": ("r", "strides"),
        "inputs": ("r", "inputs"),
        "module": ("s", "module"),
        "frames": ("s", "frames"),
        # Of the operators around the launch of a collective, which are picked out of them.
        **_GROUP,
    },
    # With the columns of host collectives, which are picked out of them.
    "range": {
        **_COMMON,
        **_EXTERNAL,
        "input_shapes": ("r", "shapes"),
        "input_types": ("r", "types"),
        "inputs": ("r", "inputs"),
    },
    # Complete events of other categories, which have no row.
    "unread": {
        "category": ("s", "cat"),
        "duration": ("t", "dur"),
        **_each("i", "device", "stream"),
    },
    "flow": {
        "category": ("s", "cat"),
        "id": ("i", "id"),
        "phase": ("s", "ph"),
        **_each("i", "pid", "tid"),
        "time": ("t", "ts"),
    },
    "counter": {
        "name": ("s", "name"),
        # Kineto's is a number, PyTorch's own CUDA profiler writes "GPU 0 Counters".
        "pid": ("i", "pid"),
        "process": ("s", "pid"),
        "time": ("t", "ts"),
        "series": ("r", ARGUMENTS),
    },
    "instant": {
        "name": ("s", "name"),
        **_each("i", "pid", "tid"),
        "time": ("t", "ts"),
        **_each("i", "device_type"),
        "device": ("i", "device_id"),
        "address": ("i", "address"),
        "bytes": ("i", "memory_bytes"),
        **_each("i", "allocated", "reserved"),
    },
}
COLUMNS[DEPENDENCY] = COLUMNS["flow"]
_NO_INSTANTS: Final = pl.DataFrame(schema={"name": pl.Categorical})


_Type = pl.DataType | type[pl.DataType]
_TYPES: Final[dict[str, _Type]] = {"s": pl.Categorical, "r": pl.String}


def _frame(events: str, *left_out: str, **more: _Type) -> dict[str, _Type]:
    """Return the types of the columns of ``events``, without some and with ``more``."""
    columns = COLUMNS[events]
    types = {name: _TYPES.get(kind, pl.Int64) for name, (kind, *_) in columns.items()}
    return {name: type_ for name, type_ in types.items() if name not in left_out} | more


FRAMES: Final[dict[str, dict[str, _Type]]] = {
    "device": _frame(
        *("device", "message_type", "message_elements", "output_elements"), output_bytes=pl.Int64
    ),
    "call": _frame("call"),
    "op": _frame("op", *_GROUP),
    # c10d's operator around the launch of a collective's kernel; also a row of "op".
    "launch": {name: _frame("op")[name] for name in ("external", *_GROUP)},
    # Only c10d's annotations have shapes.
    "range": _frame("range", "external", "inputs"),
    # Collectives of c10d's host backends, which Kineto writes as annotations.
    "host_collective": _frame("range"),
    # "ends" is false where a flow starts.
    "flow": _frame("flow", "phase", ends=pl.Boolean),
    DEPENDENCY: _frame("flow", "phase", ends=pl.Boolean),
    "memory": _frame("instant", "name"),
    # A row for each series of an event.
    "counter": _frame("counter", "series", key=pl.String, value=pl.Float64),
}
"""The columns of each frame of :class:`Columns`."""


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
    # Nodes of a CUDA graph that are no device work, of PyTorch's own CUDA profiler.
    "graph_event_node": "device",
    "graph_host_node": "device",
}

UNREAD: Final = "unread"
"""The frame of complete events of other categories."""
_LIKE_DEVICE_WORK: Final = re.compile(r"kernel|gpu|cuda|device|accelerator|ccp|profiler_range")
"""Categories of device work, beside those whose events have a stream or a device."""
LAUNCH_FLOWS: Final = frozenset({"ac2g", "async", "async_cpu_to_gpu", "async_gpu"})
"""Categories of flows from launches to device work."""
BACKENDS: Final = ("gloo:", "mpi:", "ucc:")
"""c10d's backends that run collectives on host threads. NCCL's collectives are kernels;
``nccl:all_reduce`` on the host is their launch."""

NCCL: Final = "nccl:"
LAUNCH: Final = "record_param_comms"
"""c10d's operator around the launch of a collective's kernel."""
COUNTER: Final = "C"
"""The phase of counter events: each key of their ``args`` is a series."""
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


def columns_of(events: list[Event], counter_arguments: Sequence[Raw] = ()) -> Columns:
    """Return the columns of ``events``, as :func:`columns_from` returns them.

    ``counter_arguments`` are the ``args`` of the counter events among them, as they are written.
    """
    counts = Counter((event.ph, event.cat) for event in events)
    # The frame of the events of each phase and category, None for events left out.
    routes: dict[tuple[str, str | None], str | None] = {}
    for phase, category in counts:
        lower = (category or "").lower()
        frame = None
        if phase == "X":
            frame = COMPLETE.get(lower, UNREAD)
        elif phase in ("i", "I"):
            frame = "instant"
        elif phase == COUNTER:
            frame = "counter"
        elif phase in ("s", "f"):
            frame = DEPENDENCY if lower in LAUNCH_FLOWS else "flow"
        routes[phase, category] = frame
    # Event kinds of one frame share a list, so that a frame keeps the order of the file.
    frames: dict[str, list[Event]] = {}
    for event in events:
        frame = routes[event.ph, event.cat]
        if frame == DEPENDENCY:
            is_between_nodes = isinstance(event.id, int) and event.id >= FIRST_DEPENDENCY
            frame = DEPENDENCY if is_between_nodes else None
        if frame is not None:
            frames.setdefault(frame, []).append(event)
    decoded = {
        name: pl.DataFrame(
            {
                column: _raw_texts(counter_arguments)
                if ARGUMENTS in fields
                else _cells(bucket, *fields)
                for column, fields in COLUMNS[name].items()
            }
        )
        for name, bucket in frames.items()
    }
    counted_routes = [Route(*key, routes[key], count) for key, count in counts.items()]
    texts: list[str | None] = ["", *{event.name for event in events}]
    columns = columns_from(Scanned(len(events), counted_routes, decoded, texts))
    for extent in ("grid", "block"):
        values = [getattr(event.args, extent) for event in frames.get("device", ())]
        columns.lose(extent, sum(not isinstance(value, list | None) for value in values))
    return columns


def _cells(events: list[Event], kind: str, field: str, older_field: str = "") -> pl.Series:
    """Return one column of ``events``; ``kind`` and fields are defined by ``scanner.Column``."""
    owners: Sequence[Event | Args] = events
    if field in _ARGS_FIELDS:
        owners = [event.args for event in events]
    values = [getattr(owner, field) for owner in owners]
    if older_field:
        absent = (None, ABSENT)
        values = [
            getattr(owner, older_field) if value in absent else value
            for owner, value in zip(owners, values, strict=True)
        ]
    match kind:
        case "s":
            texts = [value if isinstance(value, str) else None for value in values]
            return pl.Series(texts, dtype=pl.Categorical)
        case "r":
            return _raw_texts(values)
        case "t":
            return to_nanoseconds(values)
        case "x" | "y" | "z":
            place = "xyz".index(kind)
            return integers(
                [
                    value[place] if isinstance(value, list) and place < len(value) else None
                    for value in values
                ]
            )
        case "n":
            return integers([value if isinstance(value, int) else None for value in values])
    if field in _FIELDS_OF_ANY_TYPE:
        values = [value if isinstance(value, int | str) else None for value in values]
    return integers(values)


def _raw_texts(raws: Sequence[Any]) -> pl.Series:
    return pl.Series([str(raw, "utf-8") if raw else None for raw in raws], dtype=pl.String)


_HINTS: Final = get_type_hints(Args)
_ARGS_FIELDS: Final = frozenset(_HINTS)
_FIELDS_OF_ANY_TYPE: Final = frozenset(name for name, type_ in _HINTS.items() if type_ is object)


def leave_out(columns: Columns, phase: str, category: str, events: int) -> None:
    """Count ``events`` of a phase and lower-case category that have no row."""
    match phase:
        case "":
            columns.count("malformed", "", events)
        case "X" if category == "trace":
            columns.count("span", "", events)
        case "s" | "t" | "f":
            launch = category in LAUNCH_FLOWS
            columns.count("launch_flow" if launch else "flow", category, events)
        case "M":
            columns.count("metadata", "", events)
        case _:
            columns.count("unknown_category", f"{phase} {category}".strip(), events)


class _Unread(NamedTuple):
    """Complete events of one category that have no row; ``time_ns`` leaves impossible times out."""

    events: int = 0
    names_device: bool = False
    time_ns: int = 0


def _unread_by_category(unread: pl.DataFrame) -> dict[str | None, _Unread]:
    # All categories at once: a query for each would take time in the square of the events.
    duration = pl.col("duration")
    counted = unread.group_by(pl.col("category").cast(pl.String)).agg(
        events=pl.len(),
        names_device=pl.any_horizontal(pl.col("device", "stream").is_not_null()).any(),
        time_ns=duration.filter(duration.is_between(0, LONGEST_TRACE_NS)).sum(),
    )
    return {category: _Unread(*counts) for category, *counts in counted.iter_rows()}


def _leave_out_complete(columns: Columns, category: str, unread: _Unread) -> None:
    """Count complete events of a lower-case category that have no row.

    Those that look like device work are a problem with their time: a trace without them would look
    like one of the CPU alone.
    """
    if category != "trace" and (unread.names_device or _LIKE_DEVICE_WORK.search(category)):
        columns.count("unread_work", category, unread.events)
        columns.left_out_ns["unread_work", category] = (
            columns.left_out_ns.get(("unread_work", category), 0) + unread.time_ns
        )
    else:
        leave_out(columns, "X", category, unread.events)


def columns_from(scanned: Scanned) -> Columns:
    """Return the columns of Kineto's frames."""
    frames = scanned.frames
    columns = Columns(events=scanned.events)
    instants = frames.pop("instant", _NO_INSTANTS)
    unread = frames.pop(UNREAD, None)
    unread_by_category = {} if unread is None else _unread_by_category(unread)
    memory = _NO_INSTANTS
    if MEMORY in scanned.texts:
        memory = instants.filter(pl.col("name").cast(pl.String) == MEMORY)
    if "device" in frames:
        frames["device"] = _with_message_bytes(frames["device"])
    if LAUNCH in scanned.texts and "op" in frames:
        launches = frames["op"].filter(pl.col("name").cast(pl.String) == LAUNCH)
        if launches.height:
            frames["launch"] = launches
    if "range" in frames:
        frames |= _split_ranges(frames["range"], scanned.texts)
    kept_dependencies: dict[tuple[str | None, str | None], int] = {}
    if DEPENDENCY in frames:
        counted = frames[DEPENDENCY].group_by(pl.col("category", "phase").cast(pl.String)).len()
        kept_dependencies = {(category, phase): n for category, phase, n in counted.iter_rows()}
    for name in ("flow", DEPENDENCY):
        if name in frames:
            frames[name] = frames[name].with_columns(
                (pl.col("phase").cast(pl.String) == "f").alias("ends")
            )
    if memory.height:
        frames["memory"] = memory
    if (counters := frames.pop("counter", None)) is not None:
        # Few recordings have counters.
        from traceana.readers.kineto.counters import with_series

        frames["counter"] = with_series(counters)
        # Each series is an event of its own; an event without one is counted in the ledger.
        columns.events += frames["counter"].height - counters.height
    for name, frame in frames.items():
        # An absent name is an empty one, and an empty module or stack is absent.
        if "name" in frame.columns and frame["name"].null_count():
            frame = frame.with_columns(pl.col("name").fill_null(""))
        if name == "op" and "" in scanned.texts:
            frame = frame.with_columns(
                pl.when(pl.col(text) != "").then(text).alias(text) for text in ("module", "frames")
            )
        columns.frames[name].append(frame[[*FRAMES[name]]])
    for route in scanned.routes:
        category = (route.category or "").lower()
        if route.frame == UNREAD and unread is not None:
            of_category = unread_by_category.get(route.category, _Unread())
            _leave_out_complete(columns, category, of_category)
        elif route.frame is None:
            leave_out(columns, route.phase, category, route.events)
        elif route.frame == DEPENDENCY:
            kept = kept_dependencies.get((route.category, route.phase), 0)
            leave_out(columns, route.phase, category, route.events - kept)
        elif route.frame == "instant":
            columns.count("instant", "", instants.height - memory.height)
            instants = memory  # counted once, where the first category of them stands
    return columns


def _with_message_bytes(device: pl.DataFrame) -> pl.DataFrame:
    """Return device rows with the bytes of the message of a collective, where it is recorded."""
    elements = device.select("message_elements", "output_elements")
    if all(column.null_count() == len(column) for column in elements):
        return device.with_columns(pl.col("output_elements").alias("output_bytes"))
    size = (
        pl.col("message_type")
        .cast(pl.String)
        .replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    )
    # Impossible numbers of elements have no bytes.
    message, output = (
        pl.when(pl.col(name).is_between(0, _LARGEST_MESSAGE)).then(name)
        for name in ("message_elements", "output_elements")
    )
    return device.with_columns(
        pl.when(message.is_null()).then("bytes").otherwise(message * size).alias("bytes"),
        (output * size).alias("output_bytes"),
    )


def _split_ranges(ranges: pl.DataFrame, texts: list[str | None]) -> dict[str, pl.DataFrame]:
    """Return the ranges, with shapes only where c10d wrote them, and host collectives."""
    frames = {"range": ranges}
    name = pl.col("name").cast(pl.String)
    if any(text is not None and text.startswith(BACKENDS) for text in texts):
        has_backend = pl.any_horizontal(name.str.starts_with(backend) for backend in BACKENDS)
        is_annotation = pl.col("category").cast(pl.String) == "user_annotation"
        is_collective = is_annotation & has_backend
        frames["host_collective"] = ranges.filter(is_collective)
        frames["range"] = ranges = ranges.filter(~is_collective.fill_null(False))
    shapes = ["input_shapes", "input_types"]
    if any(ranges[shape].null_count() < ranges.height for shape in shapes):
        frames["range"] = ranges.with_columns(
            pl.when(name.str.starts_with(NCCL)).then(pl.col(shapes))
        )
    return frames


class _Written(Struct):
    """An event whose ``args`` stay as they are written."""

    ph: str
    args: Raw = ABSENT


class KinetoDecoder(EventDecoder[Event, Columns]):
    """Decodes events with msgspec; of counter events, whose keys are any, all ``args`` are kept."""

    def __init__(self) -> None:
        super().__init__(Event, columns_of)
        self._written = msgspec.json.Decoder(list[_Written])

    def _converted(self, events: list[Event], text: bytes) -> Columns:
        if not any(event.ph == COUNTER for event in events):
            return columns_of(events)
        written = self._written.decode(b"".join((b"[", text, b"]")))
        return columns_of(events, [event.args for event in written if event.ph == COUNTER])


DECODER: Final = KinetoDecoder()
