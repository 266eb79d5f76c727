"""What a distributed run communicates in a step: means over its ranks and measured steps."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, slots=True)
class Communication:
    """Means over the measured steps and ranks of a run.

    ``time_ns`` is the union of a rank's collectives in a step, waiting for the others included;
    ``exposed_ns`` what of it nothing else runs beside, ``share`` and ``exposed_share`` their parts
    of the step in the trace; ``reduced_bytes`` what a rank gives to collectives that reduce, null
    where the trace does not tell all of it.
    """

    time_ns: int
    exposed_ns: int
    share: float
    exposed_share: float
    reduced_bytes: int | None


def communicated(steps: pl.DataFrame) -> Communication | None:
    """Return the means of a frame of :func:`traceana.analyze.communication.communication`.

    Null where it has no measured step, or none that lasts.
    """
    measured = steps.filter(~pl.col("warm_up"))
    available = int(measured["available_ns"].sum())
    if not available:
        return None
    time, exposed = (int(measured[name].sum()) for name in ("communication_ns", "exposed_ns"))
    told = measured["reduced_bytes"]
    count = measured.height
    return Communication(
        time // count,
        exposed // count,
        time / available,
        exposed / available,
        None if told.null_count() else int(told.sum()) // count,
    )
