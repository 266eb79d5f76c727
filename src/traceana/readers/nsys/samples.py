"""Samples of ``nsys --gpu-metrics-devices``: the tables GPU_METRICS and TARGET_INFO_GPU_METRICS.

A sample has one time, at which the hardware's counters were read: its value is of the time since
the previous sample (clocks are the cycles of that time per second). The lowest byte of a ``typeId``
is the number of the GPU in TARGET_INFO_GPU.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.readers.cupti_tables import Export
from traceana.readers.nsys.session import numbers_of_gpus
from traceana.readers.samples import split_units, with_durations
from traceana.readers.table_source import Integer, Query, TableSource, as_int

_METRICS: Final = "GPU_METRICS"
_NAMES: Final = "TARGET_INFO_GPU_METRICS"
_KEYS: Final = ("type", "metric")
_CLOCKS: Final = r"^(?:GPC|SYS) Clock Frequency(?: \[MHz\])?$"
"""Counters in hertz (User Guide, "Available metrics"), also those with the timeline's unit."""
_MHZ: Final = 10**6
_LEAST_HZ: Final = 10**5
"""A clock from here on is in hertz: no GPU has 100 GHz."""
_UNSIGNED: Final = 1 << 32
"""Exports of 2025.3 and before have unsigned numbers of 32 bits as signed ones."""

SAMPLES: Final = Query(
    _METRICS,
    {
        "start": Integer("timestamp", "rawTimestamp"),
        "type": Integer("typeId"),
        "metric": Integer("metricId"),
        "value": Integer("value"),
    },
    lambda page: page,
)


def has_samples(source: TableSource) -> bool:
    """Return whether ``source`` has samples with the names of their counters."""
    columns = {"typeId", "metricId", "value"}
    return columns <= {*source.tables.get(_METRICS, ())} and _NAMES in source.tables


def samples(export: Export, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of ``GPU_METRICS`` as samples; the ledger counts those of other GPUs."""
    names = pl.DataFrame(
        [
            (as_int(row.get("typeId")), as_int(row.get("metricId")), row.get("metricName"))
            for row in export.source.records(_NAMES)
            if isinstance(row.get("metricName"), str)
        ],
        schema={"type": pl.Int64, "metric": pl.Int64, "name": pl.Categorical},
        orient="row",
    ).unique(_KEYS, keep="first")
    named = frame.join(names, on=_KEYS, maintain_order="left")
    detail = f"{_METRICS}: metrics without a name"
    export.ledger.add("counter", frame.height - named.height, table="samples", detail=detail)
    gpus = numbers_of_gpus(export.source)
    gpu = (pl.col("type") & 0xFF).cast(pl.Int32)
    if gpus is None:
        located = named.with_columns(gpu.alias("device"))
    else:
        located = named.with_columns(gpu.alias("gpu")).join(gpus, on="gpu", maintain_order="left")
        detail = f"{_METRICS}: GPUs that no recorded process uses"
        export.ledger.add("counter", named.height - located.height, table="samples", detail=detail)
    value = pl.col("value").cast(pl.Float64)
    is_clock = pl.col("name").cast(pl.String).str.contains(_CLOCKS)
    hertz = pl.when(value < 0).then(value + _UNSIGNED).otherwise(value)
    clock = pl.when(hertz >= _LEAST_HZ).then(hertz / _MHZ).otherwise(hertz)
    is_hertz = is_clock & ~pl.col("name").cast(pl.String).str.ends_with("]")
    rows = located.select(
        "start",
        "device",
        pl.when(is_hertz).then(pl.format("{} [MHz]", "name")).otherwise("name").alias("name"),
        # Another negative number is of no counter.
        pl.when(is_clock).then(clock).when(value >= 0).then(value).alias("value"),
    )
    return with_durations(split_units(rows), export.ledger, at_end=True)
