"""The canonical tables: the type, unit and meaning of every column.

``docs/tables.md`` is generated from this module.

All times are int64 nanoseconds counted from the trace's first event; the epoch is kept apart, in
:class:`traceana.trace.trace.TraceMeta`. A missing value is null, never 0 or -1, with one exception:
``device`` is :data:`CPU_DEVICE` for work of the host, so that every activity has a device.

``rank`` is null where the trace does not record the rank. Device numbers are those within a rank.

A column with ``row_of`` holds the row number in that table, counted from 0.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Final

import msgspec
import polars as pl

from traceana.trace.taxonomy import CLASS_COLUMNS, CLASS_MEANINGS

SCHEMA_VERSION: Final = 17
"""Increased when a column changes its name, type or meaning; stored in saved bundles."""

CPU_DEVICE: Final = -1
"""``device`` of activities that ran on the host (operators of a CPU-only trace)."""

PERIOD: Final = "period"
"""``source`` of steps without a marker, found by the repeated sequence of device work."""

NODES_OF_GRAPH: Final = 1 << 32
"""CUPTI's id of a graph's node is the graph's id times this, plus the node's number."""

ROW = pl.UInt32
LABEL = pl.Categorical()
"""Short text that repeats: operator, API and range names."""

ActivityKind = pl.Enum(
    [
        "kernel",
        "memcpy",
        "memset",
        "sync",  # the host or a stream waits: no device work
        "graph",  # a CUDA graph recorded whole, its kernels and copies not apart
        "op",
    ]
)
DEVICE_WORK: Final = ("kernel", "memcpy", "memset", "graph")
"""Kinds of activities that are work of a device; a synchronization is a wait."""

SummaryKind = pl.Enum(["kernel", "memcpy", "memset", "op", "call"])
"""Kinds of rows of a summary: work of a device, operators of a framework, calls of the host."""
CopyKind = pl.Enum(
    ["HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "unknown"]
)
MemoryKind = pl.Enum(
    [
        "pageable",
        "pinned",
        "device",
        "array",
        "managed",
        "device_static",
        "managed_static",
        "unknown",
    ]
)
Direction = pl.Enum(["forward", "backward", "optimizer"])
RangeKind = pl.Enum(
    [
        "module",  # nn.Module call, Keras or Flax layer
        "annotation",  # record_function, user_annotation, TraceAnnotation
        "step",  # ProfilerStep, an iteration's range
        "nvtx",  # NVTX push/pop: nests on its thread
        "nvtx_start",  # NVTX start/end: need not nest
        "mark",  # instantaneous
        "python",  # a Python frame
        "device",  # an annotation on the GPU's timeline; its time repeats that of the kernels
        "runtime",  # an event of a framework's runtime, outside the model
        "overhead",  # the profiler's own work
        "osrt",  # a call into the operating system
        "span",  # the profiler's recording span
    ]
)
BlockState = pl.Enum(["active_allocated", "active_pending_free", "inactive"])
"""PyTorch's states of a block: used, freed but still in use by another stream, free."""
Severity = pl.Enum(["note", "problem"])
LayerRole = pl.Enum(
    [
        "layer",
        "optimizer",
        "data",
        "collective",
        "algorithm search",  # trial runs of an autotuner; not part of any layer's time
        "hooks",  # callbacks that a framework runs around a layer
        "unattributed",
    ]
)

Dtype = pl.DataType | type[pl.DataType]


class Column(msgspec.Struct, frozen=True):
    """One column of a table; ``unit`` is ``None`` for a column without a unit.

    ``row_of`` is the table whose row numbers it holds. Readers leave ``enriched`` columns null;
    :mod:`traceana.enrich` fills them in.
    """

    dtype: Dtype
    meaning: str
    unit: str | None = None
    row_of: str | None = None
    enriched: bool = False


class Table(msgspec.Struct, frozen=True):
    """One table: the meaning of a row, and the columns in order."""

    row: str
    columns: dict[str, Column]


TIME: Final = "ns from the trace's first event"
"""Unit of a point in time. Durations have the unit ``ns``."""


def _row(table: str, meaning: str, *, enriched: bool = False) -> Column:
    return Column(ROW, meaning, row_of=table, enriched=enriched)


