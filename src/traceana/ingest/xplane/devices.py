"""GPUs as their planes describe them."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from traceana.ingest.xplane.space import Plane, Space, Value
from traceana.trace.schema import DEVICES

_GPU: Final = re.compile(r"^/device:GPU:(\d+)")
_ANY: Final = re.compile(r"^/device:.*?:(\d+)")
_VENDORS: Final = ("AMD", "NVIDIA")
_INT32: Final = 1 << 31


def is_device(plane: Plane) -> bool:
    """Tell whether a plane is a device's, whatever its make."""
    return plane.name.startswith("/device:")


def gpu_number(plane: Plane) -> int | None:
    """Return the number of a GPU's plane, None for other planes."""
    return _number(_GPU, plane)


def device_number(plane: Plane) -> int | None:
    """Return the number of any device's plane."""
    return _number(_ANY, plane)


def _number(pattern: re.Pattern[str], plane: Plane) -> int | None:
    found = pattern.match(plane.name)
    number = int(found[1]) if found else None
    return number if number is not None and number < _INT32 else None


def devices(space: Space, used: pl.Series) -> pl.DataFrame:
    """Return the GPUs that did work (``used``: their numbers), or all when none did."""
    rows = {
        number: _row(number, plane.stats())
        for plane in space.planes
        if (number := gpu_number(plane)) is not None
    }
    wanted = set(used.drop_nulls().unique().to_list()) or set(rows)
    return pl.DataFrame([rows[number] for number in sorted(wanted)], schema=DEVICES, orient="row")


def _row(number: int, stats: dict[str, Value]) -> tuple[object, ...]:
    def integer(key: str, most: int = 1 << 63) -> int | None:
        value = stats.get(key)
        return value if isinstance(value, int) and 0 <= value < most else None

    def words(*keys: str) -> str | None:
        return next((v for k in keys if isinstance(v := stats.get(k), str) and v), None)

    major, minor = integer("compute_cap_major"), integer("compute_cap_minor")
    vendor = words("device_vendor")
    known = next((v for v in _VENDORS if vendor and v in vendor.upper()), None)
    return (
        number,
        words("device_name", "gpu_device_name", "device_type_string"),
        # Files from before AMD's GPUs name no vendor, and only NVIDIA's have a compute capability.
        known or vendor or (None if major is None else "NVIDIA"),
        None if major is None or minor is None else f"{major}.{minor}",
        integer("core_count", _INT32),
        integer("clock_rate"),
        integer("memory_size"),
        integer("memory_bandwidth"),
        None,
        None,
    )
