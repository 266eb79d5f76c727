"""Lines of a device's plane that are no streams: drawn by the profiler after the work."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceana.ingest.xplane.plane_events import PlaneEvents
from traceana.ingest.xplane.space import Line


def derived_ranges(columns: PlaneEvents, lines: Sequence[Line], device: int | None) -> pl.DataFrame:
    """Return the events of derived lines (XLA Ops, Steps, TensorFlow Name Scope …) as ranges.

    They repeat what the streams ran, so they are of kind "device": never time of their own. The
    line's name is the ``domain``.
    """
    domains = pl.Series([line.name for line in lines], dtype=pl.String).cast(pl.Categorical())
    return pl.DataFrame(
        {
            "text": columns.labels(columns.names),
            "domain": domains.gather(pl.Series(columns.line)),
            "start": columns.start,
            "duration": columns.duration,
        }
    ).with_columns(pl.lit("device").alias("kind"), pl.lit(device, pl.Int32).alias("device"))