_number = partial(Column, pl.Int64)
_small = partial(Column, pl.Int32)
_text = partial(Column, pl.String)
_label = partial(Column, LABEL)

_START: Final = _number("start", TIME)
_DURATION: Final = _number("duration", "ns")
_PROCESS: Final = _number("operating system's process id")
_THREAD: Final = _number("operating system's thread id")
_DEVICE: Final = _small("device number within its rank; -1: the CPU")
_RANK: Final = _small("rank in a distributed run")
_SCOPE: Final = _label(
    "framework's name scope, TensorFlow's or HLO's: \"AlexNet/conv1/Conv2D\"; of a CUDA graph's "
    'annotated kernel, "nn.Module: " and its module'
)
MODULE_SCOPE: Final = "nn.Module: "
"""The begin of a scope that is the path of a PyTorch module, without an operator behind it."""
_FRAMES: Final = _label(
    "Python stack as recorded, innermost first, frames separated by semicolons: "
    "`model.py(41): forward;train.py(12): main`"
)
_SIZES: Final = {
    f"{what}_{axis}": _small(f"{what} size, {axis}", unit)
    for what, unit in (("grid", "blocks"), ("block", "threads"))
    for axis in "xyz"
}
_CLASS: Final = {
    name: Column(dtype, CLASS_MEANINGS[name], enriched=True)
    for name, dtype in CLASS_COLUMNS.items()
}

_ACTIVITIES: Final = Table(
    "one activity of a device: kernel, memcpy, memset, synchronization; on a trace without device "
    "work, an operator of the CPU",
    {
        "name_id": _row("names", "name"),
        "kind": Column(ActivityKind, "kind of the activity"),
        "start": _START,
        "duration": _DURATION,
        "process": _PROCESS,
        "device": _DEVICE,
        "context": _number("CUDA context"),
        "stream": _number("CUDA or HIP stream; of a CPU operator, its thread"),
        "correlation": _number("CUPTI's correlation id, unique within a process"),
        "external": _number("Kineto's `External id`; another id space than correlation"),
        **_SIZES,
        "registers": _small("registers per thread"),
        "shared_memory": _number("shared memory per block, static and dynamic", "bytes"),
        "bytes": _number("copied or set; of a collective's kernel, its rank's message", "bytes"),
        "copy_kind": Column(CopyKind, "direction of a copy"),
        "source_memory": Column(MemoryKind, "memory kind of a copy's source"),
        "destination_memory": Column(MemoryKind, "memory kind of a copy's destination"),
        "graph_node": _number("CUDA graph node"),
        "capture_thread": _number("of a CUDA graph's node: thread that captured it"),
        "capture_time": _number("and the time of its capture", "ns from its file's first event"),
        "event_stream": _number("of a wait for a CUDA event: the stream that recorded the event"),
        "event_correlation": _number("and the correlation id of the recording call"),
        "collective": _label('of a collective\'s kernel, as the profiler names it: "allreduce"'),
        "group_size": _small("of a collective's kernel: participating ranks", "ranks"),
        "process_group": _row("process_groups", "of a collective's kernel: its process group"),
        "collective_sequence": _number(
            "of a collective's kernel: Kineto's `Seq`, which counts the collectives of its process "
            "group"
        ),
        "peer": _small("of a send's or receive's kernel: the other rank"),
        "output_bytes": _number("of a collective's kernel: its rank's output", "bytes"),
        "scope": _SCOPE,
        "instruction": _row("instructions", "HLO instruction of a compiled program that it ran"),
        "call": _row("calls", "launching call", enriched=True),
        "op": _row("ops", "innermost operator around the launch", enriched=True),
        "range": _row("ranges", "innermost range around the launch", enriched=True),
        "layer": _row("layers", "layer of the model", enriched=True),
        "step": _row("steps", "step in which it was launched", enriched=True),
        "direction": Column(Direction, "pass of training", enriched=True),
        "frame": _row(
            "frames",
            "frame of the program from which it was launched, of the backward pass that of the "
            "forward operator",
            enriched=True,
        ),
        "layer_confidence": Column(
            pl.Float64,
            "of work of a CUDA graph's replay: confidence of its operator, layer and direction, "
            "from 0 to 1; null for other work, and where none were found",
            enriched=True,
        ),
        "rank": _RANK,
        "class": _row(
            "classes",
            "class refined by context; null where the class by name applies",
            enriched=True,
        ),
        "episode": _row("episodes", "convolution that it is part of", enriched=True),
    },
)

