"""The keys around ``traceEvents``: devices, ranks, versions, the origin of time."""

from __future__ import annotations

import re
from typing import Any, Final

import polars as pl

from traceana.readers.chrome.event_decoder import integers
from traceana.trace.schema import DEVICES

VERSIONS: Final = (
    "cupti_version",
    "cuda_runtime_version",
    "cuda_driver_version",
    "roctracer_version",
    "hip_runtime_version",
    "hip_driver_version",
)
OPTIONS: Final = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
CUT: Final = "traceana"
"""The key of a cut: :mod:`traceana.readers.kineto.cut`."""
_VENDORS: Final = {
    "NVIDIA": r"(?i)nvidia|tesla|geforce|quadro|titan|\bRTX\b|\bGTX\b|\bG?[HB][12]00\b|tegra",
    "AMD": r"(?i)\bAMD\b|radeon|instinct|\bMI\d{2,3}[AX]?\b|^gfx\d",
    "Intel": r"(?i)intel|\bArc\b|data center gpu (?:max|flex)",
}
"""Vendor -> pattern of the names that its drivers print."""
_MEMORY: Final = "totalGlobalMem"
_MOST_RANKS: Final = 2**31 - 1
"""A larger world size is not one."""
_EPOCH_FLOOR: Final = 10**18
"""Nanoseconds from 1970 to 2001: larger times are Unix times, smaller ones count from a boot."""


def devices(keys: dict[str, Any], used: pl.Series) -> pl.DataFrame:
    """Return the devices with activities, or every device in the file where there are none.

    ``used`` holds the device numbers of the activities; a device that the file does not describe
    gets a row without properties.
    """
    listed = keys.get("deviceProperties")
    rows = (
        [_device(entry, _vendor(entry, keys)) for entry in listed if isinstance(entry, dict)]
        if isinstance(listed, list)
        else []
    )
    described = (
        pl.DataFrame(rows, schema=DEVICES, orient="row")
        .filter(pl.col("device").is_not_null())
        .unique("device", keep="first", maintain_order=True)
    )
    numbers = used.drop_nulls().unique().sort().cast(DEVICES["device"]).alias("device")
    if not len(numbers):
        return described
    kinds = described.drop("device").unique()
    if kinds.height == 1:
        # ROCm numbers the rows by agent and the properties by device. Where all devices are
        # of one kind, the mapping does not matter.
        return numbers.to_frame().join(kinds, how="cross").select(described.columns)
    return numbers.to_frame().join(described, on="device", how="left", maintain_order="left")


def _vendor(entry: dict[str, Any], keys: dict[str, Any]) -> str | None:
    """Return the vendor by the device's name, else by the runtime's versions, else None."""
    name = entry.get("name")
    if isinstance(name, str):
        for vendor, pattern in _VENDORS.items():
            if re.search(pattern, name):
                return vendor
    runtimes = {"NVIDIA": ("cuda_", "cupti_"), "AMD": ("hip_", "roctracer_")}
    vendors = [
        vendor
        for vendor, prefixes in runtimes.items()
        if any(key in keys for key in VERSIONS if key.startswith(prefixes))
    ]
    return vendors[0] if len(vendors) == 1 else None


def _device(entry: dict[str, Any], vendor: str | None) -> tuple[Any, ...]:
    def number(key: str) -> int | None:
        value = integers([entry.get(key)]).item()
        return value if value is None or -(2**31) <= value < 2**31 or key == _MEMORY else None

    name = entry.get("name")
    major, minor = number("computeMajor"), number("computeMinor")
    name = name if isinstance(name, str) else None
    return (
        number("id"),
        name,
        vendor,
        None if major is None or minor is None else f"{major}.{minor}",
        number("numSms"),
        None,
        number(_MEMORY),
        None,
        number("warpSize"),
        None,
    )


def base_ns(keys: dict[str, Any], first_ns: int) -> int | None:
    """Return the Unix time in ns of the file's time 0, None where not recorded.

    ``first_ns`` is the time of its first event: files without ``baseTimeNanoseconds`` hold Unix
    times.
    """
    base = integers([keys.get("baseTimeNanoseconds")]).item()
    if base is not None:
        return int(base)
    return 0 if first_ns > _EPOCH_FLOOR else None


def rank(keys: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return (rank, world size) of a distributed run, None where not recorded."""
    info = keys.get("distributedInfo")
    if not isinstance(info, dict):
        return None, None
    number, size = integers([info.get("rank"), info.get("world_size")])
    return number, size if size is not None and 0 < size <= _MOST_RANKS else None


def process_groups(keys: dict[str, Any]) -> dict[str, tuple[str | None, list[int]]]:
    """Return the description and the ranks of the process groups that the file lists, by name."""
    info = keys.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups: dict[str, tuple[str | None, list[int]]] = {}
    for group in listed if isinstance(listed, list) else ():
        if not isinstance(group, dict):
            continue
        name, ranks, description = (group.get(key) for key in ("pg_name", "ranks", "pg_desc"))
        if not isinstance(name, str) or not isinstance(ranks, list):
            continue
        if ranks and all(type(rank) is int and 0 <= rank <= _MOST_RANKS for rank in ranks):
            groups[name] = (description if isinstance(description, str) else None, ranks)
    return groups


def facts(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the versions and recording options in the file."""
    properties: dict[str, Any] = {
        key: version
        for key in VERSIONS
        if isinstance(version := keys.get(key), int | float) and abs(version) < 1 << 53
    }
    options = [key for key in OPTIONS if keys.get(key) in (1, True)]
    if options:
        properties["options"] = options
    listed = keys.get("deviceProperties")
    if isinstance(listed, list):
        properties["devices_present"] = len(listed)
    return properties
