"""The canonical tables: their columns, polars types and meanings.

All times are int64 nanoseconds counted from the trace's first event; the epoch is kept apart, in
:class:`traceana.trace.meta.TraceMeta`. A missing value is null, never 0 or -1, with one exception:
``device`` is :data:`CPU_DEVICE` for work of the host, so that a selection by device is total.

``rank`` is null where the trace does not say which process of a distributed run it is of; device
numbers are counted within a rank.

Columns ending in an identifier of another table (``op``, ``call``, ``layer``, ``parent``) hold that
table's row number, counted from 0.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.trace.taxonomy import CLASS_COLUMNS, CLASS_SCHEMA

SCHEMA_VERSION: Final = 8
"""Raised whenever a column changes its name, type or meaning; saved bundles carry it."""

CPU_DEVICE: Final = -1
"""``device`` of activities that ran on the host (operators of a CPU-only trace)."""

PERIOD: Final = "period"
"""``source`` of steps that nothing marks: the sequence of device work repeats."""

NANOSECONDS = pl.Int64
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

CopyKind = pl.Enum(
    ["h2d", "d2h", "d2d", "p2p", "h2h", "h2a", "a2h", "a2a", "a2d", "d2a", "unknown"]
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
        "device",  # an annotation drawn on the GPU's timeline: never time of its own
        "runtime",  # what a framework's runtime was at, drawn by itself: no part of the model
        "overhead",  # the profiler's own work
        "osrt",  # a call into the operating system
        "span",  # the profiler's recording span
    ]
)
Severity = pl.Enum(["note", "problem"])
LayerRole = pl.Enum(
    [
        "layer",
        "optimizer",
        "data",
        "collective",
        "algorithm search",  # what an autotuner runs to choose: no time of a layer
        "hooks",  # what a framework runs around a layer for those who watch it
        "unattributed",
    ]
)
LedgerTable = pl.String

ACTIVITIES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "name_id": ROW,  # row of `names`
    "kind": ActivityKind,
    "start": NANOSECONDS,
    "duration": NANOSECONDS,
    "process": pl.Int64,
    "device": pl.Int32,
    "context": pl.Int64,
    "stream": pl.Int64,  # of a CPU operator: its thread
    "correlation": pl.Int64,  # per process, CUPTI's
    "external": pl.Int64,  # Kineto's "External id"; another id space than correlation
    "grid_x": pl.Int32,
    "grid_y": pl.Int32,
    "grid_z": pl.Int32,
    "block_x": pl.Int32,
    "block_y": pl.Int32,
    "block_z": pl.Int32,
    "registers": pl.Int32,  # per thread
    "shared_memory": pl.Int64,  # bytes per block, static and dynamic
    "bytes": pl.Int64,  # copied or set; of a collective's kernel, what its rank gives to it
    "copy_kind": CopyKind,
    "source_memory": MemoryKind,
    "destination_memory": MemoryKind,
    "graph_node": pl.Int64,
    "event_stream": pl.Int64,  # of a wait for an event: the stream that it was recorded on
    "event_correlation": pl.Int64,  # and the correlation of the call that recorded it
    "collective": LABEL,  # of a collective's kernel, as the profiler names it: "allreduce"
    "group_size": pl.Int32,  # of a collective's kernel: how many ranks take part
    "scope": LABEL,  # the framework's name scope, of TensorFlow or HLO: "AlexNet/conv1/Conv2D"
    "instruction": ROW,  # row of `instructions`: the compiled program's instruction that it ran
    # Filled in by traceana.enrich; null as a reader leaves them.
    "call": ROW,
    "op": ROW,
    "range": ROW,
    "layer": ROW,
    "step": ROW,
    "direction": Direction,
    "rank": pl.Int32,  # of a distributed run
    # Filled in by traceana.enrich.refine.
    "class": ROW,  # row of `classes`; null where the class of the name stands
    "episode": ROW,
}

CLASSES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    # One row a distinct class that the context made of a name's.
    **CLASS_COLUMNS,
    "context_rule": pl.String,  # id of the rule of context that decided
}

EPISODES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    # One row a convolution, of one kernel or several.
    "op": ROW,  # the operator that launched it; null where it is known by its kernels alone
    "algorithm": pl.String,
    "direction": pl.String,  # fprop, dgrad, wgrad
}

NAMES: Final[dict[str, pl.DataType | type[pl.DataType]]] = dict(CLASS_SCHEMA)
"""One row a distinct activity name; the classes are null until names are classified."""

CALLS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "name": LABEL,
    "process": pl.Int64,
    "thread": pl.Int64,
    "start": NANOSECONDS,
    "duration": NANOSECONDS,
    "correlation": pl.Int64,
    "external": pl.Int64,
    "rank": pl.Int32,  # of a distributed run
}

OPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "name": LABEL,
    "process": pl.Int64,
    "thread": pl.Int64,
    "start": NANOSECONDS,
    "duration": NANOSECONDS,
    "parent": ROW,  # innermost operator around it on its thread
    "depth": pl.Int32,  # 0: no operator around it
    "external": pl.Int64,
    "sequence": pl.Int64,  # autograd's sequence number
    "forward_thread": pl.Int64,  # Kineto's "Fwd thread id" (not a system thread id)
    "direction": Direction,
    "input_shapes": pl.String,  # JSON text as the trace has it: [[64, 3, 224, 224], ...]
    "input_types": pl.String,  # JSON text: ["float", ...]
    "input_strides": pl.String,  # JSON text: [[150528, 50176, 224, 1], ...]
    "inputs": pl.String,  # JSON text of concrete scalar inputs
    "module": LABEL,  # "Module Hierarchy", where recorded
    "scope": LABEL,  # as of activities
    "instruction": ROW,  # as of activities
    "layer": ROW,  # null also where nothing of the layer ran on the device
    "rank": pl.Int32,  # of a distributed run
}

INSTRUCTIONS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    # One row an instruction of a program that XLA compiled and that ran: HLO, as optimized. Left
    # out are instructions that compute nothing (parameter, constant, tuple, get-tuple-element,
    # bitcast), and what reduce, sort, scatter and their like apply to each element. What holds
    # others stands before them. One may run as several kernels, and any number of times.
    "program": LABEL,  # name of the HLO module: "jit_step"
    "program_id": pl.Int64,  # tells programs of one name apart
    "name": pl.String,  # within its program: "fusion.3"
    "parent": ROW,  # fusion, call, while … in whose computation it is; null: of the program itself
    "opcode": LABEL,  # "convolution", "dot", "fusion", "custom-call" …
    "target": LABEL,  # of a custom-call, the library's routine: "__cudnn$convForward"
    "scope": LABEL,  # as of activities
    "input_shapes": pl.String,  # JSON text: [[4,13,13,192],[3,3,192,384]]; of a tuple, a list
    "input_types": pl.String,  # JSON text, in HLO's words: ["f32","bf16"]
    "output_shape": pl.String,  # JSON text: [4,13,13,384]; of a tuple, a list of them
    "output_type": pl.String,  # "f32"; of a tuple, JSON text: ["f32","u8"]
    # JSON text of an object. Whatever has a window: window {size, stride, padding_low,
    # padding_high, base_dilation, window_dilation, reversal}, a list each. Convolution:
    # dimension_numbers {input_batch, input_feature, input_spatial, kernel_input_feature,
    # kernel_output_feature, kernel_spatial, output_batch, output_feature, output_spatial},
    # feature_group_count, batch_group_count. Dot: lhs_contracting, rhs_contracting, lhs_batch,
    # rhs_batch. Fusion: kind. While: trip_count, where known. Custom calls: the same as the
    # operation that they stand for, as far as their configuration tells.
    "attributes": pl.String,
}

RANGES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "text": LABEL,
    "kind": RangeKind,
    "domain": LABEL,
    "process": pl.Int64,
    "thread": pl.Int64,  # null for ranges that belong to no thread
    "device": pl.Int32,  # of kind "device" only
    "start": NANOSECONDS,
    "duration": NANOSECONDS,
    "parent": ROW,  # innermost range around it on its thread
    "depth": pl.Int32,
    "input_shapes": pl.String,  # as of `ops`: of c10d's annotations around a collective's launch
    "input_types": pl.String,
    "rank": pl.Int32,  # of a distributed run
}

LINKS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "kind": LABEL,  # "fwdbwd": from a forward operator to its backward
    "from_process": pl.Int64,
    "from_thread": pl.Int64,
    "from_time": NANOSECONDS,
    "to_process": pl.Int64,
    "to_thread": pl.Int64,
    "to_time": NANOSECONDS,
    "rank": pl.Int32,  # of a distributed run
}

LAYERS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "path": pl.String,
    "type": pl.String,
    "role": LayerRole,
    "parent": ROW,
    "position": pl.Int32,  # order of first execution
}

STEPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "number": pl.Int64,  # as the trace numbers them
    "start": NANOSECONDS,
    "duration": NANOSECONDS,
    "process": pl.Int64,
    "source": pl.String,  # the text that marked it, e.g. "ProfilerStep", or PERIOD
    "rank": pl.Int32,  # of a distributed run
}

MEMORY: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "time": NANOSECONDS,
    "process": pl.Int64,
    "thread": pl.Int64,
    "device": pl.Int32,
    "address": pl.Int64,
    "bytes": pl.Int64,  # positive: allocated, negative: freed
    "allocated": pl.Int64,  # total after the event
    "reserved": pl.Int64,
    "rank": pl.Int32,  # of a distributed run
}

COUNTERS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    # One row a kernel launch that Nsight Compute measured; null where it did not.
    "launch": pl.Int64,  # as it numbers them, in order
    "name": pl.String,  # readable, as it prints it
    "process": pl.Int64,
    "device": pl.Int32,
    "context": pl.Int64,
    "stream": pl.Int64,
    "grid_x": pl.Int32,
    "grid_y": pl.Int32,
    "grid_z": pl.Int32,
    "block_x": pl.Int32,
    "block_y": pl.Int32,
    "block_z": pl.Int32,
    "duration": NANOSECONDS,  # at the clocks that it locks, caches flushed: not the program's time
    "dram_read_bytes": pl.Int64,
    "dram_write_bytes": pl.Int64,
    "dram_bytes": pl.Int64,
    # Instructions of threads that were not predicated off.
    "fp64_add": pl.Int64,
    "fp64_mul": pl.Int64,
    "fp64_fma": pl.Int64,
    "fp32_add": pl.Int64,
    "fp32_mul": pl.Int64,
    "fp32_fma": pl.Int64,
    "fp16_add": pl.Int64,  # of two halves each: HADD2, HMUL2, HFMA2
    "fp16_mul": pl.Int64,
    "fp16_fma": pl.Int64,
    "tensor_ops": pl.Int64,  # operations of the tensor cores, of all types together
    "tensor_instructions": pl.Int64,  # of warps
    "tensor_active_percent": pl.Float64,  # of the cycles in which the multiprocessors were active
    # Filled in by traceana.enrich; null as a reader leaves it.
    "activity": ROW,
}

DEVICES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "device": pl.Int32,
    "name": pl.String,
    "vendor": pl.String,
    "compute_capability": pl.String,  # "8.0"
    "multiprocessors": pl.Int32,
    "clock_khz": pl.Int64,
    "memory_bytes": pl.Int64,
    "bandwidth_bytes_per_s": pl.Int64,
    "warp_size": pl.Int32,
    "rank": pl.Int32,  # of a distributed run
}

LEDGER: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "reason": pl.String,
    "severity": Severity,
    "table": LedgerTable,  # the table the events are of, or would have been of
    "kept": pl.Boolean,  # true: the rows are in the table too, and counted here as suspect
    "count": pl.Int64,
    "time_ns": pl.Int64,  # sum of durations; null where the events have none
    "detail": pl.String,
    "rank": pl.Int32,  # of a distributed run
}

TABLES: Final[dict[str, dict[str, pl.DataType | type[pl.DataType]]]] = {
    "activities": ACTIVITIES,
    "names": NAMES,
    "classes": CLASSES,
    "episodes": EPISODES,
    "calls": CALLS,
    "ops": OPS,
    "instructions": INSTRUCTIONS,
    "ranges": RANGES,
    "links": LINKS,
    "layers": LAYERS,
    "steps": STEPS,
    "memory": MEMORY,
    "devices": DEVICES,
    "counters": COUNTERS,
    "ledger": LEDGER,
}

TIME_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "activities": ("start",),
    "calls": ("start",),
    "ops": ("start",),
    "ranges": ("start",),
    "links": ("from_time", "to_time"),
    "steps": ("start",),
    "memory": ("time",),
}
"""The columns that hold a point in time, by table; every other nanosecond column is a length."""


def empty(table: str) -> pl.DataFrame:
    """Return ``table`` with its declared columns and no rows."""
    return pl.DataFrame(schema=TABLES[table])


def conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with exactly the declared columns of ``table``, in order and type.

    Columns that are missing are filled with nulls. Raises ``KeyError`` on a column that the table
    does not declare: a reader's typing error must not vanish silently.
    """
    schema = TABLES[table]
    unknown = [column for column in frame.columns if column not in schema]
    if unknown:
        raise KeyError(f"{table} has no column {', '.join(unknown)}")
    if not frame.width:
        return empty(table)
    if list(frame.schema.items()) == list(schema.items()):
        return frame
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in schema.items()
    )
