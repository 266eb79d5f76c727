"""The run and its devices: host, framework, versions, epoch, GPUs."""

from __future__ import annotations

import re
from typing import Any, Final

import polars as pl

from traceana.ingest.xplane.hlo import METADATA_PLANE
from traceana.ingest.xplane.space import Plane, Space, Value
from traceana.trace.schema import DEVICES

_TASK: Final = "Task Environment"
_EPOCH_FLOOR: Final = 10**18
"""Nanoseconds from 1970 to 2001: larger times are Unix times, smaller ones count from the start."""
_FARTHEST: Final = 1 << 62
_JAX: Final = re.compile(r"^(?:PjitFunction\(|jit_|PjRt|CommonPjRt|PJRT_)")
_TENSORFLOW: Final = re.compile(r"^(?:TFE_|EagerExecute|ExecutorState::|TraceContext)")
_GPU: Final = re.compile(r"^/device:GPU:(\d+)")
_ANY: Final = re.compile(r"^/device:.*?:(\d+)")
_VENDORS: Final = ("AMD", "NVIDIA")
_INT32: Final = 1 << 31


def epoch_ns(space: Space, first_ns: int) -> int | None:
    """Return the Unix time of the first event, which is at ``first_ns`` on the file's clock."""
    if first_ns > _EPOCH_FLOOR:
        return first_ns
    start = _stats(space, _TASK).get("profile_start_time")
    if isinstance(start, int) and _EPOCH_FLOOR < start < _FARTHEST:
        return start + first_ns
    return None


def process_id(plane: Plane) -> int | None:
    """Return the process id of a host plane, None where not recorded."""
    value = plane.stats().get("process_id")
    return value if isinstance(value, int) and 0 <= value < _FARTHEST else None


def framework(space: Space) -> str | None:
    """Return JAX or TensorFlow, by the names of its runtime's events, None for neither."""
    if "jax_version" in _stats(space, METADATA_PLANE):
        return "JAX"
    names = [
        name
        for plane in space.planes
        if not plane.name.startswith("/device:")
        for name in plane.event_names.values()
    ]
    # TensorFlow can run XLA; JAX never runs TensorFlow's executor.
    if any(map(_TENSORFLOW.match, names)):
        return "TensorFlow"
    return "JAX" if any(map(_JAX.match, names)) else None


def producer(space: Space) -> str | None:
    """Return the recording library with its version, None where not recorded."""
    version = _stats(space, METADATA_PLANE).get("jaxlib_version")
    return f"jaxlib {version}" if isinstance(version, str) else None


def facts(space: Space) -> dict[str, Any]:
    """Return versions, hosts, and the profiler's errors and warnings."""
    found: dict[str, Any] = {
        key: value
        for key, value in _stats(space, METADATA_PLANE).items()
        if key.endswith("_version") and isinstance(value, str)
    }
    for key in ("hostnames", "errors", "warnings"):
        if texts := getattr(space, key):
            found[key] = list(texts)
    return found


def _stats(space: Space, name: str) -> dict[str, Value]:
    return {
        key: value
        for plane in space.planes
        if plane.name == name
        for key, value in plane.stats().items()
    }


def is_device(plane: Plane) -> bool:
    """Return whether a plane is a device's, of any vendor."""
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
    """Return the GPUs with activities (``used``: their numbers), or all where there are none."""
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
        # Files without a vendor precede AMD's GPUs; only NVIDIA's have a compute capability.
        known or vendor or (None if major is None else "NVIDIA"),
        None if major is None or minor is None else f"{major}.{minor}",
        integer("core_count", _INT32),
        integer("clock_rate"),
        integer("memory_size"),
        integer("memory_bandwidth"),
        None,
        None,
    )
