"""The columns that every gap's cause is looked up in, made once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from traceana.analyze.idle.threads import Threads
from traceana.enrich.nesting import Ints, from_rows

if TYPE_CHECKING:
    from traceana.trace import Trace


@dataclass(frozen=True, slots=True)
class Recorded:
    """Columns of activities and of calls; ``call`` are rows, NONE for null.

    ``launching`` says of each call whether it launched anything.
    """

    start: Ints
    call: Ints
    call_start: Ints
    call_end: Ints
    launching: npt.NDArray[np.bool_]
    threads: Threads

    @classmethod
    def of(cls, trace: Trace) -> Recorded:
        """Take the columns of ``trace``."""
        call = trace.activities["call"]
        begin = trace.calls["start"].to_numpy()
        launching = np.zeros(len(begin), dtype=np.bool_)
        launching[call.drop_nulls().to_numpy()] = True
        return cls(
            trace.activities["start"].to_numpy(),
            from_rows(call),
            begin,
            begin + trace.calls["duration"].to_numpy(),
            launching,
            Threads.of(trace),
        )