_NAMES: Final = Table(
    "one distinct name of activities, with its class by name",
    {
        "name": _text("name as recorded by the profiler, demangled"),
        **_CLASS,
        "rule": Column(pl.String, "id of the rule that decided the class", enriched=True),
    },
)

_CLASSES: Final = Table(
    "one distinct class that was refined by context",
    {
        **_CLASS,
        "context_rule": Column(
            pl.String, "id of the context rule that decided the class", enriched=True
        ),
    },
)

_EPISODES: Final = Table(
    "one convolution, of one kernel or several",
    {
        "op": _row("ops", "operator that launched it; null where not recorded", enriched=True),
        "algorithm": Column(pl.String, "convolution algorithm", enriched=True),
        "direction": Column(pl.String, "fprop, dgrad or wgrad", enriched=True),
    },
)

_CALLS: Final = Table(
    "one CUDA or HIP runtime or driver call",
    {
        "name": _label("function"),
        "process": _PROCESS,
        "thread": _THREAD,
        "start": _START,
        "duration": _DURATION,
        "correlation": _number("CUPTI's correlation id, unique within a process"),
        "external": _number("Kineto's `External id`"),
        "rank": _RANK,
    },
)

_OPS: Final = Table(
    "one operator of the framework",
    {
        "name": _label("operator"),
        "process": _PROCESS,
        "thread": _THREAD,
        "start": _START,
        "duration": _DURATION,
        "parent": _row("ops", "innermost operator around it on its thread", enriched=True),
        "depth": Column(pl.Int32, "operators around it", enriched=True),
        "external": _number("Kineto's `External id`"),
        "sequence": _number("autograd's sequence number"),
        "forward_thread": _number("Kineto's `Fwd thread id`; not a system thread id"),
        "direction": Column(Direction, "pass of training", enriched=True),
        "forward": _row("ops", "forward operator of a backward one", enriched=True),
        "input_shapes": _text("JSON text as recorded: [[64, 3, 224, 224], ...]"),
        "input_types": _text('JSON text: ["float", ...]'),
        "input_strides": _text("JSON text: [[150528, 50176, 224, 1], ...]"),
        "inputs": _text("JSON text of concrete scalar inputs"),
        "module": _label("Kineto's `Module Hierarchy`"),
        "scope": _SCOPE,
        "frames": _FRAMES,
        "instruction": _row("instructions", "HLO instruction of a compiled program that it ran"),
        "layer": _row(
            "layers",
            "layer of the model; null also if the operator launched no device work",
            enriched=True,
        ),
        "frame": _row(
            "frames", "frame of the program, of the backward pass that of `forward`", enriched=True
        ),
        "rank": _RANK,
    },
)

_INSTRUCTIONS: Final = Table(
    "one instruction of optimized HLO of a program that XLA compiled and that ran. Excluded are "
    "instructions that compute nothing (parameter, constant, tuple, get-tuple-element, bitcast), "
    "and the functions that reduce, sort and scatter apply to each element. An instruction follows "
    "the one whose computation contains it. It may run as several kernels, and any number of times",
    {
        "program": _label('name of the HLO module: "jit_step"'),
        "program_id": _number("distinguishes programs of one name"),
        "name": _text('name within its program: "fusion.3"'),
        "parent": _row(
            "instructions", "fusion, call or while that contains it; null: top level of the program"
        ),
        "opcode": _label('"convolution", "dot", "fusion", "custom-call" …'),
        "target": _label('of a custom-call, the library\'s routine: "__cudnn$convForward"'),
        "scope": _SCOPE,
        "frames": _FRAMES,
        "frame": _row("frames", "frame of the program", enriched=True),
        "input_shapes": _text("JSON text: [[4,13,13,192],[3,3,192,384]]; of a tuple, a list"),
        "input_types": _text('JSON text, HLO\'s types: ["f32","bf16"]'),
        "output_shape": _text("JSON text: [4,13,13,384]; of a tuple, a list of them"),
        "output_type": _text('"f32"; of a tuple, JSON text: ["f32","u8"]'),
        "attributes": _text(
            "JSON text of an object. With a window: window {size, stride, padding_low, "
            "padding_high, base_dilation, window_dilation, reversal}, a list each. Convolution: "
            "dimension_numbers {input_batch, input_feature, input_spatial, kernel_input_feature, "
            "kernel_output_feature, kernel_spatial, output_batch, output_feature, "
            "output_spatial}, feature_group_count, batch_group_count. Dot: lhs_contracting, "
            "rhs_contracting, lhs_batch, rhs_batch. Fusion: kind. While: trip_count, where known. "
            "Custom calls: those of the operation that they implement, where configured"
        ),
    },
)

