"""Times counted from the trace's first event, and what time that was."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceana.trace.schema import TIME_COLUMNS


def rebase(frames: Mapping[str, pl.DataFrame]) -> tuple[dict[str, pl.DataFrame], int]:
    """Shift ``frames`` (canonical tables by name) so that the earliest time of all is 0.

    Returns the frames and the time, on the file's own clock in nanoseconds, that is now 0; it is 0
    when no frame has a row. Frames without time columns come back as they are. Times must lie
    within :data:`traceana.ingest.integrity.FARTHEST_NS` of 0, or the shift could overflow.
    """
    columns = {name: TIME_COLUMNS.get(name, ()) for name in frames}
    earliest = [
        value
        for name, frame in frames.items()
        for column in columns[name]
        if isinstance(value := frame[column].min(), int)
    ]
    origin = min(earliest, default=0)
    shifted = {
        name: frame.with_columns(pl.col(column) - origin for column in columns[name])
        for name, frame in frames.items()
    }
    return shifted, origin
