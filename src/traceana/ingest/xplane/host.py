"""What ran on the host's threads: launches, operators, allocations, and ranges of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from traceana.ingest.xplane.activities import hlo_keys
from traceana.ingest.xplane.buffer import Mask
from traceana.ingest.xplane.hlo import HloPrograms
from traceana.ingest.xplane.names import MEMORY, HostName, judge
from traceana.ingest.xplane.plane_events import PlaneEvents
from traceana.ingest.xplane.shapes import with_shapes
from traceana.ingest.xplane.space import Line
from traceana.trace.schema import RangeKind

_STEP: Final = "step_num"
_CORRELATION: Final = "correlation_id"
_SIZE: Final = "allocation_bytes"
STATS: Final = (
    _CORRELATION,
    "hlo_op",
    "hlo_module",
    "program_id",
    "shape",
    _STEP,
    "allocator_name",
    _SIZE,
    "addr",
    "bytes_allocated",
    "bytes_reserved",
)
_PROGRAM_THREAD: Final = ("python", "main")
_GPU_ALLOCATOR: Final = r"^GPU_(\d+)_"


def host_tables(
    columns: PlaneEvents, lines: Sequence[Line], process: int | None, hlo: HloPrograms
) -> dict[str, pl.DataFrame]:
    """Return calls, ops, ranges and memory of a host plane; every event is in one of them.

    An event with a correlation id is a launch. An operator is what TensorFlow names
    ``scope:Type``, or an instruction of XLA.
    """
    judged = [judge(name) for name in columns.names]
    threads = [line.number for line in lines]
    rows = pl.DataFrame(
        {
            "name": columns.labels(columns.names),
            "thread": pl.Series(threads, dtype=pl.Int64).gather(pl.Series(columns.line)),
            "start": columns.start,
            "duration": columns.duration,
        }
    ).with_columns(pl.lit(process, pl.Int64).alias("process"))
    is_call = columns.has(_CORRELATION)
    in_allocator = np.array([name in MEMORY for name in columns.names], dtype=np.bool_)
    is_memory = ~is_call & in_allocator[columns.name] & columns.has(_SIZE)
    named_op = np.array([each.operator is not None for each in judged], dtype=np.bool_)
    is_op = ~is_call & ~is_memory & (named_op[columns.name] | columns.has("hlo_op"))
    is_range = ~(is_call | is_memory | is_op)
    correlation = columns.integers(_CORRELATION).alias("correlation")
    return {
        "calls": rows.with_columns(correlation).filter(is_call),
        "ops": _ops(rows, columns, judged, hlo, is_op),
        "ranges": _ranges(rows, columns, judged, lines, is_range),
        "memory": _memory(rows, columns, is_memory),
    }


def _ops(
    rows: pl.DataFrame, columns: PlaneEvents, judged: list[HostName], hlo: HloPrograms, mask: Mask
) -> pl.DataFrame:
    operator = columns.labels([each.operator for each in judged]).alias("operator")
    scope = columns.labels([each.scope for each in judged]).alias("scope")
    keys = hlo_keys(columns)
    frame = pl.concat(
        [rows, keys, pl.DataFrame([operator, scope, columns.texts("shape").alias("shape")])],
        how="horizontal",
    ).filter(mask)
    told = hlo.of(frame)
    frame = frame.with_columns(
        pl.coalesce("operator", "name").alias("name"),
        pl.coalesce("scope", told["scope"]).alias("scope"),
        told["instruction"],
    )
    return with_shapes(frame.drop("operator", *keys.columns))


def _ranges(
    rows: pl.DataFrame,
    columns: PlaneEvents,
    judged: list[HostName],
    lines: Sequence[Line],
    mask: Mask,
) -> pl.DataFrame:
    of_program = np.array([line.name.startswith(_PROGRAM_THREAD) for line in lines], dtype=np.bool_)
    by_program = pl.Series(of_program[columns.line] if len(lines) else [], dtype=pl.Boolean)
    label = columns.labels([each.kind for each in judged])
    told = rows.with_columns(
        label.alias("kind"), columns.integers(_STEP).alias("step"), by_program.alias("by_program")
    )
    kind = pl.col("kind").cast(pl.String)
    frame = told.filter(mask).with_columns(
        pl.when(pl.col("step").is_not_null())
        .then(pl.lit("step"))
        .when(kind == "python")
        .then(kind)
        .when(pl.col("duration") == 0)
        .then(pl.lit("mark"))
        .when("by_program")
        .then(kind)
        .otherwise(pl.lit("runtime"))
        .cast(RangeKind)
        .alias("kind"),
    )
    numbered = pl.format("{}#{}", pl.col("name").cast(pl.String), "step").cast(pl.Categorical())
    return frame.select(
        pl.when(pl.col("step").is_not_null()).then(numbered).otherwise("name").alias("text"),
        "kind",
        "process",
        "thread",
        "start",
        "duration",
    )


def _memory(rows: pl.DataFrame, columns: PlaneEvents, mask: Mask) -> pl.DataFrame:
    sign = columns.labels([str(MEMORY.get(name or "", 0)) for name in columns.names])
    allocator = columns.texts("allocator_name").cast(pl.String)
    return rows.select(
        pl.col("start").alias("time"),
        "process",
        "thread",
        allocator.str.extract(_GPU_ALLOCATOR).cast(pl.Int32, strict=False).alias("device"),
        columns.integers("addr").alias("address"),
        (columns.integers(_SIZE) * sign.cast(pl.String).cast(pl.Int64)).alias("bytes"),
        columns.integers("bytes_allocated").alias("allocated"),
        columns.integers("bytes_reserved").alias("reserved"),
    ).filter(mask)
