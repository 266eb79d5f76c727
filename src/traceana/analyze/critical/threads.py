"""The threads of all processes under one numbering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.thread_numbers import thread_numbers
from traceana.enrich.nesting import Ints

if TYPE_CHECKING:
    from traceana.trace import Trace


@dataclass(frozen=True, slots=True)
class Threads:
    """The key of the thread of each operator, call, range and window; threads of two ranks differ.

    The key of a window without a thread is that of none.
    """

    ops: Ints
    calls: Ints
    ranges: Ints
    windows: Ints
    numbers: pl.DataFrame
    """``key`` and ``thread``, its number in the trace."""

    @classmethod
    def of(cls, trace: Trace, windows: pl.DataFrame) -> Threads:
        """Number the threads of ``trace``; ``windows`` have ``rank``, ``process``, ``thread``."""
        frames = [trace.ops, trace.calls, trace.ranges, windows]
        ops, calls, ranges, own = thread_numbers(*frames)
        threads = pl.concat([frame["thread"].cast(pl.Int64) for frame in frames])
        every = np.concatenate((ops, calls, ranges, own))
        numbers = pl.DataFrame({"key": every, "thread": threads}).unique("key")
        return cls(ops, calls, ranges, own, numbers)


def of_process(frame: pl.DataFrame, rank: int | None, process: int | None) -> npt.NDArray[np.bool_]:
    """Tell which rows are of ``rank`` and, where one is given, of ``process`` or of none known."""
    here = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    if process is not None:
        here &= (pl.col("process") == process).fill_null(value=True)
    return frame.select(here).to_series().to_numpy()
