"""Host events: calls, operators, allocations and ranges; and device lines other than streams."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.readers.xplane.events import PlaneEvents, gathered, labels, per_distinct
from traceana.readers.xplane.hlo import HloPrograms, instruction_keys
from traceana.readers.xplane.space import Line
from traceana.trace.schema import RangeKind

_STEP: Final = "step_num"
_CORRELATION: Final = "correlation_id"
_SIZE: Final = "allocation_bytes"
_PROGRAM_THREAD: Final = ("python", "main")
_GPU_ALLOCATOR: Final = r"^GPU_(\d+)_"
_KINDS: Final = ("annotation", "python", "runtime", "mark", "step")
MEMORY: Final = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
"""Events of the allocators -> sign of their bytes."""

# TensorFlow writes "AlexNet/conv1/Conv2D:Conv2D", and "unknown:Conv2D" where there is no scope.
_OPERATOR: Final = re.compile(r"([A-Za-z0-9.][\w./>-]*):([A-Z_]\w*)", re.ASCII)
_NO_SCOPE: Final = "unknown"
# An operator outside a tf.function. The name of a tf.function begins with "__"; operators of the
# input pipeline wait for its threads.
_EAGER: Final = re.compile(
    r"EagerLocalExecute: (?!(?:Stateful)?PartitionedCall$|\w*(?:Dataset|Iterator|Optional))"
    r"(_?[A-Z]\w*)",
    re.ASCII,
)
_PYTHON: Final = "$"

_RUNTIME: Final = re.compile(
    r"::|[(:]|^(?:TFE?_|PJRT_|PjRt|Eager|Executor|Function|Kernel|Thunk|Validate|Parse|Handle |"
    r"DevicePut|BatchedDevicePut|CopyTo|Wait for |end)|"
    # What JAX's own Python code annotates (jax.profiler.annotate_function).
    r"^(?:AllocateOutputBuffers\w*|shard_args|cpp_pjit_\w+|backend_compile\w*|"
    r"trace_to_jaxpr\w*|lower_sharding_computation|pickle_util\.\w+|"
    # What TensorFlow's own Python code traces.
    r"convert_to_tensor|tf\.constant|tf\.function-graph_building|ParallelFor)$"
)
"""Events of TensorFlow's and XLA's own code on the program's thread."""
_TENSOR: Final = re.compile(r"([A-Za-z_]\w*)\[([\d,]*)\]", re.ASCII)