_RANGES: Final = Table(
    "one annotation: NVTX, record_function, nn.Module call, step, Python frame",
    {
        "text": _label("text"),
        "kind": Column(RangeKind, "kind of the range"),
        "domain": _label("NVTX domain"),
        "process": _PROCESS,
        "thread": _number("operating system's thread id; null for ranges of no thread"),
        "device": _small("device number, of kind `device` only"),
        "start": _START,
        "duration": _DURATION,
        "parent": _row("ranges", "innermost range around it on its thread", enriched=True),
        "depth": Column(pl.Int32, "ranges around it", enriched=True),
        "input_shapes": _text("as in `ops`, for c10d's annotations around a collective's launch"),
        "input_types": _text("as in `ops`"),
        "frame": _row("frames", "of a Python frame: the program's, or its own", enriched=True),
        "rank": _RANK,
    },
)

_FRAMES_OF_PYTHON: Final = Table(
    "one frame of Python on a stack of the program: what a line calls has rows of its own for each "
    "line that calls it. Frames of libraries within those of the program have the program's",
    {
        "file": Column(pl.String, "file, relative to the program's folder", enriched=True),
        "line": Column(
            pl.Int64, "line; of a frame that names its function: its first", enriched=True
        ),
        "function": Column(pl.String, "function", enriched=True),
        "own": Column(
            pl.Boolean, "whether the file is the program's, not a library's", enriched=True
        ),
        "parent": _row("frames", "the program's frame that called it", enriched=True),
        "text": Column(pl.String, "the line itself, where the run keeps the file", enriched=True),
        "rank": _RANK,
    },
)

_LINKS: Final = Table(
    "one flow between two events",
    {
        "kind": _label('"fwdbwd": from a forward operator to its backward'),
        "from_process": _number("process of its start"),
        "from_thread": _number("thread of its start"),
        "from_time": _number("its start", TIME),
        "to_process": _number("process of its end"),
        "to_thread": _number("thread of its end"),
        "to_time": _number("its end", TIME),
        "rank": _RANK,
    },
)

_LAYERS: Final = Table(
    "one layer of the model, or one role that is not a layer",
    {
        "path": Column(pl.String, "path of the module: features.0", enriched=True),
        "type": Column(pl.String, "class of the module, or its main operator", enriched=True),
        "role": Column(LayerRole, "layer, or the kind of work outside layers", enriched=True),
        "parent": _row("layers", "layer around it", enriched=True),
        "position": Column(pl.Int32, "order of first execution", enriched=True),
    },
)

_GRAPH_CALLS: Final = Table(
    "one call of a graph of torch.compile, in the order of Inductor's generated code. Graphs with "
    "the same calls and layers are there once",
    {
        "graph": _number("distinguishes the graphs of a rank"),
        "backward": Column(pl.Boolean, "whether it is a graph of the backward pass"),
        "name": _label('name of its event: "aten::convolution", "triton_poi_fused_relu_0"'),
        "generated": Column(pl.Boolean, "whether Inductor generated the kernel"),
        "reads": Column(
            pl.List(pl.Int32), "calls whose results it reads, by their order in the graph"
        ),
        "layer": _row("layers", "layer of the call"),
        "rank": _RANK,
    },
)

