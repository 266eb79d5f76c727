"""The threads of the host by number, alike for calls, operators and ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.numbering import first_rows, numbered
from traceana.enrich.nesting import NONE, Ints

if TYPE_CHECKING:
    from traceana.trace import Trace

THREAD: Final = ("rank", "process", "thread")


@dataclass(frozen=True, slots=True)
class Threads:
    """The number of the thread of each row of ``calls``, ``ops`` and ``ranges``.

    Rows that have no thread are of one as well, of their process. ``known`` has :data:`THREAD` of
    each thread, ``process`` and ``rank`` the number of its process and of its rank.
    """

    calls: Ints
    ops: Ints
    ranges: Ints
    known: pl.DataFrame
    process: Ints
    rank: Ints

    @classmethod
    def of(cls, trace: Trace) -> Threads:
        """Number the threads of ``trace``."""
        frames = [table.select(THREAD) for table in (trace.calls, trace.ops, trace.ranges)]
        calls, ops, ranges = numbers = numbered(*frames)
        each = np.concatenate(numbers)
        known = pl.concat(frames)[first_rows(each)]
        (process,), (rank,) = (
            numbered(known.select(columns)) for columns in (["rank", "process"], ["rank"])
        )
        return cls(calls, ops, ranges, known, process, rank)

    def among(self, numbers: Ints) -> npt.NDArray[np.bool_]:
        """Tell of each thread whether it is among ``numbers``, of which NONE is none."""
        found = np.zeros(self.known.height, dtype=np.bool_)
        found[numbers[numbers != NONE]] = True
        return found
