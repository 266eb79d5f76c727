"""Lines of a device's plane that are no streams: drawn by the profiler after the work."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceana.ingest.xplane.plane_events import PlaneEvents, labels, of_each
from traceana.ingest.xplane.space import Line
from traceana.trace.schema import RangeKind


def derived_ranges(
    columns: PlaneEvents, lines: Sequence[Line], names: Sequence[str | None], device: int | None
) -> pl.DataFrame:
    """Return the events of derived lines (XLA Ops, Steps, TensorFlow Name Scope …) as ranges.

    They repeat what the streams ran, so they are of kind "device": never time of their own. The
    line's name is the ``domain``.
    """
    return pl.DataFrame(
        {
            "text": of_each(labels(names), columns.name),
            "domain": of_each(labels([line.name for line in lines]), columns.line),
            "start": columns.start,
            "duration": columns.duration,
        }
    ).with_columns(
        pl.lit("device", RangeKind).alias("kind"), pl.lit(device, pl.Int32).alias("device")
    )