_GRAPH_DEPENDENCIES: Final = Table(
    "one dependency between two nodes of a CUDA graph, of which every replay has both",
    {
        "graph_node": _number("the node that waits, as in `activities`"),
        "after": _number("the node that it waits for"),
        "rank": _RANK,
    },
)

_OPERATIONS: Final = Table(
    "one activity of a training job that its table of operations describes: a forward or backward "
    "pass of a micro-batch, a send or receive between pipeline stages, a collective",
    {
        "activity": _row("activities", "the activity, whose name is the type of the operation"),
        "stage": _small("pipeline stage of its rank"),
        "dp_rank": _small("data-parallel rank of its rank"),
        "step": _number("number of the step, as recorded"),
        "sequence": _number("number among the operations of its type, rank and step"),
        "micro_batch": _small("micro-batch; null of an operation of all"),
        "model_chunk": _small("chunk of the model within its stage; null of an operation of all"),
    },
)

_STEPS: Final = Table(
    "one step (iteration) of one process",
    {
        "number": Column(pl.Int64, "number in the trace", enriched=True),
        "start": Column(pl.Int64, "start", TIME, enriched=True),
        "duration": Column(pl.Int64, "duration", "ns", enriched=True),
        "process": Column(pl.Int64, "operating system's process id", enriched=True),
        "source": Column(
            pl.String, 'text of its marker ("ProfilerStep"), or "period"', enriched=True
        ),
        "complete": Column(
            pl.Boolean,
            "whether all work that it launched was recorded; null: launches are not recorded",
            enriched=True,
        ),
        "rank": _RANK,
    },
)

_MEMORY: Final = Table(
    "one event of the framework's allocator",
    {
        "time": _number("time", TIME),
        "process": _PROCESS,
        "thread": _THREAD,
        "device": _DEVICE,
        "address": _number("address"),
        "bytes": _number("positive: allocated, negative: freed", "bytes"),
        "allocated": _number("allocated in total after the event", "bytes"),
        "reserved": _number("reserved in total after the event", "bytes"),
        "segment_bytes": _number(
            "of an event without `bytes`: positive: reserved from the device, negative: returned "
            "to it",
            "bytes",
        ),
        "failed_bytes": _number("requested by an allocation that failed: out of memory", "bytes"),
        "device_free_bytes": _number("and free on the device then", "bytes"),
        "frames": _FRAMES,
        "frame": _row("frames", "frame of the program that the allocator recorded", enriched=True),
        "rank": _RANK,
    },
)

_MEMORY_BLOCKS: Final = Table(
    "one block of the segments that PyTorch's allocator held at the time of a memory snapshot",
    {
        "device": _DEVICE,
        "stream": _number("CUDA stream of the segment, as the allocator identifies it"),
        "pool": _label('memory pool of the segment: "0.0" is the default, others are private'),
        "segment": _number("address of the segment"),
        "segment_type": _label('"small" or "large": the allocations that it is for'),
        "expandable": Column(pl.Boolean, "whether the segment can grow (`expandable_segments`)"),
        "address": _number("address"),
        "bytes": _number("size, rounded up by the allocator", "bytes"),
        "requested_bytes": _number("of an allocated block: requested", "bytes"),
        "state": Column(BlockState, "allocated, waiting for another stream, or free"),
        "frames": _FRAMES,
        "frame": _row("frames", "frame of the program that allocated it", enriched=True),
        "rank": _RANK,
    },
)

_PROCESS_GROUPS: Final = Table(
    "one process group of a rank, whether the capture uses it or not. Names are those of the rank: "
    "two ranks may give one name to different groups",
    {
        "name": _text("name"),
        "description": _text('description: "default_pg", "mesh_tp"'),
        "ranks": _text("JSON text, the ranks in order: [0, 2]; null where not recorded in full"),
        "size": _small("number of ranks", "ranks"),
        "rank": _RANK,
    },
)

_DEVICES: Final = Table(
    "one device",
    {
        "device": _DEVICE,
        "name": _text("name of the model"),
        "vendor": _text("vendor"),
        "compute_capability": _text('compute capability: "8.0"'),
        "multiprocessors": _small("streaming multiprocessors (compute units)"),
        "clock_khz": _number("maximum clock", "kHz"),
        "memory_bytes": _number("global memory", "bytes"),
        "bandwidth_bytes_per_s": _number("peak memory bandwidth", "bytes/s"),
        "warp_size": _small("warp size", "threads"),
        "rank": _RANK,
    },
)

