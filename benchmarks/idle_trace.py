"""A generated trace of any size with known causes of all gaps: one cycle, repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from traceana.trace import Tables, Trace, TraceMeta

DEVICES: Final = 8
CYCLE_NS: Final = 15_850
"""A cycle begins when its device goes idle, and ends when it goes idle again."""
CYCLES_A_STEP: Final = 100

_WORK: Final = (
    # begin, end, name, stream, its launching call in _CALLS
    (3000, 4000, "Memcpy HtoD", 7, 0),
    (4500, 5500, "kernel", 7, 1),
    (5600, 7600, "kernel", 7, 2),
    (7700, 8700, "kernel", 7, 3),
    (8750, 9750, "kernel", 7, 4),
    (9750, 10750, "all_reduce", 20, 5),
    (10850, 11850, "kernel", 7, 7),
    (12200, 13200, "kernel", 7, 9),
    (13850, 14850, "kernel", 7, 11),
    (14850, 15850, "kernel", 7, 12),
)
_CALLS: Final = (
    (2500, 2600, "cudaMemcpyAsync"),
    (4200, 4300, "cudaLaunchKernel"),
    (4600, 4700, "cudaLaunchKernel"),
    (4800, 4900, "cudaLaunchKernel"),
    (5000, 5100, "cudaLaunchKernel"),
    (5200, 5300, "cudaLaunchKernel"),
    (5350, 5380, "cudaStreamWaitEvent"),
    (5400, 5500, "cudaLaunchKernel"),
    (5600, 12000, "cudaMalloc"),
    (12050, 12150, "cudaLaunchKernel"),
    (12400, 13600, "cudaStreamSynchronize"),
    (13700, 13750, "cudaLaunchKernel"),
    (14000, 14050, "cudaLaunchKernel"),
)
_OPS: Final = (
    # begin, end, name, depth; the parent of a row of depth 1 is before it
    (4050, 4400, "aten::linear", 0),
    (4100, 4350, "aten::addmm", 1),
    (4550, 5150, "aten::native_batch_norm", 0),
    (5180, 5320, "nccl:all_reduce", 0),
    (13980, 14100, "aten::relu", 0),
)
_RANGES: Final = ((200, 2400, "enumerate(DataLoader)#next"), (2450, 15000, "forward"))

_GAPS: Final = {
    # number and summed length in a cycle, by cause
    "data_loader": (1, 3000),
    "operator": (1, 500),
    "queued": (3, 250),
    "collective": (1, 100),
    "allocation": (1, 350),
    "synchronization": (1, 650),
}


def trace(activities: int) -> Trace:
    """Return a trace of about ``activities``: whole cycles on eight devices, a process for each."""
    cycles = _cycles(activities)
    steps = -(-cycles // CYCLES_A_STEP)
    names, streams, launching = (_column(_WORK, at) for at in (2, 3, 4))
    distinct = pl.Series(sorted(set(names)))
    work = _Repeated(_WORK, cycles)
    copies = work.each([name.startswith("Memcpy") for name in names])
    depth = _Repeated(_OPS, cycles).each(_column(_OPS, 3))
    return Trace(
        TraceMeta(source="made", format="kineto"),
        Tables(
            {
                "activities": work.frame().select(
                    "start",
                    "duration",
                    "process",
                    (pl.col("process") - 1).cast(pl.Int32).alias("device"),
                    work.each([distinct.index_of(name) for name in names]).alias("name_id"),
                    pl.when(copies)
                    .then(pl.lit("memcpy"))
                    .otherwise(pl.lit("kernel"))
                    .alias("kind"),
                    pl.when(copies).then(pl.lit("HtoD")).alias("copy_kind"),
                    work.each(streams).alias("stream"),
                    pl.Series(work.number * len(_CALLS) + work.each(launching).to_numpy()).alias(
                        "call"
                    ),
                    pl.Series(work.number % cycles // CYCLES_A_STEP).alias("step"),
                ),
                "names": pl.DataFrame(
                    {"name": distinct, "category": ["memcpy", "collective", "elementwise"]}
                ).with_columns(pl.lit("made").alias("rule")),
                "calls": _Repeated(_CALLS, cycles).named("name"),
                "ops": _Repeated(_OPS, cycles)
                .named("name")
                .with_columns(
                    depth.alias("depth"),
                    pl.when(depth > 0).then(pl.int_range(pl.len()) - 1).alias("parent"),
                ),
                "ranges": _Repeated(_RANGES, cycles)
                .named("text")
                .with_columns(pl.lit("annotation").alias("kind"), pl.lit(0).alias("depth")),
                "steps": pl.DataFrame({"number": np.arange(steps)}).with_columns(
                    (pl.col("number") * CYCLES_A_STEP * CYCLE_NS).alias("start"),
                    pl.lit(CYCLES_A_STEP * CYCLE_NS).alias("duration"),
                ),
            }
        ),
    )


def known(activities: int) -> dict[str, tuple[int, int]]:
    """Return the number of gaps of each cause and their summed time, over all devices."""
    cycles = _cycles(activities)
    return {
        cause: (DEVICES * cycles * count, DEVICES * cycles * time)
        for cause, (count, time) in _GAPS.items()
    }


def _cycles(activities: int) -> int:
    return max(activities // (DEVICES * len(_WORK)), 1)


def _column(cycle: Sequence[tuple[Any, ...]], at: int) -> list[Any]:
    return [row[at] for row in cycle]


class _Repeated:
    """The rows of a cycle, repeated on every device at later times.

    ``number`` is the number of each row's cycle, counted over all devices.
    """

    def __init__(self, cycle: Sequence[tuple[Any, ...]], cycles: int) -> None:
        self._cycle, self._cycles = cycle, cycles
        self.number = np.repeat(np.arange(DEVICES * cycles), len(cycle))

    def each(self, values: Sequence[Any]) -> pl.Series:
        """Return ``values``, one per row of the cycle, for all rows."""
        return pl.Series(np.tile(np.array(values), DEVICES * self._cycles))

    def frame(self) -> pl.DataFrame:
        """Return ``start``, ``duration``, ``process`` and ``thread``."""
        begin, end = (np.array(_column(self._cycle, at)) for at in (0, 1))
        return pl.DataFrame(
            {
                "start": self.each(begin.tolist()) + self.number % self._cycles * CYCLE_NS,
                "duration": self.each((end - begin).tolist()),
                "process": self.number // self._cycles + 1,
            }
        ).with_columns(pl.col("process").alias("thread"))

    def named(self, column: str) -> pl.DataFrame:
        """Return the frame with the texts of the cycle's rows."""
        texts = pl.Series(_column(self._cycle, 2)).cast(pl.Categorical)
        return self.frame().with_columns(texts.gather(self.each(range(len(texts)))).alias(column))
