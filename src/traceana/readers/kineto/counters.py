"""Counter events of Chrome traces: series and values, and the samples that they are.

A counter event (``"ph": "C"``) has a series for each key of its ``args``, whose value holds until
the counter's next event (Trace Event Format, "Counter Events"). So do samples of PyTorch's own CUDA
profiler: readings of power, clocks and temperature have the time of the reading, and those of its
PM sampling the start of their interval (``torch/profiler/_cuspy/pm_sampling.py``). It names the
process of a device's counters ``GPU 0 Counters``.
"""

from __future__ import annotations

from typing import Final

import msgspec
import polars as pl

from traceana.files import UNDECODABLE
from traceana.readers.samples import split_units, with_durations
from traceana.trace.ledger import Ledger

_NUMBER: Final = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_SERIES: Final = rf'\s*"([^"\\]*)"\s*:\s*({_NUMBER})\s*'
_ONE_SERIES: Final = rf"^\{{{_SERIES}\}}$"

_DEVICE: Final = r"^GPU (\d{1,4})\b"
_PM_SAMPLING: Final = (
    r"^(?:SM Active|DRAM BW|HBM (?:BW|Read|Write)|NVLink [RT]X|PCIe)(?: \(%\))?$|^[a-z0-9]+__\w+\."
)
"""PyTorch's names of sampled performance monitors; of other metrics the name is CUPTI's."""


def with_series(counters: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each series of ``counters``, with its ``key`` and ``value``.

    The ``series`` of an event are the JSON text of its ``args``. A value is null where it is not a
    number, and so are key and value of an event without a series.
    """
    groups = counters["series"].str.extract_groups(_ONE_SERIES).struct
    rows = counters.drop("series").with_row_index("row")
    single = rows.with_columns(
        groups[0].alias("key"), groups[1].cast(pl.Float64, strict=False).alias("value")
    )
    if not single["key"].null_count():
        return single.drop("row")
    several = counters["series"].filter(single["key"].is_null())
    decoded = [_series(text) for text in several]
    exploded = (
        single.filter(pl.col("key").is_null())
        .drop("key", "value")
        .with_columns(
            pl.Series("key", [[*series] for series in decoded], pl.List(pl.String)),
            pl.Series("value", [[*series.values()] for series in decoded], pl.List(pl.Float64)),
        )
        .explode("key", "value")
    )
    together = pl.concat([single.filter(pl.col("key").is_not_null()), exploded])
    return together.sort("row", maintain_order=True).drop("row")


def _series(text: str | None) -> dict[str | None, float | None]:
    """Return the values of the series in ``args``, null for other values than numbers."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except UNDECODABLE:
        arguments = {}
    return {key: _number(value) for key, value in arguments.items()} or {None: None}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def samples(counters: pl.DataFrame, devices: pl.Series, ledger: Ledger) -> pl.DataFrame:
    """Return the samples of the series in ``counters``; ``ledger`` counts those without a value.

    ``devices`` are the numbers of the trace's devices: a counter of another process is of the host.
    """
    process, name, key = (pl.col(column).cast(pl.String) for column in ("process", "name", "key"))
    device = process.str.extract(_DEVICE).cast(pl.Int32)
    of_device = pl.when(process.is_null() & pl.col("pid").is_in(devices.implode())).then("pid")
    counter = ("process", "pid", "name")
    several = pl.col("key").n_unique().over(counter) > 1
    of_series = pl.when(several & (key != "") & (key != name)).then(" " + key).fill_null("")
    located = counters.with_columns(pl.coalesce(device, of_device.cast(pl.Int32)).alias("device"))
    # Counters of equal names may be of several processes of the host.
    by_number = process.is_null() & (pl.col("pid").n_unique().over("name") > 1)
    of_process = (
        pl.when(pl.col("device").is_not_null())
        .then(pl.lit(""))
        .when(process.is_not_null())
        .then(process + ": ")
        .when(by_number)
        .then(pl.format("process {}: ", "pid"))
        .otherwise(pl.lit(""))
    )
    rows = split_units(
        located.select(
            pl.col("time").alias("start"),
            "device",
            (of_process + name).alias("name"),
            of_series.alias("series"),
            "value",
        )
    ).rename({"unit": "unit_of_counter"})
    # The unit is in the name of the counter, or of the series.
    rows = split_units(rows.with_columns(pl.col("name").cast(pl.String) + pl.col("series")))
    unit = pl.coalesce("unit_of_counter", "unit").alias("unit")
    rows = rows.with_columns(unit).drop("series", "unit_of_counter")
    return with_durations(rows, ledger, at_end=False)


def is_pm_sampled(counters: pl.DataFrame) -> bool:
    """Return whether ``counters`` are PM samples, for which PyTorch holds a lock on the GPU's
    clocks."""
    named = counters.select("name", "process").unique()
    name, process = (pl.col(column).cast(pl.String) for column in ("name", "process"))
    is_sampled = name.str.contains(_PM_SAMPLING) & process.str.contains(_DEVICE)
    return bool(named.select(is_sampled.any()).item())
