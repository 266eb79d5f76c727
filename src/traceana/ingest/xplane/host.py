"""What ran on the host's threads: launches, operators, allocations, and ranges of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from traceana.ingest.xplane.activities import hlo_keys
from traceana.ingest.xplane.distinct import of_distinct
from traceana.ingest.xplane.hlo import HloPrograms
from traceana.ingest.xplane.names import MEMORY, judge
from traceana.ingest.xplane.plane_events import PlaneEvents, labels, of_each
from traceana.ingest.xplane.shapes import with_shapes
from traceana.ingest.xplane.space import Line
from traceana.trace.schema import RangeKind

_STEP: Final = "step_num"
_CORRELATION: Final = "correlation_id"
_SIZE: Final = "allocation_bytes"
_PROGRAM_THREAD: Final = ("python", "main")
_GPU_ALLOCATOR: Final = r"^GPU_(\d+)_"
_KINDS: Final = ("annotation", "python", "runtime", "mark", "step")


class HostTables:
    """Makes calls, ops, ranges and memory of a host plane's events, block by block.

    An event with a correlation id is a launch. An operator is what TensorFlow names
    ``scope:Type``, or an instruction of XLA.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        names: Sequence[str | None],
        process: int | None,
        hlo: HloPrograms,
    ) -> None:
        judged = [judge(name) for name in names]
        self._process = process
        self._hlo = hlo
        self._names = labels(names)
        self._operators = labels([each.operator for each in judged])
        self._scopes = labels([each.scope for each in judged])
        self._is_operator = np.array([each.operator is not None for each in judged], dtype=np.bool_)
        self._kinds = np.array([_KINDS.index(each.kind) for each in judged], dtype=np.uint8)
        self._signs = np.array([MEMORY.get(name or "", 0) for name in names], dtype=np.int64)
        self._threads = pl.Series([line.number for line in lines], dtype=pl.Int64)
        self._of_program = np.array(
            [line.name.startswith(_PROGRAM_THREAD) for line in lines], dtype=np.bool_
        )

    def of(self, events: PlaneEvents) -> dict[str, pl.DataFrame]:
        """Return the tables of some events; every one is in one of them."""
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
                "name": of_each(self._names, events.name),
                "thread": of_each(self._threads, events.line),
                "start": events.start,
                "duration": events.duration,
            }
        ).with_columns(pl.lit(self._process, pl.Int64).alias("process"))

    def _calls(self, events: PlaneEvents) -> pl.DataFrame:
        return self._rows(events).with_columns(events.integers(_CORRELATION).alias("correlation"))

    def _ops(self, events: PlaneEvents) -> pl.DataFrame:
        told = self._hlo.of(hlo_keys(events))
        frame = self._rows(events).with_columns(
            pl.coalesce(of_each(self._operators, events.name), "name").alias("name"),
            pl.coalesce(of_each(self._scopes, events.name), told["scope"]).alias("scope"),
            told["instruction"],
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
            of_each(pl.Series(_KINDS, dtype=RangeKind), kind).alias("kind")
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
            of_distinct(events.texts("allocator_name"), device=device)["device"],
            events.integers("addr").alias("address"),
            (events.integers(_SIZE) * sign).alias("bytes"),
            events.integers("bytes_allocated").alias("allocated"),
            events.integers("bytes_reserved").alias("reserved"),
        )