_COUNTERS: Final = Table(
    "one kernel launch that Nsight Compute or rocprof measured, or the mean that nvprof prints of "
    "all launches of a kernel",
    {
        "launch": _number("Nsight Compute's or rocprof's number of the launch, in their order"),
        "launches": _number(
            "nvprof: launches whose mean the row has; null: one launch", "launches"
        ),
        "name": _text("name as the profiler prints it"),
        "process": _PROCESS,
        "device": _DEVICE,
        "context": _number("CUDA context"),
        "stream": _number("CUDA stream"),
        **_SIZES,
        "duration": _number(
            "duration while measured; Nsight Compute's at locked clocks, with flushed caches", "ns"
        ),
        "dram_read_bytes": _number("read from DRAM", "bytes"),
        "dram_write_bytes": _number("written to DRAM", "bytes"),
        "dram_bytes": _number("read from and written to DRAM", "bytes"),
        **{
            f"{kind}_{operation}": _number(
                f"{what} of threads not predicated off" + (", two halves each" * (kind == "fp16")),
                "thread instructions",
            )
            for kind in ("fp64", "fp32", "fp16")
            for operation, what in (
                ("add", "additions"),
                ("mul", "multiplications"),
                ("fma", "fused multiply-adds"),
            )
        },
        **{
            f"{kind}_flops": _number(
                f"{kind} operations, a multiply-add being two, as nvprof prints them", "FLOP"
            )
            for kind in ("fp64", "fp32", "fp16")
        },
        "tensor_ops": _number("operations of the tensor cores, all types", "operations"),
        "tensor_instructions": _number("instructions of the tensor cores", "warp instructions"),
        "tensor_active_percent": Column(
            pl.Float64, "tensor cores active, of the multiprocessors' active cycles", "%"
        ),
        "achieved_occupancy_percent": Column(
            pl.Float64, "active warps, of those that a multiprocessor can hold", "%"
        ),
        "sm_efficiency_percent": Column(
            pl.Float64, "multiprocessors with an active warp, mean over them and the time", "%"
        ),
        "activity": _row("activities", "kernel of the timeline", enriched=True),
    },
)

_SAMPLES: Final = Table(
    "one sample of a counter that was read while the program ran: activity of the multiprocessors, "
    "bandwidth, clocks, power. Its value holds from `start` for `duration`",
    {
        "start": _START,
        "duration": _number(
            "to the counter's next sample; where the profiler writes the end of each interval, "
            "from the previous one. The last sample of the first, and the first of the second, "
            "have the median interval of the counter",
            "ns",
        ),
        "device": _small("device number within its rank; null: a counter of no device"),
        "name": _label("counter as recorded, without its unit"),
        "unit": _label("unit as recorded in the name; null where it is not"),
        "value": Column(pl.Float64, "value, in `unit`"),
        "rank": _RANK,
    },
)

_SUMMARY: Final = Table(
    "one row of a printed summary, which has no timeline: a kernel, copy, memset, operator or call "
    "of the host, with the number and the times of all its calls. Null: not printed",
    {
        "name": _text("name as printed; of kernels and operators also in `names`, demangled"),
        "name_id": _row("names", "name of a kernel, copy, memset or operator"),
        "kind": Column(SummaryKind, "kind"),
        "counted": Column(
            pl.Boolean,
            "whether the row is part of sums; not calls, nor operators whose kernels are printed",
        ),
        "copy_kind": Column(CopyKind, "direction of a copy"),
        "source_memory": Column(MemoryKind, "memory kind of a copy's source"),
        "destination_memory": Column(MemoryKind, "memory kind of a copy's destination"),
        "process": _PROCESS,
        "device": _small("device number; -1: the CPU"),
        "calls": _number("calls"),
        "total_ns": _number("time of all calls; of an operator, without operators inside", "ns"),
        "precision_ns": _number("worth of the last printed digit of `total_ns`", "ns"),
        "mean_ns": _number("mean time of a call", "ns"),
        "median_ns": _number("median time of a call", "ns"),
        "min_ns": _number("least time of a call", "ns"),
        "max_ns": _number("longest time of a call", "ns"),
        "deviation_ns": _number("standard deviation of the times of calls", "ns"),
        "bytes": _number("copied or set by all calls", "bytes"),
        "share_percent": Column(pl.Float64, "printed share of the time of its table", "%"),
        "table": _small("number of the printed table in the file, from 0"),
        "rank": _RANK,
    },
)

