"""What a thread was at: its innermost operator and annotation at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.idle.threads import Threads
from traceana.analyze.numbering import rows_of
from traceana.enrich.nesting import NONE, Ints, Nesting, from_rows

if TYPE_CHECKING:
    from traceana.trace import Trace


@dataclass(frozen=True, slots=True)
class Doing:
    """The operators and the annotations of some threads, by their numbers."""

    ops: Mapping[int, Nesting]
    ranges: Mapping[int, Nesting]

    @classmethod
    def of(cls, trace: Trace, threads: Threads, wanted: npt.NDArray[np.bool_]) -> Doing:
        """Prepare the lookup for the threads that are ``wanted``."""
        return cls(
            _nestings(trace.ops, threads.ops, wanted),
            _nestings(trace.ranges, threads.ranges, wanted),
        )

    def operator(self, key: Ints, moment: Ints) -> Ints:
        """Return the row of the innermost operator on each thread at each moment."""
        return _asked(self.ops, key, moment)

    def annotation(self, key: Ints, moment: Ints) -> Ints:
        """Return the row of the innermost range of the program's own."""
        return _asked(self.ranges, key, moment)


def _asked(nestings: Mapping[int, Nesting], key: Ints, moment: Ints) -> Ints:
    """Return what is innermost, NONE where the thread is NONE or was never in anything."""
    found = np.full(len(key), NONE, dtype=np.int64)
    known = np.flatnonzero(key != NONE)
    for number, some in rows_of(key[known]):
        if number in nestings:
            here = known[some]
            found[here] = nestings[number].innermost(key[here], moment[here])
    return found


def _nestings(
    frame: pl.DataFrame, key: Ints, wanted: npt.NDArray[np.bool_]
) -> Mapping[int, Nesting]:
    start = frame["start"].to_numpy()
    end = start + frame["duration"].to_numpy()
    depth = from_rows(frame["depth"])
    rows = np.flatnonzero(wanted[key] & (depth != NONE))
    parent = from_rows(frame["parent"])
    return {
        number: Nesting(key, start, end, parent, depth, _ordered(start, end, rows[some]))
        for number, some in rows_of(key[rows])
    }


def _ordered(start: Ints, end: Ints, rows: Ints) -> Ints:
    """Return ``rows`` by their start, of equal ones the longer first."""
    # Most profilers write each thread's in that order already.
    begins, ends = start[rows], end[rows]
    later = (begins[1:] > begins[:-1]) | ((begins[1:] == begins[:-1]) & (ends[1:] <= ends[:-1]))
    return rows if later.all() else rows[np.lexsort((-ends, begins))]