class HostTables:
    """Converts a host plane's events to calls, ops, ranges and memory, block by block.

    An event with a correlation id is a call. An operator is an event that TensorFlow names
    ``scope:Type``, or an instruction of XLA.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        names: Sequence[str | None],
        process: int | None,
        hlo: HloPrograms,
    ) -> None:
        host_names = [parse_name(name) for name in names]
        self._process = process
        self._hlo = hlo
        self._names = labels(names)
        self._operators = labels([name.operator for name in host_names])
        self._scopes = labels([name.scope for name in host_names])
        self._is_operator = np.array(
            [name.operator is not None for name in host_names], dtype=np.bool_
        )
        self._kinds = np.array([_KINDS.index(name.kind) for name in host_names], dtype=np.uint8)
        self._signs = np.array([MEMORY.get(name or "", 0) for name in names], dtype=np.int64)
        self._threads = pl.Series([line.number for line in lines], dtype=pl.Int64)
        self._of_program = np.array(
            [line.name.startswith(_PROGRAM_THREAD) for line in lines], dtype=np.bool_
        )

    def of(self, events: PlaneEvents) -> dict[str, pl.DataFrame]:
        """Return the tables of some events; each event is in exactly one."""
        is_call = events.has(_CORRELATION)
        is_memory = ~is_call & (self._signs[events.name] != 0) & events.has(_SIZE)
        is_op = ~is_call & ~is_memory & (self._is_operator[events.name] | events.has("hlo_op"))
        is_range = ~(is_call | is_memory | is_op)
        return {
            "calls": self._calls(events.pick(is_call)),
            "ops": self._ops(events.pick(is_op)),
            "ranges": self._ranges(events.pick(is_range)),
            "memory": self._memory(events.pick(is_memory)),
        }

    def _rows(self, events: PlaneEvents) -> pl.DataFrame:
        return pl.DataFrame(
            {
                "name": gathered(self._names, events.name),
                "thread": gathered(self._threads, events.line),
                "start": events.start,
                "duration": events.duration,
            }
        ).with_columns(pl.lit(self._process, pl.Int64).alias("process"))

    def _calls(self, events: PlaneEvents) -> pl.DataFrame:
        return self._rows(events).with_columns(events.integers(_CORRELATION).alias("correlation"))

    def _ops(self, events: PlaneEvents) -> pl.DataFrame:
        instructions = self._hlo.host_instructions(instruction_keys(events))
        frame = self._rows(events).with_columns(
            pl.coalesce(gathered(self._operators, events.name), "name").alias("name"),
            pl.coalesce(gathered(self._scopes, events.name), instructions["scope"]).alias("scope"),
            instructions["instruction"],
            events.texts("shape").alias("shape"),
        )
        return with_shapes(frame)

    def _ranges(self, events: PlaneEvents) -> pl.DataFrame:
        step = events.integers(_STEP).alias("step")
        kind = self._kinds[events.name]
        is_python = kind == _KINDS.index("python")
        kind[~self._of_program[events.line]] = _KINDS.index("runtime")
        kind[events.duration == 0] = _KINDS.index("mark")
        kind[is_python] = _KINDS.index("python")
        kind[step.is_not_null().to_numpy()] = _KINDS.index("step")
        frame = self._rows(events).with_columns(
            gathered(pl.Series(_KINDS, dtype=RangeKind), kind).alias("kind")
        )
        if step.null_count() < len(step):
            numbered = pl.format("{}#{}", pl.col("name").cast(pl.String), step)
            is_step = pl.col("kind") == "step"
            frame = frame.with_columns(
                pl.when(is_step).then(numbered.cast(pl.Categorical())).otherwise("name")
            )
        return frame.rename({"name": "text"})

    def _memory(self, events: PlaneEvents) -> pl.DataFrame:
        device = pl.col("text").str.extract(_GPU_ALLOCATOR).cast(pl.Int32, strict=False)
        sign = pl.Series(self._signs[events.name])
        return self._rows(events).select(
            pl.col("start").alias("time"),
            "process",
            "thread",
            per_distinct(events.texts("allocator_name"), device=device)["device"],
            events.integers("addr").alias("address"),
            (events.integers(_SIZE) * sign).alias("bytes"),
            events.integers("bytes_allocated").alias("allocated"),
            events.integers("bytes_reserved").alias("reserved"),
        )


class HostName(msgspec.Struct, frozen=True):
    """A host event's name: ``operator`` and ``scope`` of operators, else the ``kind`` of range."""

    operator: str | None
    scope: str | None
    kind: str


def parse_name(name: str | None) -> HostName:
    """Return the parts of the name of an event on the program's own thread."""
    if name is None:
        return HostName(None, None, "runtime")
    if match := _OPERATOR.fullmatch(name):
        scope, operator = match.groups()
        return HostName(operator, None if scope == _NO_SCOPE else scope, "runtime")
    if match := _EAGER.fullmatch(name):
        return HostName(match[1], None, "runtime")
    if name.startswith(_PYTHON):
        return HostName(None, None, "python")
    return HostName(None, None, "runtime" if _RUNTIME.search(name) else "annotation")


def with_shapes(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``ops`` with ``input_shapes`` and ``input_types`` for TensorFlow's ``shape``.

    ``(float[8,64,64,3];int32[3])`` becomes JSON text.
    """
    distinct = ops["shape"].unique().drop_nulls()
    tensors = [_TENSOR.findall(text) for text in distinct.cast(pl.String).to_list()]
    table = pl.DataFrame(
        {
            "shape": distinct,
            "input_shapes": [
                _json([[int(size) for size in sizes.split(",") if size] for _, sizes in arguments])
                for arguments in tensors
            ],
            "input_types": [_json([kind for kind, _ in arguments]) for arguments in tensors],
        },
        schema_overrides={"input_shapes": pl.String, "input_types": pl.String},
    )
    return ops.join(table, on="shape", how="left", maintain_order="left").drop("shape")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def derived_ranges(
    columns: PlaneEvents, lines: Sequence[Line], names: Sequence[str | None], device: int | None
) -> pl.DataFrame:
    """Return the events of derived lines (XLA Ops, Steps, TensorFlow Name Scope …) as ranges.

    They repeat the streams' events, so their kind is "device", whose time is not counted. The
    line's name is the ``domain``.
    """
    return pl.DataFrame(
        {
            "text": gathered(labels(names), columns.name),
            "domain": gathered(labels([line.name for line in lines]), columns.line),
            "start": columns.start,
            "duration": columns.duration,
        }
    ).with_columns(
        pl.lit("device", RangeKind).alias("kind"), pl.lit(device, pl.Int32).alias("device")
    )