_LEDGER: Final = Table(
    "one reason for which events are missing from the tables, or suspect",
    {
        "reason": _text("reason"),
        "severity": Column(
            Severity, "problem: the trace is incomplete; note: by design, nothing lost"
        ),
        "table": _text("table of the events"),
        "kept": Column(pl.Boolean, "whether the events are in that table"),
        "count": _number("events", "events"),
        "time_ns": _number("sum of durations; null where the events have none", "ns"),
        "detail": _text("detail"),
        "rank": _RANK,
    },
)

SCHEMA: Final[dict[str, Table]] = {
    "activities": _ACTIVITIES,
    "names": _NAMES,
    "classes": _CLASSES,
    "episodes": _EPISODES,
    "calls": _CALLS,
    "ops": _OPS,
    "instructions": _INSTRUCTIONS,
    "ranges": _RANGES,
    "frames": _FRAMES_OF_PYTHON,
    "links": _LINKS,
    "layers": _LAYERS,
    "graph_calls": _GRAPH_CALLS,
    "graph_dependencies": _GRAPH_DEPENDENCIES,
    "operations": _OPERATIONS,
    "steps": _STEPS,
    "memory": _MEMORY,
    "memory_blocks": _MEMORY_BLOCKS,
    "process_groups": _PROCESS_GROUPS,
    "devices": _DEVICES,
    "counters": _COUNTERS,
    "samples": _SAMPLES,
    "summary": _SUMMARY,
    "ledger": _LEDGER,
}

TABLES: Final[dict[str, dict[str, Dtype]]] = {
    name: {column: described.dtype for column, described in table.columns.items()}
    for name, table in SCHEMA.items()
}
"""The polars schema of each table."""

ACTIVITIES: Final = TABLES["activities"]
DEVICES: Final = TABLES["devices"]
COUNTERS: Final = TABLES["counters"]

TIME_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    name: points
    for name, table in SCHEMA.items()
    if (points := tuple(key for key, column in table.columns.items() if column.unit == TIME))
}
"""The columns that hold a point in time, by table; other nanosecond columns are durations."""


def empty(table: str) -> pl.DataFrame:
    """Return ``table`` with its declared columns and no rows."""
    return _empty(table).clone()


@cache
def _empty(table: str) -> pl.DataFrame:
    # Made once: hundreds of small traces are opened as one, and most of their tables are empty.
    return pl.DataFrame(schema=TABLES[table])


def join_pieces(table: pl.DataFrame) -> None:
    """Make each column of ``table`` one piece of memory, in place; the values stay.

    Tables that were put together from pages have columns of many pieces, and each query would put
    them together again: that takes most of the time of a group-by. One column at a time needs
    little memory.
    """
    for at, column in enumerate(table.get_columns()):
        if column.n_chunks() > 1:
            table.replace_column(at, column.rechunk())


def conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with exactly the declared columns of ``table``, in order and type.

    Missing columns are filled with nulls. Raises ``KeyError`` on a column that the table does not
    declare, so that a misspelled column of a reader is not dropped silently.
    """
    schema = TABLES[table]
    unknown = [column for column in frame.columns if column not in schema]
    if unknown:
        raise KeyError(f"{table} has no column {', '.join(unknown)}")
    if not frame.width:
        return empty(table)
    if list(frame.schema.items()) == list(schema.items()):
        return frame
    return frame.select(_conforming(table, frozenset(frame.columns)))


@cache
def _conforming(table: str, given: frozenset[str]) -> list[pl.Expr]:
    """Return the columns of ``table``: those ``given`` in their type, the others as nulls."""
    return [
        (pl.col(name) if name in given else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in TABLES[table].items()
    ]
