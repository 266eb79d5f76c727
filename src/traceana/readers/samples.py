"""Samples of counters, whichever profiler took them: their units, and how long each value holds.

A profiler writes one time for each sample. What the value is about is declared where a format is
read: the time from then on (:mod:`.kineto.counters`), or the time until then
(:mod:`.nsys.samples`).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.readers.integrity import LONGEST_TRACE_NS, screen
from traceana.trace.ledger import Ledger

_UNITS: Final = {
    # as written in brackets after the name: as shown
    **{unit: unit for unit in ("%", "W", "mW", "°C", "Hz", "kHz", "MHz", "GHz", "ns", "us", "ms")},
    **{unit: unit for unit in ("B", "bytes", "KB", "MB", "GB", "B/s", "MB/s", "GB/s")},
    **{unit: unit for unit in ("Requests", "Workloads", "Avg Warps per Cycle")},
    "C": "°C",
    "Throughput %": "%",
}
"""Units that profilers write after a counter's name. Other text in brackets is part of the name."""
_WITH_UNIT: Final = r"^(.*\S)\s*(?:\[([^\[\]]+)\]|\(([^()]+)\))$"
_LARGEST: Final = 1e100
"""Sums of values and times below it are finite."""
_SERIES: Final = ("device", "name", "unit")
_LONGEST_GAP: Final = 2
"""Intervals: after a longer gap a sample covers one interval, and the rest was not sampled."""


def split_units(samples: pl.DataFrame) -> pl.DataFrame:
    """Return ``samples`` with the ``unit`` in which a ``name`` ends in a column of its own."""
    name = samples["name"].cast(pl.Categorical)
    distinct = pl.DataFrame({"name": name.unique()})
    parts = pl.col("name").cast(pl.String).str.extract_groups(_WITH_UNIT).struct
    unit = pl.coalesce(parts[1], parts[2]).replace_strict(
        _UNITS, default=None, return_dtype=pl.String
    )
    split = distinct.with_columns(
        unit.cast(pl.Categorical).alias("unit"),
        pl.when(unit.is_not_null())
        .then(parts[0])
        .otherwise(pl.col("name").cast(pl.String))
        .cast(pl.Categorical)
        .alias("counter"),
    )
    return (
        samples.with_columns(name)
        .join(split, on="name", how="left", maintain_order="left")
        .drop("name")
        .rename({"counter": "name"})
    )


def with_durations(samples: pl.DataFrame, ledger: Ledger, *, at_end: bool) -> pl.DataFrame:
    """Return ``samples`` by series and time, with the ``duration`` for which each value holds.

    A sample covers the time until the next of its series, the last of them the median of these
    times. With ``at_end`` its ``start`` is the end of an interval: it covers the time since the
    previous one, at most :data:`_LONGEST_GAP` times the median, and the first one the median.
    ``ledger`` counts samples with an impossible time and without a finite value.
    """
    timed = screen(
        samples.with_columns(pl.lit(0, pl.Int64).alias("duration")),
        "samples",
        ledger,
        repeats=True,
        zero_is_lost=not at_end,
    )
    time = pl.col("start")
    step = time.diff() if at_end else time.diff(-1).neg()
    ordered = timed.sort(*_SERIES, "start", nulls_last=True, maintain_order=True).with_columns(
        step.over(_SERIES).alias("duration")
    )
    interval = pl.col("duration").median().over(_SERIES).fill_null(0).cast(pl.Int64)
    longest = _LONGEST_GAP * interval if at_end else pl.lit(LONGEST_TRACE_NS)
    covers = pl.when(pl.col("duration") <= longest).then("duration").otherwise(interval)
    spans = ordered.with_columns(covers.alias("duration"))
    if at_end:
        spans = spans.with_columns(time - pl.col("duration"))
    finite = spans.filter(pl.col("value").abs() <= _LARGEST)
    ledger.add("no_value", spans.height - finite.height, table="samples")
    return finite
